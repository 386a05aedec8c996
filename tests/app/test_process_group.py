"""The parent of an owner and its routers: one port for all, children kept, an end for all."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from app.config_addresses import AddressFault
from app.config_load import LoadedConfig, load_config
from app.doors import SOCKET_FOLDER
from app.process_group import ProcessGroup
from app.processes import PARENT_VARIABLE
from ingest.log.unix_socket import listen
from tests.app.main_site import until


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that runs in the place of the interpreter; `write` says what it does."""
    path = tmp_path / "program"
    monkeypatch.setattr("app.processes.sys.executable", str(path))
    return path


def write(program: Path, text: str) -> None:
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def loaded(folder: Path, *addresses: str) -> LoadedConfig:
    file = folder / "config.yaml"
    file.write_text(f"server: {{bind_address: {list(addresses)}}}\n")
    return load_config(file, environment={})


def started(folder: Path) -> list[list[str]]:
    """The words behind `picklog` of every process so far."""
    runs = folder / "runs"
    return [line.split() for line in runs.read_text().splitlines()] if runs.exists() else []


def noting(folder: Path, then: str) -> str:
    return f'shift 2; echo "$@" ${PARENT_VARIABLE} >> {folder}/runs; {then}'


async def ended(running: asyncio.Task[int]) -> int:
    async with asyncio.timeout(20):
        return await running


@pytest.mark.req("EVS-10")
async def test_an_owner_and_routers_on_one_free_port(program: Path, tmp_path: Path) -> None:
    write(program, noting(tmp_path, "exec sleep 60"))
    group = ProcessGroup(loaded(tmp_path, "127.0.0.1:0", "[::1]:0"), tmp_path / "data", 3)
    running = asyncio.create_task(group.run())
    await until(lambda: len(started(tmp_path)) == 4)
    group.stop()
    assert await ended(running) == 0
    words = {line[line.index("--member") + 1]: line for line in started(tmp_path)}
    common = ["--data", str(tmp_path / "data"), "-c", str(tmp_path / "config.yaml")]
    parent = [str(os.getpid())]
    assert words["ingest"] == ["ingest", *common, "--member", "ingest", *parent]
    for number in (1, 2, 3):
        line = words[f"router-{number}"]
        assert line[:7] == ["router", *common, "--member", f"router-{number}"]
        assert line[7:] == words["router-1"][7:], "the same addresses for all"
    (_, first, _, second, _) = words["router-1"][7:]
    for address, host in ((first, "127.0.0.1:"), (second, "[::1]:")):
        assert address.startswith(host) and int(address.removeprefix(host)) > 0


async def test_its_ports_stay_taken_while_it_runs_and_are_free_behind_it(
    program: Path, tmp_path: Path
) -> None:
    write(program, noting(tmp_path, "exec sleep 60"))
    group = ProcessGroup(loaded(tmp_path, "127.0.0.1:0"), tmp_path / "data", 2)
    running = asyncio.create_task(group.run())
    await until(lambda: len(started(tmp_path)) == 3)
    words = next(line for line in started(tmp_path) if "--bind" in line)
    port = int(words[words.index("--bind") + 1].rpartition(":")[2])
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0, "the parent answers nobody"
    group.stop()
    await ended(running)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


async def test_sockets_of_killed_processes_are_removed_and_those_of_living_ones_stay(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(program, noting(tmp_path, "exec sleep 60"))
    monkeypatch.chdir(tmp_path)
    os.mkdir(SOCKET_FOLDER)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{SOCKET_FOLDER}/router-3.sock")
    with listen(Path(SOCKET_FOLDER) / "router-4.sock", 1):
        group = ProcessGroup(loaded(tmp_path, "127.0.0.1:0"), Path(), 2)
        running = asyncio.create_task(group.run())
        await until(lambda: len(started(tmp_path)) == 3)
        assert os.listdir(SOCKET_FOLDER) == ["router-4.sock"]
        group.stop()
        await ended(running)


async def test_addresses_that_cannot_be_shared_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(AddressFault, match="several routers cannot listen on one Unix socket") as fault:
        ProcessGroup(loaded(tmp_path, "unix:/tmp/one.sock"), tmp_path, 2)
    assert "TCP port" in fault.value.hint
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(OSError, match="change server") as refused:
            ProcessGroup(loaded(tmp_path, taken), tmp_path, 2)
    assert refused.value.filename == taken


async def test_a_child_that_dies_is_started_again(program: Path, tmp_path: Path) -> None:
    write(program, noting(tmp_path, "exec sleep 60"))
    group = ProcessGroup(loaded(tmp_path, "127.0.0.1:0"), tmp_path / "data", 2)
    running = asyncio.create_task(group.run())
    await until(lambda: len(started(tmp_path)) == 3)
    for child in (group.routers[1], group.ingest):
        before = child.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await until(lambda child=child, before=before: child.pid not in (None, before))  # type: ignore[misc]
        assert child.starts == 2
    assert group.routers[0].starts == 1
    group.stop()
    assert await ended(running) == 0


@pytest.mark.parametrize("status", [2, 3])
async def test_an_owner_that_cannot_own_the_log_ends_all(program: Path, tmp_path: Path, status: int) -> None:
    write(program, noting(tmp_path, f'[ "$1" = ingest ] && exit {status}; exec sleep 60'))
    group = ProcessGroup(loaded(tmp_path, "127.0.0.1:0"), tmp_path / "data", 2)
    running = asyncio.create_task(group.run())
    assert await ended(running) == status
    assert all(child.pid is None for child in group.routers)


async def test_an_owner_that_is_killed_at_its_start_is_started_again(program: Path, tmp_path: Path) -> None:
    write(
        program,
        noting(
            tmp_path,
            f'if [ "$1" = ingest ] && [ ! -e {tmp_path}/once ]; then touch {tmp_path}/once; kill -9 $$; fi; '
            "exec sleep 60",
        ),
    )
    group = ProcessGroup(loaded(tmp_path, "127.0.0.1:0"), tmp_path / "data", 1)
    running = asyncio.create_task(group.run())
    await until(lambda: group.ingest.starts == 2 and group.ingest.pid is not None)
    assert not running.done()
    group.stop()
    assert await ended(running) == 0


async def test_a_second_signal_is_passed_on(program: Path, tmp_path: Path) -> None:
    trap = f"n=0; trap 'n=$((n+1)); echo $n >> {tmp_path}/terms; [ $n -ge 2 ] && exit 0' TERM"
    write(program, noting(tmp_path, f"{trap}; while :; do sleep 0.02; done"))
    group = ProcessGroup(loaded(tmp_path, "127.0.0.1:0"), tmp_path / "data", 1)
    running = asyncio.create_task(group.run())
    await until(lambda: len(started(tmp_path)) == 2)
    group.stop()
    await until((tmp_path / "terms").exists)
    assert not running.done()
    group.stop()
    await until(lambda: group.routers[0].pid is None)
    group.stop()

    def is_hurried() -> bool:
        group.stop()
        return group.ingest.pid is None

    await until(is_hurried)
    assert await ended(running) == 0
