"""What was sent last is looked for until the log can be read, without holding up anything else."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ingest.log import own_search
from ingest.log.appends import FindOwn
from ingest.log.commit_thread import CommitThread
from ingest.log.own_search import OwnSearch, own_records
from projections.events.codec import encode_record
from projections.events.control import Pinged
from projections.events.ports import CommitFailed, LogCorrupt, LogFailed, MemoryLog, OffsetGone, RecordBatch

A, B = b"a" * 16, b"b" * 16
ROWS = [(A, 1), (B, 1), (A, 2), (A, 3)]


class Far(MemoryLog):
    """Reads wait until they may go on; `problems` are raised by the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.commit([encode_record(1, writer, 0, n, Pinged(writer, n, -1)) for writer, n in ROWS])
        self.commit([b"rubbish"])
        self.problems: list[BaseException] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.threads: set[int] = set()

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        self.threads.add(threading.get_ident())
        assert self.goes_on.wait(20)
        if self.problems:
            raise self.problems.pop(0)
        return super().read(start, bytes_max)


class Searching:
    """One search, and what it told."""

    def __init__(self, reads_apart: bool) -> None:
        self.store = Far()
        self.commits = CommitThread(self.store, asyncio.get_running_loop())
        self.told: list[Any] = []
        self.search = OwnSearch(
            self.store,
            self.commits,
            on_found=self.told.append,
            fail=self.told.append,
            reads_apart=reads_apart,
        )

    async def found(self, wanted: FindOwn, start: int = 0) -> Any:
        self.search.begin(start, wanted)
        async with asyncio.timeout(20):
            while not self.told:  # noqa: ASYNC110  # what is told is told in the loop
                await asyncio.sleep(0.001)
        await asyncio.to_thread(self.commits.close)
        (told,) = self.told
        return told


def test_own_records_are_found_by_sequence() -> None:
    log = Far()
    assert own_records(log, 0, A, 2) == {2: 2, 3: 3}
    assert own_records(log, 3, A, 0) == {3: 3}


@pytest.mark.req("EVS-15")
@pytest.mark.parametrize("reads_apart", [False, True])
async def test_it_is_looked_for_again_while_the_log_cannot_be_read(
    reads_apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_search, "AGAIN_S", 0.001)
    one = Searching(reads_apart)
    one.store.problems = [CommitFailed("away"), CommitFailed("still away")]
    assert await one.found(FindOwn(A, 2)) == {2: 2, 3: 3}


@pytest.mark.parametrize("reads_apart", [False, True])
@pytest.mark.parametrize("problem", [LogCorrupt("does not check"), LogFailed("another log")])
async def test_a_log_that_is_no_log_any_more_is_told(problem: Exception, reads_apart: bool) -> None:
    one = Searching(reads_apart)
    one.store.problems = [problem]
    assert await one.found(FindOwn(A, 2)) is problem


@pytest.mark.req("EVS-14", "EVS-15")
async def test_a_log_that_begins_behind_what_is_looked_for_ends_the_writer() -> None:
    one = Searching(reads_apart=True)
    one.store.problems = [OffsetGone(0, 3)]
    told = await one.found(FindOwn(A, 2))
    assert isinstance(told, LogFailed) and "retention removed" in str(told)


async def test_a_fault_in_the_thread_is_told_as_the_end_of_the_log() -> None:
    one = Searching(reads_apart=True)
    one.store.problems = [KeyError("ours")]
    assert isinstance(await one.found(FindOwn(A, 2)), LogFailed)


async def test_a_read_that_waits_for_the_network_does_not_hold_the_loop() -> None:
    one = Searching(reads_apart=True)
    one.store.goes_on.clear()
    finding = asyncio.create_task(one.found(FindOwn(A, 1)))
    turns = 0
    async with asyncio.timeout(20):
        while not one.store.threads or turns < 20:
            turns += 1
            await asyncio.sleep(0.001)
    assert not finding.done()
    one.store.goes_on.set()
    assert await finding == {1: 0, 2: 2, 3: 3}
    assert threading.get_ident() not in one.store.threads
