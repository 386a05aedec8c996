"""Settings of the whole suite."""

from __future__ import annotations

import asyncio

import hypothesis
import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Say that the main thread has no event loop, and give hypothesis its profile.

    Without the first, the first asyncio test after a plain one makes pytest-asyncio ask the policy for a
    loop that nobody closes, and the session ends with a ResourceWarning that counts as an error.
    """
    asyncio.set_event_loop(None)
    # A loaded machine is slow; how long one example takes proves nothing here.
    hypothesis.settings.register_profile("suite", deadline=None)
    hypothesis.settings.load_profile("suite")
