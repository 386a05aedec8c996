"""How many connections are begun at once, so that a restart of the fleet is no storm.

A dial holds one of DIALS_MAX places while it is work: until it ends, or for HOLD_S. One that
hangs in a black hole is nothing but a waiting socket then and gives its place away, so a
thousand unreachable addresses delay the others by seconds and do not shut them out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

DIALS_MAX: Final = 64
HOLD_S: Final = 1.0

Result = TypeVar("Result")


class DialGate:
    """See the module's text."""

    def __init__(self, dials_max: int = DIALS_MAX, hold_s: float = HOLD_S) -> None:
        self._places = asyncio.Semaphore(dials_max)
        self._hold_s = hold_s

    async def pass_through(self, dial: Callable[[], Awaitable[Result]]) -> Result:
        """Wait for a place, then dial. Cancellation gives the place back."""
        await self._places.acquire()
        place = _Place(self._places)
        timer = asyncio.get_running_loop().call_later(self._hold_s, place.give_back)
        try:
            return await dial()
        finally:
            timer.cancel()
            place.give_back()


class _Place:
    """Given back once, by whoever comes first."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places

    def give_back(self) -> None:
        if self._places is not None:
            self._places.release()
            self._places = None
