"""Settings of the whole suite."""

from __future__ import annotations

import asyncio

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Say that the main thread has no event loop.

    Without it, the first asyncio test after a plain one makes pytest-asyncio ask the policy for a
    loop that nobody closes, and the session ends with a ResourceWarning that counts as an error.
    """
    asyncio.set_event_loop(None)
