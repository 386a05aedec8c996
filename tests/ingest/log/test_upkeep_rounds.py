from __future__ import annotations

import asyncio
import threading

from ingest.log.upkeep_rounds import UpkeepRounds
from projections.events.ports import CommitFailed


async def test_a_round_that_fails_is_tried_again_and_all_run_beside_the_loop() -> None:
    threads: list[str] = []
    enough = asyncio.Event()
    loop = asyncio.get_running_loop()

    def act() -> None:
        threads.append(threading.current_thread().name)
        if len(threads) == 1:
            raise CommitFailed("no room")
        if len(threads) == 2:
            raise OSError("no room")
        loop.call_soon_threadsafe(enough.set)

    rounds = UpkeepRounds(act, 0.001)
    async with asyncio.timeout(5):
        await enough.wait()
    await rounds.stop()
    done = len(threads)
    assert done >= 3
    assert all(name.startswith("log-upkeep") for name in threads)
    await asyncio.sleep(0)
    assert len(threads) == done
