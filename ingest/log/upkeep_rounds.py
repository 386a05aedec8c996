"""Upkeep of a log, round after round, in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from projections.events.ports import LogError

log = structlog.get_logger("picklog.log")


class UpkeepRounds:
    """Calls `act` every `every_s` until `stop`; a round that fails is said and tried again."""

    def __init__(self, act: Callable[[], object], every_s: float) -> None:
        self._act = act
        self._every_s = every_s
        self._thread = ThreadPoolExecutor(1, "log-upkeep")
        self._task = asyncio.create_task(self._go_round())

    async def stop(self) -> None:
        """End with the round under way."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def _go_round(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await loop.run_in_executor(self._thread, self._act)
            except (LogError, OSError) as problem:
                log.error("upkeep of the log failed and will be tried again", error=str(problem))
