"""The thread that commits: order, results, problems, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import get_ident

from ingest.log.commit_thread import CommitThread
from projections.events.ports import CommitFailed, MemoryLog


class Refusing(MemoryLog):
    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def commit(self, records: Sequence[bytes], critical: bool = True) -> int:
        self.threads.add(get_ident())
        if records[0] == b"refused":
            raise CommitFailed("told to")
        return super().commit(records, critical)


async def committed(thread: CommitThread, *batches: list[bytes]) -> list[int | BaseException]:
    results: list[int | BaseException] = []
    done = asyncio.Event()

    def take(result: int | BaseException) -> None:
        results.append(result)
        if len(results) == len(batches):
            done.set()

    for records in batches:
        thread.commit(records, True, take)
    async with asyncio.timeout(10):
        await done.wait()
    return results


async def test_batches_are_committed_in_order_in_another_thread() -> None:
    store = Refusing()
    thread = CommitThread(store, asyncio.get_running_loop())
    assert await committed(thread, [b"a", b"b"], [b"c"]) == [0, 2]
    thread.close()
    assert len(store.threads) == 1 and get_ident() not in store.threads


async def test_a_problem_is_handed_over_and_the_next_batch_is_tried() -> None:
    thread = CommitThread(Refusing(), asyncio.get_running_loop())
    refused, first = await committed(thread, [b"refused"], [b"a"])
    assert isinstance(refused, CommitFailed) and first == 0
    thread.close()


async def test_one_that_committed_nothing_can_be_closed() -> None:
    log = Refusing()
    CommitThread(log, asyncio.get_running_loop()).close()
    assert (log.end_offset(), log.threads) == (0, set())
