"""`tcp://host:port` of a publisher's record, and which addresses may be dialled.

The record is the fleet's word and not trusted: it may name the metadata service of a cloud, a
port of this machine, or a host name that resolves to either (B-115). So the policy looks at
addresses after resolution, and never at names. An IPv4 address in IPv6 clothes counts as what
it is, else it would slip past an IPv4 network. Addresses that are nobody's (unspecified,
multicast) are never dialled, not even without a policy: `0.0.0.0` would reach this machine.

Sources: requirement rows CFG-28, CFG-29, LOAD-04, LOAD-24, LOAD-25.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

ADDRESS_CHARACTERS_MAX: Final = 512
HOST_CHARACTERS_MAX: Final = 253  # RFC 1035 in text form
CIDRS_MAX: Final = 64
_ADDRESS: Final = re.compile(r"tcp://(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", re.ASCII)


class Address(NamedTuple):
    """Where a publisher listens. ip is None where `host` is a name that must be resolved."""

    host: str
    port: int
    ip: IpAddress | None


def parse_address(text: str) -> Address | None:
    """The parts of `tcp://host:port`, IPv6 in brackets; None for anything else. Never raises."""
    found = _ADDRESS.fullmatch(text) if len(text) <= ADDRESS_CHARACTERS_MAX else None
    if found is None:
        return None
    bracketed, plain, digits = found.groups()
    port = int(digits)
    if not 0 < port < 65536:
        return None
    host = bracketed or plain
    ip = ip_of(host)
    if bracketed is not None and not isinstance(ip, ipaddress.IPv6Address):
        return None
    return Address(host, port, ip) if len(host) <= HOST_CHARACTERS_MAX else None


def ip_of(text: str) -> IpAddress | None:
    """The address that a text spells, None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def plain_ip(ip: IpAddress) -> IpAddress:
    """`::ffff:10.0.0.7` as 10.0.0.7; other addresses as they are."""
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return ip if mapped is None else mapped


class AddressPolicy:
    """Which addresses may be dialled.

    allow: networks as `10.0.0.0/8` or `fd00::/8`; None allows any address that is somebody's.
    Raises ValueError for what is no network, or too many of them: the configuration was checked before.
    """

    def __init__(self, allow: Sequence[str] | None) -> None:
        if allow is not None and len(allow) > CIDRS_MAX:
            raise ValueError(f"{len(allow)} networks, at most {CIDRS_MAX}")
        self._networks = None if allow is None else tuple(ipaddress.ip_network(text) for text in allow)

    def allows(self, ip: IpAddress) -> bool:
        """Whether this very address may be dialled."""
        ip = plain_ip(ip)
        if ip.is_unspecified or ip.is_multicast or ip == ipaddress.IPv4Address("255.255.255.255"):
            return False
        if self._networks is None:
            return True
        return any(ip.version == network.version and ip in network for network in self._networks)
