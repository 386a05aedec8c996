"""Blocking calls off the event loop, a few at a time, also those that never come back.

Models often lie on network file systems, and those can hang. A thread cannot be stopped, so
each call has a daemon thread of its own, which keeps neither its caller from going on nor
the process from ending. A thread that is past its deadline keeps its place until it comes
back: at most so many hang, and further calls are told so at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class CallHung(OSError):
    """The call did not return in time, or so many earlier ones have not that there is no place."""


class Threads:
    """Runs at most `limit` blocking calls at one time. All calls come from one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0  # changed on the loop alone

    async def run(self, function: Callable[[], Result], deadline_s: float) -> Result:
        """The function's result or exception. Raises CallHung after deadline_s."""
        if self._count >= self._limit:
            raise CallHung("earlier reads of the disk have not come back")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Result] = loop.create_future()

        def settle(result: Any, problem: BaseException | None) -> None:
            self._count -= 1
            if outcome.done():
                return
            if problem is not None:
                outcome.set_exception(problem)
            else:
                outcome.set_result(result)

        def work() -> None:
            result, problem = None, None
            try:
                result = function()
            except BaseException as raised:  # handed to the caller whatever it is
                problem = raised
            try:
                loop.call_soon_threadsafe(settle, result, problem)
            except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
                pass

        self._count += 1
        threading.Thread(target=work, name="artifact", daemon=True).start()
        try:
            async with asyncio.timeout(deadline_s):
                return await outcome
        except TimeoutError:
            outcome.cancel()
            raise CallHung(f"no answer of the disk within {deadline_s:g} s") from None
