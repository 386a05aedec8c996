"""The owner's door: who is let in, what is taken, and what no router can do to the owner or its log."""

from __future__ import annotations

import os
import random
import socket
import stat
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from structlog.testing import capture_logs

from ingest.log import owner_socket
from ingest.log.grouped_store import GroupedStore
from ingest.log.owner_socket import CONNECTIONS_MAX, OwnerSocket
from ingest.log.segment_files import LogHeld
from ingest.log.socket_frames import (
    FrameType,
    Reason,
    acknowledged_frame,
    batch_frame,
    first_offset_of,
    hello_frame,
    refusal_of,
)
from projections.events.codec import encode_record
from projections.events.control import CheckpointDue, LaneOpened, Pinged
from projections.events.kinds import SCHEMA
from projections.events.ports import CommitFailed, CommitUnclear, LogFailed, LogFull
from tests.ingest.log.log_places import SMALL, BrokenSync, read_back
from tests.ingest.log.owner_places import SESSION, Caller, HeldStore, Owned, Router, until
from tests.log_suite import WRITER, record

PING = Pinged(bytes(16), 1, -1)
SMALL_DURABLE = replace(SMALL, durable=True)


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[Owned]:
    opened = Owned(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[HeldStore, OwnerSocket, Path]]:
    store = HeldStore()
    door = OwnerSocket(tmp_path / "s", GroupedStore(store))
    yield store, door, tmp_path / "s"
    store.let_go(100)
    door.close()


def acknowledged(router: Router, number: int, records: list[bytes], critical: bool = True) -> int:
    """Send a batch; where it stands."""
    router.send(batch_frame(number, records, critical))
    head, payload = router.frame()
    assert (head.type, head.number) == (FrameType.ACKNOWLEDGED, number)
    return first_offset_of(payload)


# Ordinary ----------------------------------------------------------------------------------


def test_a_router_is_welcomed_and_its_batches_are_acknowledged(owned: Owned, tmp_path: Path) -> None:
    router = Router(owned.path)
    assert router.welcome() == (owned.log.log_id, 0, SCHEMA)
    assert acknowledged(router, 1, [record(0), record(1)]) == 0
    assert acknowledged(router, 2, [record(2)]) == 2
    assert acknowledged(router, 3, []) == 3
    router.close()
    assert read_back(tmp_path) == [(n, record(n)) for n in range(3)]
    until(lambda: owned.door.connections == 0)
    assert owned.door.malformed == 0


def test_the_socket_is_there_for_its_owner_alone(owned: Owned) -> None:
    assert stat.S_IMODE(owned.path.lstat().st_mode) == 0o600


def test_a_second_owner_at_the_same_place_is_refused(owned: Owned) -> None:
    with pytest.raises(LogHeld):
        OwnerSocket(owned.path, owned.store)
    router = Router(owned.path)
    assert router.welcome().end_offset == 0
    router.close()


def test_a_data_directory_with_a_long_name_works_too(tmp_path: Path) -> None:
    data = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 8)
    owned = Owned(data)
    assert len(os.fsencode(owned.path)) > 200
    router = Router(owned.path)
    router.welcome()
    assert acknowledged(router, 1, [record(0)]) == 0
    router.close()
    owned.close()
    assert not owned.path.exists()


def test_batches_of_several_routers_share_a_commit(
    held: tuple[HeldStore, OwnerSocket, Path],
) -> None:
    store, door, path = held
    routers = [Router(path, bytes((n,)) * 16) for n in range(4)]
    for router in routers:
        router.welcome()
    routers[0].send(batch_frame(1, [record(0)], True))
    assert store.entered.acquire(timeout=20)
    for router in routers[1:]:
        router.send(batch_frame(1, [record(1)], True))
    until(lambda: door._store.waiting == 3)
    store.let_go(2)
    assert sorted(first_offset_of(router.frame()[1]) for router in routers) == [0, 1, 2, 3]
    assert [len(records) for records, _ in store.commits] == [1, 3]
    for router in routers:
        router.close()


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (CommitFailed("x"), Reason.FAILED),
        (LogFull("x"), Reason.FULL),
        (CommitUnclear("x"), Reason.UNCLEAR),
        (LogFailed("x"), Reason.OVER),
        (MemoryError("x"), Reason.OVER),
    ],
)
def test_what_the_store_refuses_is_told_by_its_reason(
    held: tuple[HeldStore, OwnerSocket, Path], problem: BaseException, reason: Reason
) -> None:
    store, _, path = held
    store.problems = [problem]
    store.has_room = False
    store.let_go(2)
    router = Router(path)
    router.welcome()
    router.send(batch_frame(5, [record(0)], False))
    head, payload = router.frame()
    assert (head.type, head.number, head.flag) == (FrameType.REFUSED, 5, True)
    assert refusal_of(payload)[0] is reason
    assert acknowledged(router, 6, [record(0)]) == 0
    assert [critical for _, critical in store.commits] == [False, True]
    router.close()


# Hostile -----------------------------------------------------------------------------------

RANDOM = random.Random(25)

HELLO = hello_frame(b"session-16-bytes")


def framed(*records: bytes) -> bytes:
    return HELLO + batch_frame(1, records, True)


def claimed(kind: int, records: int, size: int) -> bytes:
    """A head alone."""
    return struct.pack("<4sBBHQII", b"PLAP", 1, kind, 0, 1, records, size)


HOSTILE = {
    "random bytes": RANDOM.randbytes(4096),
    "random bytes behind a hello": HELLO + RANDOM.randbytes(4096),
    "a request of HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a wrong magic": b"PLAQ" + HELLO[4:],
    "another version": HELLO[:4] + b"\x02" + HELLO[5:],
    "a batch before the hello": batch_frame(1, [record(0)], True),
    "two hellos": HELLO + HELLO,
    "an answer": HELLO + acknowledged_frame(1, 1, False),
    "a huge hello": claimed(FrameType.HELLO, 0, 0xFFFFFFFF),
    "a huge batch": HELLO + claimed(FrameType.BATCH, 1, 0xFFFFFFFF),
    "a batch of too many records": HELLO + claimed(FrameType.BATCH, 0xFFFFFFFF, 100),
    "lengths beyond the bytes": HELLO + claimed(FrameType.BATCH, 1, 8) + struct.pack("<II", 5, 0),
    "no record": framed(b"no record"),
    "an empty record": framed(b""),
    "a wrong check word": framed(record(0)[:-1] + bytes((record(0)[-1] ^ 1,))),
    "a good record and a bad one": framed(record(0), record(1)[:-1]),
    "a record of the owner": framed(encode_record(1, WRITER, 0, 1, CheckpointDue("x"))),
    "a claim": framed(encode_record(1, WRITER, 0, 1, LaneOpened(2, 3, b"", "restart"))),
    "an epoch": framed(encode_record(1, WRITER, 1, 1, PING)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_no_router_says_ends_its_connection_and_nothing_else(
    owned: Owned, tmp_path: Path, data: bytes
) -> None:
    good = Router(owned.path, b"another session.")
    good.welcome()
    with capture_logs() as logs:
        bad = Router(owned.path, None)
        bad.send(data)
        bad.wait_for_end()
        until(lambda: owned.door.connections == 1)
    bad.close()
    assert owned.door.malformed == 1
    assert [line["log_level"] for line in logs] == ["warning"]
    assert acknowledged(good, 1, [record(0)]) == 0
    good.close()
    assert read_back(tmp_path) == [(0, record(0))]


@pytest.mark.parametrize("size", [0, 1, 23, 24, 30, 39, 40, 41, 64, 70, 100])
def test_half_frames_are_dropped(owned: Owned, tmp_path: Path, size: int) -> None:
    router = Router(owned.path, None)
    router.send(framed(record(0))[:size])
    router.close()
    until(lambda: owned.door.connections == 0)
    assert owned.log.end_offset() == 0
    assert owned.door.malformed == 0


def test_a_router_that_says_nothing_or_half_of_it_is_not_waited_for(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_socket, "HELLO_S", 0.05)
    monkeypatch.setattr(owner_socket, "FRAME_S", 0.05)
    for said in (b"", HELLO[:10], framed(record(0))[:-1]):
        router = Router(owned.path, None)
        router.send(said)
        router.wait_for_end()
        router.close()
    until(lambda: owned.door.malformed == 3)
    assert owned.log.end_offset() == 0


def test_a_thousand_random_beginnings_leave_the_owner_as_it_was(owned: Owned) -> None:
    good = framed(record(0), record(1))
    for _ in range(1000):
        at = RANDOM.randrange(len(good))
        router = Router(owned.path, None)
        router.send(good[:at] + RANDOM.randbytes(RANDOM.randrange(1, 60)))
        router.socket.shutdown(socket.SHUT_WR)
        router.wait_for_end()
        router.close()
    assert owned.door.malformed > 300
    until(lambda: owned.door.connections == 0)
    assert owned.log.end_offset() == 0
    router = Router(owned.path)
    router.welcome()
    assert acknowledged(router, 1, [record(0)]) == 0
    router.close()


def test_connections_are_bounded_and_the_next_one_is_told_why(owned: Owned) -> None:
    routers = [Router(owned.path, bytes((n,)) * 16) for n in range(CONNECTIONS_MAX)]
    for router in routers:
        router.welcome()
    late = Router(owned.path, None)
    head, payload = late.frame()
    assert (head.type, refusal_of(payload)[0]) == (FrameType.REFUSED, Reason.BUSY)
    late.wait_for_end()
    late.close()
    assert (owned.door.connections, owned.door.turned_away) == (CONNECTIONS_MAX, 1)
    routers.pop().close()
    until(lambda: owned.door.connections == CONNECTIONS_MAX - 1)
    routers.append(Router(owned.path))
    routers[-1].welcome()
    for router in routers:
        router.close()


# Coming and going --------------------------------------------------------------------------


@pytest.mark.req("EVS-15")
def test_a_session_is_welcomed_again_when_its_last_batch_is_decided(
    held: tuple[HeldStore, OwnerSocket, Path],
) -> None:
    store, door, path = held
    first = Router(path)
    first.welcome()
    first.send(batch_frame(1, [record(0), record(1)], True))
    assert store.entered.acquire(timeout=20)
    first.close()
    earlier = door._sessions[SESSION]
    second, other = Router(path), Router(path, b"another session.")
    assert other.welcome().end_offset == 0  # it waits for nobody
    until(lambda: door._sessions[SESSION] is not earlier)
    store.let_go()
    assert second.welcome().end_offset == 2
    second.close()
    other.close()


def test_a_batch_of_a_connection_that_was_closed_is_dropped(
    owned: Owned, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, closed = Event(), Event()

    def check(records: list[bytes]) -> None:
        reached.set()
        assert closed.wait(20)

    monkeypatch.setattr(owner_socket, "_check", check)
    router = Router(owned.path)
    router.welcome()
    router.send(batch_frame(1, [record(0)], True))
    assert reached.wait(20)
    router.close()
    closed.set()
    until(lambda: owned.door.connections == 0)
    assert owned.log.end_offset() == 0


def test_closing_waits_for_commits_under_way_and_tells_their_routers(tmp_path: Path) -> None:
    store = HeldStore()
    door = OwnerSocket(tmp_path / "s", GroupedStore(store))
    busy, idle = Router(tmp_path / "s"), Router(tmp_path / "s", b"another session.")
    for router in (busy, idle):
        router.welcome()
    busy.send(batch_frame(1, [record(0)], True))
    assert store.entered.acquire(timeout=20)

    def close() -> int:
        door.close()
        return 0

    closing = Caller(close)
    idle.wait_for_end()
    assert not closing.is_done
    store.let_go()
    assert busy.frame()[0].type is FrameType.ACKNOWLEDGED
    assert closing.outcome() == 0
    assert not (tmp_path / "s").exists()
    busy.close()
    idle.close()


def test_a_failed_disk_is_told_as_the_end(tmp_path: Path) -> None:
    disk = BrokenSync()
    owned = Owned(tmp_path, SMALL_DURABLE, disk)
    router = Router(owned.path)
    router.welcome()
    disk.broken = True
    router.send(batch_frame(1, [record(0)], True))
    assert refusal_of(router.frame()[1])[0] is Reason.OVER
    router.close()
    owned.close()


def test_a_fault_in_one_connection_ends_it_alone(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(records: list[bytes]) -> None:
        raise ZeroDivisionError

    router = Router(owned.path)
    router.welcome()
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(owner_socket, "_check", fault)
        router.send(batch_frame(1, [record(0)], True))
        router.wait_for_end()
        until(lambda: owned.door.connections == 0)
    router.close()
    assert [line["log_level"] for line in logs] == ["error"]
    router = Router(owned.path)
    router.welcome()
    assert acknowledged(router, 1, [record(0)]) == 0
    router.close()
