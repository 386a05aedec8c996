"""A command runs where only loopback exists, and a bridge reaches into it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deploy.demo import loopback

REPOSITORY = Path(__file__).resolve().parents[3]


def run_inside(code: str, **settings: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "deploy.demo.loopback", sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=60, check=False)


def can_enter() -> bool:
    return "no network namespace" not in run_inside("pass").stderr


def test_command_inside_sees_loopback_alone_and_can_use_it() -> None:
    if not can_enter():
        pytest.skip("this machine lets us make no network namespace (root or unprivileged user namespaces)")
    code = """
import os, socket
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
print(sorted(name for _, name in socket.if_nameindex()), os.getuid())
"""
    result = run_inside(code)
    assert result.stdout.split("\n")[0] == f"['lo'] {os.getuid()}"
    assert result.returncode == 0


def test_exit_status_of_the_command_is_kept() -> None:
    assert run_inside("raise SystemExit(7)").returncode == 7


def test_missing_command_is_a_usage_error() -> None:
    assert loopback.main([]) == 2
    assert loopback.main(["no-such-command-here"]) == 2


def test_bridge_carries_both_ways_until_either_side_ends() -> None:
    inner = socket.create_server(("127.0.0.1", 0))
    outer = socket.create_server(("127.0.0.1", 0))
    bridge = loopback.Bridge(outer, inner.getsockname()[1])

    def echo() -> None:
        connection, _ = inner.accept()
        with connection:
            while data := connection.recv(1000):
                connection.sendall(data.upper())

    thread = threading.Thread(target=echo)
    thread.start()
    with socket.create_connection(outer.getsockname(), timeout=10) as client:
        client.sendall(b"hello")
        assert client.recv(1000) == b"HELLO"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1000) == b""
    thread.join(10)
    bridge.close()
    inner.close()


def test_bridge_to_nobody_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    outer = socket.create_server(("127.0.0.1", 0))
    bridge = loopback.Bridge(outer, port)
    with socket.create_connection(outer.getsockname(), timeout=10) as client:
        assert client.recv(1000) == b""
    bridge.close()
