"""Pages of metrics say which release answers."""

from __future__ import annotations

import sys

from prometheus_client import CollectorRegistry

from app.exposition import tell_build
from app.version import VERSION


def test_a_page_says_the_release_and_the_python_that_answer() -> None:
    registry = CollectorRegistry()
    tell_build(registry)
    labels = {"version": VERSION, "python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    assert registry.get_sample_value("picklog_build_info", labels) == 1
