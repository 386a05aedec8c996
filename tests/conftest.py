"""Settings for every test: property tests that do not depend on the machine's speed, live tests marked."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

LIVE = Path(__file__).parent / "live"

# A loaded machine is no fault of the code: no deadlines, no complaints about slow generators.
# CI draws the same examples each time; set HYPOTHESIS_PROFILE=explore to draw others.
_CALM = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile(
    "fixed", deadline=None, derandomize=True, print_blob=True, suppress_health_check=_CALM
)
settings.register_profile(
    "explore", deadline=None, max_examples=1000, print_blob=True, suppress_health_check=_CALM
)


def pytest_configure(config: pytest.Config) -> None:
    # Without it, the first asyncio test after a plain one makes pytest-asyncio ask the policy for a
    # loop that nobody closes, and some later test fails for its ResourceWarning.
    asyncio.set_event_loop(None)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture
def terminal() -> Iterator[None]:
    """SIGHUP as a terminal leaves it: whoever started these tests may have it ignored, as `nohup` does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Live tests get time: their peers start, die and come back."""
    for item in items:
        if LIVE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(autouse=True)
def _process_log_as_found() -> Iterator[None]:
    """A command under test sets up the process log; its level would hide lines from later tests."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    accesses = logging.getLogger("aiohttp.access")
    disabled = accesses.disabled
    yield
    structlog.reset_defaults()
    root.handlers = handlers
    root.setLevel(level)
    accesses.disabled = disabled


@pytest.fixture(autouse=True)
def _collector_as_found() -> Iterator[None]:
    """A command under test slows the garbage collector down; memory tests need the usual one."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
