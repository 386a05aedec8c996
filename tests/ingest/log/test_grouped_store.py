"""Group commit of several threads: what shares a commit, who is told what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Barrier

import pytest

from ingest.log.grouped_store import GroupedStore
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_upkeep import forget
from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX, MIB
from projections.events.ports import (
    CommitFailed,
    CommitUnclear,
    LogError,
    LogFailed,
    LogFull,
    LogReader,
    LogStore,
    MemoryLog,
)
from tests.ingest.log.log_places import SMALL, BrokenSync
from tests.ingest.log.owner_places import Caller, HeldStore, until
from tests.log_suite import LogSuite, number_of, read_all, record


class TestGroupedMemory(LogSuite):
    """The suite with a list behind it."""

    def make(self) -> LogStore:
        self.memory = MemoryLog(bytes(range(16)))
        return GroupedStore(self.memory)

    def reader_of(self, log: LogStore) -> LogReader:
        return self.memory

    def forget(self, log: LogStore, offset: int) -> None:
        self.memory.forget(offset)


class TestGroupedSegments(LogSuite):
    """The suite with files behind it."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> Iterator[None]:
        self.data = tmp_path
        self.opened: list[SegmentLog | SegmentReader] = []
        yield
        for log in reversed(self.opened):
            log.close()

    def make(self) -> LogStore:
        self.segments = SegmentLog.open_owner(self.data, SMALL)
        self.opened.append(self.segments)
        return GroupedStore(self.segments)

    def reader_of(self, log: LogStore) -> LogReader:
        reader = SegmentLog.open_reader(self.data)
        self.opened.append(reader)
        return reader

    def forget(self, log: LogStore, offset: int) -> None:
        forget(self.segments, offset)


@pytest.fixture
def held() -> HeldStore:
    return HeldStore()


def start(store: GroupedStore, records: Sequence[bytes], critical: bool = True) -> Caller:
    """A commit that has taken its place in the queue."""
    waiting = store.waiting
    caller = Caller(lambda: store.commit(records, critical))
    until(lambda: store.waiting > waiting)
    return caller


def lead(store: GroupedStore, held: HeldStore) -> Caller:
    """A commit that is under way."""
    caller = Caller(lambda: store.commit([record(0)]))
    assert held.entered.acquire(timeout=20)
    return caller


def test_what_waits_for_a_commit_shares_the_next_one(held: HeldStore) -> None:
    store = GroupedStore(held)
    first = lead(store, held)
    others = [start(store, [record(10 * n + i) for i in range(n)]) for n in (1, 2, 3)]
    held.let_go(2)
    assert first.outcome() == 0
    assert [caller.outcome() for caller in others] == [1, 2, 4]
    assert [len(records) for records, _ in held.commits] == [1, 6]
    assert [number_of(data) for _, data in read_all(store, 0)] == [0, 10, 20, 21, 30, 31, 32]


def test_a_commit_alone_goes_to_the_store_at_once(held: HeldStore) -> None:
    held.let_go(2)
    store = GroupedStore(held)
    assert (store.commit([record(0)]), store.commit([record(1)])) == (0, 1)
    assert store.waiting == 0


def test_critical_records_share_no_commit_with_others(held: HeldStore) -> None:
    store = GroupedStore(held)
    first = lead(store, held)
    kinds = (False, True, False, True)
    callers = [start(store, [record(n)], kind) for n, kind in enumerate(kinds)]
    held.let_go(3)
    assert first.outcome() == 0
    assert [caller.outcome() for caller in callers] == [1, 3, 2, 4]
    assert [(len(records), kind) for records, kind in held.commits] == [(1, True), (2, False), (2, True)]


@pytest.mark.req("EVS-17")
def test_a_full_disk_refuses_what_is_not_critical_and_nothing_else(held: HeldStore) -> None:
    store = GroupedStore(held)
    first = lead(store, held)
    held.problems = [None, LogFull("no room"), None]
    kinds = (False, True, False)
    callers = [start(store, [record(n)], kind) for n, kind in enumerate(kinds)]
    held.let_go(3)
    assert first.outcome() == 0
    outcomes = [caller.outcome() for caller in callers]
    assert [type(outcome) for outcome in outcomes] == [LogFull, int, LogFull]


@pytest.mark.parametrize("kind", [CommitFailed, CommitUnclear, LogFull, LogFailed])
def test_what_the_store_reports_reaches_every_caller_of_the_group(
    held: HeldStore, kind: type[LogError]
) -> None:
    store = GroupedStore(held)
    held.problems = [None, kind("what it says")]
    first = lead(store, held)
    callers = [start(store, [record(n)]) for n in range(3)]
    held.let_go(2)
    assert first.outcome() == 0
    outcomes = [caller.outcome() for caller in callers]
    assert [(type(outcome), str(outcome)) for outcome in outcomes] == [(kind, "what it says")] * 3
    assert len(set(map(id, outcomes))) == 3
    held.let_go()
    assert store.commit([record(9)]) == 1


def test_a_fault_of_the_store_is_told_as_the_end_of_the_log(held: HeldStore) -> None:
    store = GroupedStore(held)
    held.problems = [ZeroDivisionError("a fault")]
    first = lead(store, held)
    waiting = start(store, [record(1)])
    held.let_go(2)
    outcome = first.outcome()
    assert isinstance(outcome, LogFailed) and "a fault" in str(outcome)
    assert waiting.outcome() == 0


def test_a_group_stays_below_the_ceiling_of_a_batch(held: HeldStore) -> None:
    store = GroupedStore(held)
    first = lead(store, held)
    large = [record(0, blob=MIB)] * 5
    callers = [start(store, records) for records in (large, large, [record(1)])]
    held.let_go(3)
    assert first.outcome() == 0
    assert [caller.outcome() for caller in callers] == [1, 7, 6]
    assert all(sum(map(len, records)) <= COMMIT_BATCH_BYTES_MAX for records, _ in held.commits)


def test_a_group_stays_below_the_record_ceiling_of_a_batch(held: HeldStore) -> None:
    store = GroupedStore(held)
    first = lead(store, held)
    many = [record(0)] * (COMMIT_BATCH_RECORDS_MAX // 2 + 1)
    callers = [start(store, many), start(store, many)]
    held.let_go(3)
    assert [first.outcome(), *(caller.outcome() for caller in callers)] == [0, 1, 1 + len(many)]
    assert [len(records) for records, _ in held.commits] == [1, len(many), len(many)]


def test_nobody_fails_for_the_excess_of_another(held: HeldStore) -> None:
    store = GroupedStore(held)
    first = lead(store, held)
    with pytest.raises(CommitFailed):
        store.commit([bytes(MIB)] * 9)
    held.let_go()
    assert first.outcome() == 0


def test_many_threads_on_files_each_find_their_records_where_they_were_told(tmp_path: Path) -> None:
    log = SegmentLog.open_owner(tmp_path, SMALL)
    store = GroupedStore(log)
    threads, commits = 8, 40
    gate = Barrier(threads)
    told: list[list[tuple[int, int]]] = [[] for _ in range(threads)]

    def write(thread: int) -> int:
        gate.wait(20)
        for commit in range(commits):
            number = 1000 * thread + 10 * commit
            size = 1 + (thread + commit) % 4
            first = store.commit([record(number + n) for n in range(size)], bool(commit % 2))
            told[thread].extend((first + n, number + n) for n in range(size))
        return 0

    callers = [Caller(lambda n=n: write(n)) for n in range(threads)]  # type: ignore[misc]
    assert [caller.outcome() for caller in callers] == [0] * threads
    found = {offset: number_of(data) for offset, data in read_all(log, 0)}
    log.close()
    assert found == dict(sum(told, []))  # noqa: RUF017
    assert sorted(found) == list(range(len(found)))
    for mine in told:
        assert mine == sorted(mine)


def test_a_failed_disk_ends_it_for_all(tmp_path: Path) -> None:
    disk = BrokenSync()
    log = SegmentLog.open_owner(tmp_path, disk=disk)
    store = GroupedStore(log)
    store.commit([record(0)])
    disk.broken = True
    callers = [Caller(lambda: store.commit([record(1)])) for _ in range(4)]
    assert {type(caller.outcome()) for caller in callers} == {LogFailed}
    log.close()


async def test_reading_passes_through() -> None:
    memory = MemoryLog(bytes(range(16)))
    store = GroupedStore(memory)
    store.commit([record(0)])
    await store.wait(0, 1.0)
    assert not store.is_full()
    assert (store.first_offset(), store.end_offset(), store.log_id) == (0, 1, memory.log_id)
