"""Addresses are read strictly, and judged by what they are and not by how they are spelled."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.subscriptions.addresses import CIDRS_MAX, AddressPolicy, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port", "is_name"),
    [
        ("tcp://10.0.0.7:35019", "10.0.0.7", 35019, False),
        ("tcp://[fd00::7]:1", "fd00::7", 1, False),
        ("tcp://[::ffff:10.0.0.7]:65535", "::ffff:10.0.0.7", 65535, False),
        ("tcp://worker-3.pool_a.svc.cluster.local:5557", "worker-3.pool_a.svc.cluster.local", 5557, True),
    ],
)
def test_the_three_forms_of_an_address_are_read(text: str, host: str, port: int, is_name: bool) -> None:
    parsed = parse_address(text)
    assert parsed is not None
    assert (parsed.host, parsed.port, parsed.ip is None) == (host, port, is_name)


@pytest.mark.req("LOAD-04")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.7:1",
        "udp://10.0.0.7:1",
        "tcp://10.0.0.7",
        "tcp://10.0.0.7:0",
        "tcp://10.0.0.7:65536",
        "tcp://10.0.0.7:1 ",
        "tcp://10.0.0.7:1\n",
        "tcp://10.0.0.7:-1",
        "tcp://10.0.0.7:１",
        "tcp://:5557",
        "tcp://*:5557",
        "tcp://fd00::7:5557",
        "tcp://[10.0.0.7]:5557",
        "tcp://[fe80::1%eth0]:5557",
        "tcp://user@10.0.0.7:5557",
        "tcp://wörker:5557",
        "tcp://" + "a" * 254 + ":5557",
        "tcp://" + "a" * 100_000 + ":5557",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    assert parse_address(text) is None


@given(st.text(max_size=600))
def test_reading_never_raises(text: str) -> None:
    for spelled in (text, "tcp://" + text, f"tcp://{text}:1", f"tcp://[{text}]:1"):
        parsed = parse_address(spelled)
        assert parsed is None or 0 < parsed.port < 65536


@pytest.mark.req("LOAD-25", "CFG-28")
@pytest.mark.parametrize(
    ("allow", "ip", "allowed"),
    [
        (("10.0.0.0/8", "fd00::/8"), "10.255.0.1", True),
        (("10.0.0.0/8", "fd00::/8"), "fd12::1", True),
        (("10.0.0.0/8", "fd00::/8"), "11.0.0.1", False),
        (("10.0.0.0/8",), "169.254.169.254", False),
        (("10.0.0.0/8",), "127.0.0.1", False),
        (("10.0.0.0/8",), "::ffff:10.0.0.7", True),
        (("10.0.0.0/8",), "::ffff:127.0.0.1", False),
        (("::/0",), "::ffff:127.0.0.1", False),
        (("::/0",), "10.0.0.7", False),
        ((), "10.0.0.7", False),
        (None, "169.254.169.254", True),
        (None, "0.0.0.0", False),
        (None, "::", False),
        (None, "::ffff:0.0.0.0", False),
        (None, "224.0.0.1", False),
        (("0.0.0.0/0",), "0.0.0.0", False),
        (None, "255.255.255.255", False),
    ],
)
def test_the_policy_judges_what_an_address_is(allow: tuple[str, ...] | None, ip: str, allowed: bool) -> None:
    assert AddressPolicy(allow).allows(ip_address(ip)) is allowed


@pytest.mark.parametrize(
    "allow", [("10.0.0.0/33",), ("pods",), ("10.0.0.1/8",), ("10.0.0.0/8",) * (CIDRS_MAX + 1)]
)
def test_what_is_no_policy_is_an_error(allow: tuple[str, ...]) -> None:
    with pytest.raises(ValueError):
        AddressPolicy(allow)
