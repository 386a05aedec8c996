"""The log as a router writes it: through the owner's socket, whatever becomes of the owner."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ingest.log.appender import Importance, Receipt, Status
from ingest.log.grouped_store import GroupedStore
from ingest.log.log_writer import LogWriter, WriterSettings
from ingest.log.owner_socket import OwnerSocket
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_upkeep import forget
from ingest.log.socket_frames import (
    Reason,
    Welcome,
    acknowledged_frame,
    refused_frame,
    welcome_frame,
)
from ingest.log.socket_store import SocketStore
from ingest.log.unix_socket import send
from projections.bounds import MIB
from projections.events.codec import decode_record, encode_record
from projections.events.control import CheckpointDue
from projections.events.kinds import SCHEMA
from projections.events.picks import DispatchEnded, PickMade
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
from projections.fold import Fold
from projections.notices import Notice
from tests.ingest.log.facts import end, pick
from tests.ingest.log.owner_places import (
    SOCKET_NAME,
    BadOwner,
    Caller,
    HeldStore,
    Owned,
    head_of,
    soon,
    until,
    welcome_to,
)
from tests.log_suite import WRITER, LogSuite, read_all, record


class TestThroughTheSocket(LogSuite):
    """The suite, appended through an owner and read from its files."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> Iterator[None]:
        self.data = tmp_path
        self.owned = Owned(tmp_path)
        self.opened: list[SocketStore | SegmentReader] = []
        yield
        for log in reversed(self.opened):
            log.close()
        self.owned.close()

    def make(self) -> LogStore:
        self.opened.append(reader := SegmentLog.open_reader(self.data))
        self.opened.append(store := SocketStore(self.owned.path, reader))
        return store

    def reader_of(self, log: LogStore) -> LogReader:
        self.opened.append(reader := SegmentLog.open_reader(self.data))
        return reader

    def forget(self, log: LogStore, offset: int) -> None:
        forget(self.owned.log, offset)

    def test_two_routers_and_the_owner_write_in_turn(self) -> None:
        stores = [self.make(), self.make(), self.owned.store]
        for number in range(30):
            assert stores[number % 3].commit([record(number)]) == number
        assert read_all(stores[0], 0) == [(n, record(n)) for n in range(30)]


class Place:
    """A data directory with a log, its owner gone or held, and routers' stores."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.path = data / SOCKET_NAME
        Owned(data).close()
        self.opened: list[SegmentReader | SocketStore | BadOwner | Owned] = []

    def store(self, patience_s: float = 20.0) -> SocketStore:
        self.opened.append(reader := SegmentLog.open_reader(self.data))
        self.opened.append(store := SocketStore(self.path, reader, patience_s=patience_s))
        return store

    def owner(self) -> Owned:
        self.opened.append(owned := Owned(self.data))
        return owned

    def bad_owner(
        self, act: Callable[[socket.socket], object], welcome: Welcome | bytes | None = None
    ) -> BadOwner:
        if welcome is None:
            owned = Owned(self.data)
            welcome = welcome_to(owned.log)
            owned.close()
        self.opened.append(owner := BadOwner(self.path, act, welcome))
        return owner

    def close(self) -> None:
        for each in reversed(self.opened):
            each.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[HeldStore, SocketStore]]:
    log = HeldStore()
    door = OwnerSocket(tmp_path / "s", GroupedStore(log))
    store = SocketStore(tmp_path / "s", MemoryLog(log.log_id), patience_s=20.0)
    yield log, store
    log.let_go(100)
    store.close()
    door.close()


# No owner, another owner -------------------------------------------------------------------


def test_nothing_is_written_while_nobody_listens(place: Place) -> None:
    store = place.store()
    with pytest.raises(CommitFailed, match="does not take it"):
        store.commit([record(0)])
    owned = place.owner()
    assert store.commit([record(0)]) == 0
    owned.close()
    place.opened.remove(owned)
    with pytest.raises(CommitFailed):
        store.commit([record(1)])
    place.owner()
    assert store.commit([record(1)]) == 1
    assert read_all(store, 0) == [(0, record(0)), (1, record(1))]


def test_a_log_with_another_id_ends_the_store(place: Place) -> None:
    store = place.store()
    shutil.rmtree(place.data / "log")
    place.owner()
    for _ in range(2):
        with pytest.raises(LogFailed, match="another log"):
            store.commit([record(0)])


def test_an_older_copy_of_the_log_ends_the_store(place: Place) -> None:
    store, owned = place.store(), place.owner()
    store.commit([record(0)])
    place.opened.remove(owned)
    owned.close()
    place.bad_owner(lambda _: None, Welcome(store.log_id, 0, SCHEMA))
    with pytest.raises(CommitFailed):
        store.commit([record(1)])
    with pytest.raises(LogFailed, match="up to 1 was acknowledged"):
        store.commit([record(1)])


@pytest.mark.parametrize("what", ["schema", "protocol"])
def test_an_owner_of_another_release_ends_the_store(place: Place, what: str) -> None:
    store = place.store()
    frame = welcome_frame(Welcome(store.log_id, 0, SCHEMA + (what == "schema")), False)
    if what == "protocol":
        frame = frame[:4] + b"\x09" + frame[5:]
    place.bad_owner(lambda _: None, frame)
    with pytest.raises(LogFailed, match=what):
        store.commit([record(0)])


# Answers that do not come ------------------------------------------------------------------


@pytest.mark.req("EVS-15")
def test_an_owner_that_dies_before_its_answer_leaves_it_unclear_until_the_next_one(place: Place) -> None:
    store = place.store()
    owners: list[BadOwner] = []

    def die(connection: socket.socket) -> None:
        head_of(connection)
        owners[0].close()
        connection.close()
        place.owner()

    owners.append(place.bad_owner(die))
    with pytest.raises(CommitUnclear) as unclear:
        store.commit([record(0)])
    assert not isinstance(unclear.value, LogFailed)
    assert store.commit([record(1)]) == 0


def test_where_no_owner_comes_the_patience_ends(place: Place) -> None:
    store = place.store(patience_s=1.0)
    owners: list[BadOwner] = []

    def die(connection: socket.socket) -> None:
        head_of(connection)
        owners[0].close()

    owners.append(place.bad_owner(die))
    with pytest.raises(CommitUnclear):
        store.commit([record(0)])
    with pytest.raises(CommitFailed):
        store.commit([record(0)])
    place.owner()
    assert store.commit([record(0)]) == 0


@pytest.mark.req("EVS-15")
def test_a_late_batch_is_in_the_log_by_the_time_that_it_is_told_unclear(tmp_path: Path) -> None:
    log = HeldStore()
    door = OwnerSocket(tmp_path / "s", GroupedStore(log))
    store = SocketStore(tmp_path / "s", log, patience_s=1.0)
    caller = Caller(lambda: store.commit([record(0)]))
    assert log.entered.acquire(timeout=20)
    until(lambda: door.connections == 2)  # it gave the first one up, and asks again
    log.let_go(2)
    outcome = caller.outcome()
    assert isinstance(outcome, CommitUnclear)
    assert read_all(store, 0) == [(0, record(0))]
    assert store.commit([record(1)]) == 1
    store.close()
    door.close()


def test_a_batch_that_was_not_sent_whole_is_not_in_the_log(place: Place) -> None:
    store = place.store()
    place.bad_owner(lambda _: None)
    with pytest.raises(CommitFailed):
        store.commit([record(0, blob=MIB)] * 7)


@pytest.mark.parametrize(
    "answer",
    [
        acknowledged_frame(9, 0, False),
        b"no frame of ours, and long",
        welcome_frame(Welcome(bytes(16), 0, 1), False),
    ],
    ids=["of another batch", "noise", "out of turn"],
)
def test_an_answer_that_makes_no_sense_leaves_it_unclear(place: Place, answer: bytes) -> None:
    store = place.store(patience_s=1.0)
    owners: list[BadOwner] = []

    def mumble(connection: socket.socket) -> None:
        head_of(connection)
        send(connection, answer, soon())
        owners[0].close()

    owners.append(place.bad_owner(mumble))
    with pytest.raises(CommitUnclear):
        store.commit([record(0)])


def test_an_offset_that_was_used_ends_the_store(place: Place) -> None:
    store = place.store()

    def repeat(connection: socket.socket) -> None:
        for number in (1, 2):
            head_of(connection)
            send(connection, acknowledged_frame(number, 5, False), soon())

    place.bad_owner(repeat)
    assert store.commit([record(0)]) == 5
    with pytest.raises(LogFailed, match="offset 5 again"):
        store.commit([record(1)])


# Refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (Reason.FAILED, CommitFailed),
        (Reason.FULL, LogFull),
        (Reason.UNCLEAR, CommitUnclear),
        (Reason.OVER, LogFailed),
        (Reason.UNFIT, LogFailed),
    ],
)
def test_refusals_are_raised_as_what_they_are(place: Place, reason: Reason, kind: type[LogError]) -> None:
    store = place.store()

    def refuse(connection: socket.socket) -> None:
        head_of(connection)
        send(connection, refused_frame(1, reason, "what it says", True), soon())

    place.bad_owner(refuse)
    with pytest.raises(LogError, match="what it says") as raised:
        store.commit([record(0)])
    assert type(raised.value) is kind
    assert store.is_full()


def test_a_crowded_owner_takes_nothing_for_now(place: Place) -> None:
    store = place.store()
    place.bad_owner(lambda _: None, refused_frame(0, Reason.BUSY, "64 connections are open", False))
    with pytest.raises(CommitFailed, match="busy: 64 connections"):
        store.commit([record(0)])


def test_a_record_that_no_router_may_write_ends_the_store(place: Place) -> None:
    store, owned = place.store(), place.owner()
    with pytest.raises(LogFailed, match="not a router's to write"):
        store.commit([encode_record(1, WRITER, 0, 1, CheckpointDue("x"))])
    assert owned.log.end_offset() == 0


@pytest.mark.req("EVS-17")
def test_want_of_room_is_told_with_each_answer_and_critical_records_go_on(
    held: tuple[HeldStore, SocketStore],
) -> None:
    log, store = held
    log.let_go(4)
    store.commit([record(0)], critical=False)
    assert not store.is_full()
    log.has_room = False
    log.problems = [LogFull("no room")]
    with pytest.raises(LogFull):
        store.commit([record(1)], critical=False)
    assert store.is_full()
    store.commit([record(1)])
    log.has_room = True
    store.commit([record(2)])
    assert not store.is_full()
    assert [critical for _, critical in log.commits] == [False, False, True, True]


# Closing -----------------------------------------------------------------------------------


def test_closing_interrupts_a_commit_under_way(held: tuple[HeldStore, SocketStore]) -> None:
    log, store = held
    caller = Caller(lambda: store.commit([record(0)]))
    assert log.entered.acquire(timeout=20)
    store.close()
    assert isinstance(caller.outcome(), LogFailed)
    with pytest.raises(LogFailed, match="closed"):
        store.commit([record(1)])
    store.close()


def test_closing_interrupts_the_wait_for_an_owner(place: Place) -> None:
    store = place.store()
    owners: list[BadOwner] = []

    def die(connection: socket.socket) -> None:
        head_of(connection)
        owners[0].close()

    owners.append(place.bad_owner(die))
    caller = Caller(lambda: store.commit([record(0)]))
    owners[0].thread.join(20)
    store.close()
    assert isinstance(caller.outcome(), LogFailed)


def test_closing_interrupts_the_wait_for_a_welcome(place: Place) -> None:
    store = place.store()
    place.bad_owner(lambda connection: connection.recv(1), b"")
    caller = Caller(lambda: store.commit([record(0)]))
    until(lambda: store._connection is not None)
    store.close()
    assert isinstance(caller.outcome(), LogFailed)


# A writer on top ---------------------------------------------------------------------------

QUICK = WriterSettings(every_us=200)


async def told(writer: LogWriter, numbers: range) -> list[Receipt]:
    """Append picks with their ends; what became of them."""
    loop = asyncio.get_running_loop()
    receipts: list[asyncio.Future[Receipt]] = []
    for number in numbers:
        for fact in (pick(number), end(number)):
            receipts.append(done := loop.create_future())
            writer.append(fact, importance=Importance.PICK, time=5, on_done=done.set_result)
        await asyncio.sleep(0)
    async with asyncio.timeout(30):
        return list(await asyncio.gather(*receipts))


def assert_all_stand_once(reader: LogReader, receipts: list[Receipt], numbers: range) -> None:
    """Everything acknowledged stands where it was told; what stands twice takes effect once."""
    data = read_all(reader, 0)
    records = {offset: decode_record(offset, each) for offset, each in data}
    assert all(receipt.status is Status.ACKNOWLEDGED for receipt in receipts)
    offsets = [receipt.offset for receipt in receipts]
    assert len(set(offsets)) == len(offsets) == 2 * len(numbers)
    found = [records[offset].fact for offset in offsets if offset is not None]
    assert {fact.pick_id for fact in found if isinstance(fact, PickMade | DispatchEnded)} == {
        number.to_bytes(16, "big") for number in numbers
    }
    whole, once = Fold(), Fold()
    seen: set[bytes] = set()
    notices: list[Notice] = []
    for offset, each in data:
        whole.apply(offset, each, notices)
        fact = records[offset].fact
        name = type(fact).__name__.encode() + (
            fact.pick_id if isinstance(fact, PickMade | DispatchEnded) else offset.to_bytes(8, "big")
        )
        if name not in seen:
            once.apply(offset, each, notices)
        seen.add(name)
    parts = ("ledger", "load", "registry")
    assert [dict(whole.digests())[part] for part in parts] == [dict(once.digests())[part] for part in parts]


async def test_a_writer_beside_the_owners_is_acknowledged(place: Place) -> None:
    owned = place.owner()
    owner = await LogWriter.open(owned.store, QUICK)
    store = place.store()
    router = await LogWriter.open(store, QUICK, is_owner=False)
    owner.append(CheckpointDue("x"))
    receipts = await told(router, range(50))
    assert_all_stand_once(store, receipts, range(50))
    await router.close()
    await owner.close()


@pytest.mark.req("EVS-17")
async def test_what_was_appended_while_the_owner_was_away_is_written_when_it_returns(place: Place) -> None:
    owned = place.owner()
    owner = await LogWriter.open(owned.store, QUICK)
    store = place.store()
    router = await LogWriter.open(store, QUICK, is_owner=False)
    before = await told(router, range(20))
    await owner.close()
    place.opened.remove(owned)
    owned.close()
    tried: list[int] = []
    connect = store._connect

    def counted(deadline: float) -> socket.socket:
        tried.append(1)
        return connect(deadline)

    store._connect = counted  # type: ignore[method-assign]
    with capture_logs() as logs:
        later = asyncio.create_task(told(router, range(20, 60)))
        await asyncio.to_thread(until, lambda: len(tried) > 2)  # it tries, and tries again
    assert [line["event"] for line in logs] == ["the log took nothing of a batch"], "once for the outage"
    assert not later.done()
    owner = await LogWriter.open(place.owner().store, QUICK)
    assert_all_stand_once(store, before + await later, range(60))
    await router.close()
    await owner.close()


OWNER = """
import sys
from pathlib import Path
from tests.ingest.log.owner_places import Owned
from tests.ingest.log.log_places import SMALL
owned = Owned(Path(sys.argv[1]), SMALL)
print("ready", flush=True)
sys.stdin.read()
owned.close()
"""


def spawn(data: Path) -> subprocess.Popen[bytes]:
    """An owner in a process of its own, that listens."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"ready\n"
    return owner


@pytest.mark.req("EVS-10", "EVS-15")
async def test_owners_that_are_killed_lose_and_double_nothing_of_two_routers(place: Place) -> None:
    stores = [place.store(patience_s=5.0), place.store(patience_s=5.0)]
    routers = [await LogWriter.open(store, QUICK, is_owner=False) for store in stores]
    count, kills = 400, 4
    parts = [range(count), range(count, 2 * count)]
    owner = await asyncio.to_thread(spawn, place.data)

    async def write(router: LogWriter, numbers: range) -> list[Receipt]:
        receipts = []
        for start in range(numbers.start, numbers.stop, 20):
            receipts += await told(router, range(start, start + 20))
        return receipts

    writing = [asyncio.create_task(write(router, part)) for router, part in zip(routers, parts, strict=True)]
    reader = SegmentLog.open_reader(place.data)
    place.opened.append(reader)
    for _ in range(kills):
        due = reader.end_offset() + 50
        await asyncio.to_thread(until, lambda due=due: reader.end_offset() >= due)  # type: ignore[misc]
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        close_pipes(owner)
        owner = await asyncio.to_thread(spawn, place.data)
    receipts = [receipt for task in writing for receipt in await task]
    assert_all_stand_once(stores[0], receipts, range(2 * count))
    for router in routers:
        await router.close()
    owner.communicate(b"")
    assert owner.returncode == 0


def close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
