"""Ports on loopback: finding free ones, asking who answers there, seeing who listens.

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import urllib.request
from pathlib import Path
from typing import Any

# Dynamo reads DYN_SYSTEM_PORT as a signed 16-bit number, and ports above 32767 may be ephemeral ones
PORT_FIRST, PORT_LAST = 20_000, 31_999
ANSWER_BYTES_MAX = 64 * 1024 * 1024


class NoFreePort(RuntimeError):
    """Every port of the range is taken."""


def free_port(taken: set[int] | frozenset[int] = frozenset()) -> int:
    """A free loopback port below the ephemeral range, not one of `taken`."""
    draw = random.SystemRandom()
    for _ in range(1000):
        port = draw.randint(PORT_FIRST, PORT_LAST)
        if port in taken:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise NoFreePort(f"no free port between {PORT_FIRST} and {PORT_LAST}")


def get_json(url: str, timeout_s: float = 3.0) -> dict[str, Any]:
    """GET, at most ANSWER_BYTES_MAX. Raises OSError or ValueError; never goes through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=timeout_s) as answer:
        document = json.loads(answer.read(ANSWER_BYTES_MAX))
    if not isinstance(document, dict):
        raise ValueError(f"{url} answers no JSON object")
    return document


def listening_ports(pid: int) -> set[int]:
    """TCP ports on which a process of ours listens, from /proc; empty once it is gone."""
    inodes = set()
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
        lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return set()
    for link in links:
        with contextlib.suppress(OSError):  # closed since it was listed
            target = os.readlink(link)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    rows = [line.split() for line in lines]
    return {int(row[1].rsplit(":", 1)[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


def first_free_port(first: int, tried: int = 200) -> int:
    """The first port from `first` on that nobody holds on 127.0.0.1."""
    for port in range(first, first + tried):
        with socket.socket() as probe:
            # as the router binds it: a port in TIME_WAIT is free
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise NoFreePort(f"no free port from {first} to {first + tried - 1}")
