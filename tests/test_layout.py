"""The top-level folders are the import packages; nobody else may claim their names.

`app` or `router` are names that another distribution could bring along; then Python would import whichever
lies first on its path. Picklog is an application, installed alone; this test sees to it that its own
dependencies leave the names free.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from tests.sources import PRODUCT_FOLDERS, REPOSITORY

PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def test_no_other_distribution_claims_a_name_of_ours() -> None:
    owners = importlib.metadata.packages_distributions()
    claims = {
        name: sorted(set(owners.get(name, [])) - {"picklog"})
        for name in (*PRODUCT_FOLDERS, "deploy", "bench")
    }
    assert {name: others for name, others in claims.items() if others} == {}


@pytest.mark.parametrize("name", PRODUCT_FOLDERS)
def test_a_name_of_ours_imports_the_folder_of_this_repository(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__).resolve() == REPOSITORY / name / "__init__.py"


def test_wheel_and_contracts_name_every_product_folder() -> None:
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    contracts = PYPROJECT["tool"]["importlinter"]["root_packages"]
    assert sorted(wheel) == sorted(contracts) == sorted(PRODUCT_FOLDERS)


def test_every_package_folder_has_its_docstring_file() -> None:
    missing = [
        folder.relative_to(REPOSITORY).as_posix()
        for top in PRODUCT_FOLDERS
        for folder in (REPOSITORY / top).rglob("*")
        if folder.is_dir() and any(folder.glob("*.py")) and not (folder / "__init__.py").exists()
    ]
    assert missing == []


def test_version_is_the_newest_heading_of_the_changelog_or_unreleased() -> None:
    headings = [
        line.split("[", 1)[1].split("]", 1)[0]
        for line in (REPOSITORY / "CHANGELOG.md").read_text().splitlines()
        if line.startswith("## [")
    ]
    assert headings[0] in {"Unreleased", PYPROJECT["project"]["version"]}


def test_files_that_a_reader_looks_for_are_there() -> None:
    wanted = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "LICENSE",
        "Makefile",
        "uv.lock",
        ".ci/run",
    ]
    assert [name for name in wanted if not (REPOSITORY / name).is_file()] == []
