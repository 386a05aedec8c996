"""Unix sockets: names of any length, stale and living ones, deadlines."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingest.log.segment_files import LogHeld
from ingest.log.unix_socket import (
    NAME_BYTES_MAX,
    address_of,
    connect,
    is_gone,
    listen,
    receive,
    send,
    wait_for_data,
)
from tests.ingest.log.owner_places import soon


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with one, other:
        yield one, other


def deep(tmp_path: Path) -> Path:
    """A folder whose name alone is longer than a socket's may be."""
    folder = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 8)
    folder.mkdir(parents=True)
    assert len(os.fsencode(folder)) > 2 * NAME_BYTES_MAX
    return folder


@pytest.mark.parametrize("is_deep", [False, True])
def test_a_name_of_any_length_can_be_connected_to(tmp_path: Path, is_deep: bool) -> None:
    path = (deep(tmp_path) if is_deep else tmp_path) / "s"
    before, held = Path.cwd(), len(os.listdir("/proc/self/fd"))
    with listen(path, 1) as listener, connect(path, soon()) as one:
        accepted, _ = listener.accept()
        with accepted:
            send(one, b"hello", soon())
            assert receive(accepted, 5, soon()) == b"hello"
    assert stat.S_ISSOCK(path.lstat().st_mode)
    assert (Path.cwd(), len(os.listdir("/proc/self/fd"))) == (before, held)


def test_the_longest_name_goes_as_it_is(tmp_path: Path) -> None:
    name = Path("/" + "x" * (NAME_BYTES_MAX - 1))
    with address_of(name) as address:
        assert address == str(name)
    path = tmp_path / ("x" * (NAME_BYTES_MAX + 1 - len(os.fsencode(tmp_path)) - 1))
    with listen(path, 1), connect(path, soon()) as one:
        assert one.getpeername().startswith("/proc/self/fd/")


def test_it_is_there_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with listen(tmp_path / "s", 1):
            assert stat.S_IMODE((tmp_path / "s").lstat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_what_a_dead_listener_left_is_replaced(tmp_path: Path) -> None:
    listen(tmp_path / "s", 1).close()
    with listen(tmp_path / "s", 1), connect(tmp_path / "s", soon()) as one:
        assert one.getpeername() == str(tmp_path / "s")


def test_a_living_listener_is_not_replaced(tmp_path: Path) -> None:
    with listen(tmp_path / "s", 1) as first:
        with pytest.raises(LogHeld, match="another process"):
            listen(tmp_path / "s", 1)
        first.accept()[0].close()  # the look whether it lives
        with connect(tmp_path / "s", soon()):
            first.accept()[0].close()


def test_a_listener_that_accepts_nobody_counts_as_living(tmp_path: Path) -> None:
    with (
        listen(tmp_path / "s", 0),
        connect(tmp_path / "s", soon()),
        pytest.raises(LogHeld, match="not answer"),
    ):
        listen(tmp_path / "s", 1)


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("mine")
    with pytest.raises(FileExistsError):
        listen(tmp_path / "s", 1)
    assert (tmp_path / "s").read_text() == "mine"


def test_nobody_listening_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        connect(tmp_path / "s", soon())
    listen(tmp_path / "s", 1).close()
    with pytest.raises(ConnectionRefusedError):
        connect(tmp_path / "s", soon())


def test_pieces_are_put_together(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    for byte in b"in pieces":
        send(one, bytes((byte,)), soon())
    assert receive(other, 9, soon()) == b"in pieces"
    assert receive(other, 0, soon()) == b""


def test_an_end_in_the_middle_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    one.sendall(b"half")
    one.close()
    with pytest.raises(ConnectionResetError, match="4 bytes early"):
        receive(other, 8, soon())


def test_nothing_is_waited_for_beyond_the_deadline(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    one.sendall(b"half")
    with pytest.raises(TimeoutError):
        receive(other, 8, time.monotonic() + 0.01)
    with pytest.raises(TimeoutError):
        send(one, bytes(64 << 20), time.monotonic() + 0.01)
    with pytest.raises(TimeoutError):
        receive(other, 1, time.monotonic() - 1)


def test_who_is_gone_can_be_told(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    assert not is_gone(other)
    send(one, b"x", soon())
    assert not is_gone(other)
    assert wait_for_data(other)
    assert receive(other, 1, soon()) == b"x"
    one.close()
    assert is_gone(other)
    assert not wait_for_data(other)
