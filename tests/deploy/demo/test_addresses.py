"""Free ports are free, and /proc tells who listens."""

from __future__ import annotations

import os
import socket

import pytest

from deploy.demo.addresses import (
    PORT_FIRST,
    PORT_LAST,
    NoFreePort,
    first_free_port,
    free_port,
    listening_ports,
)


def test_free_port_fits_dynamo_and_is_not_taken() -> None:
    taken = {free_port() for _ in range(5)}
    port = free_port(taken)
    assert port not in taken
    assert PORT_FIRST <= port <= PORT_LAST < 32768


def test_first_free_port_passes_over_a_port_that_is_held() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        assert first_free_port(port) > port
        with pytest.raises(NoFreePort):
            first_free_port(port, tried=1)


def test_own_listener_is_seen_until_it_closes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        assert port in listening_ports(os.getpid())
    assert port not in listening_ports(os.getpid())


def test_gone_process_listens_nowhere() -> None:
    assert listening_ports(2**22 + 1) == set()
