"""Blocking calls off the event loop, one at a time, with a deadline that holds.

A thread cannot be stopped, and file systems and old client libraries can hang for ever. So
a call runs in a daemon thread of its own lane: past the deadline the caller goes on with
`CallHung`, the thread is left alone, and the lane takes no further call until it came
back. There is never more than one such thread a lane, and none of them keeps the process
from ending (the threads of asyncio's executor would).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class CallHung(Exception):
    """The call did not return in time, or an earlier one still has not."""


class BlockingLane:
    """Runs one blocking call at a time. `name` is that of its threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_busy = False  # written by the thread when its function came back

    @property
    def is_hung(self) -> bool:
        """Whether an abandoned call is still out there."""
        return self._is_busy

    async def call(self, function: Callable[[], Result], deadline_s: float) -> Result:
        """The function's result or exception. Raises CallHung after deadline_s."""
        if self.is_hung:
            raise CallHung(f"{self._name}: an earlier call has not come back")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Result] = loop.create_future()

        def settle(deliver: Callable[[Any], None], what: object) -> None:
            if not outcome.done():
                deliver(what)

        def run() -> None:
            try:
                result = function()
            except BaseException as problem:  # handed to the caller whatever it is
                self._is_busy = False
                _post(loop, settle, outcome.set_exception, problem)
            else:
                self._is_busy = False
                _post(loop, settle, outcome.set_result, result)

        self._is_busy = True
        threading.Thread(target=run, name=self._name, daemon=True).start()
        try:
            async with asyncio.timeout(deadline_s):  # wait_for of 3.11 can swallow a cancellation
                return await outcome
        except TimeoutError:
            raise CallHung(f"{self._name}: no answer within {deadline_s:g} s") from None


def _post(loop: asyncio.AbstractEventLoop, *call: Any) -> None:
    try:
        loop.call_soon_threadsafe(*call)
    except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
        pass
