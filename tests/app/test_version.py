"""The version is the distribution's."""

from importlib import metadata

from app.version import VERSION


def test_the_version_is_that_of_the_installed_distribution() -> None:
    assert metadata.version("picklog") == VERSION
