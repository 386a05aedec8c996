"""Identities of workers, ranks and publishers, and the three spellings of an id.

An instance id is an unsigned 64-bit number. etcd keys spell it in lower-case hex,
record values as a JSON number (older ones as a hex string), headers and documents in
decimal. All spellings become one integer here and are spelled again only where they are
printed. The namespace of a key comes from the watched prefix, never from a payload.

Tuples compare by (namespace, id, rank): that is the canonical order of candidates.
"""

from __future__ import annotations

from typing import NamedTuple

U64_MAX = (1 << 64) - 1
U32_MAX = (1 << 32) - 1
DP_RANK_UNSET = U32_MAX  # the wire's word for "no rank given"

_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


class WorkerKey(NamedTuple):
    """One routable instance. Order: namespace, then id."""

    namespace: str
    instance_id: int

    def to_decimal(self) -> str:
        """The id as headers, SQL and documents spell it."""
        return str(self.instance_id)

    def to_hex(self) -> str:
        """The id as keys and metric labels spell it: lower case, no padding."""
        return f"{self.instance_id:x}"

    def to_text(self) -> str:
        """`<namespace>/<decimal id>`, the form that people read."""
        return f"{self.namespace}/{self.instance_id}"


class RankKey(NamedTuple):
    """One data-parallel rank of a worker. Order: namespace, id, rank."""

    namespace: str
    instance_id: int
    dp_rank: int

    @property
    def worker(self) -> WorkerKey:
        """The worker that this rank belongs to."""
        return WorkerKey(self.namespace, self.instance_id)


class PublisherKey(NamedTuple):
    """One incarnation of a socket that emits samples or block events."""

    namespace: str
    publisher_id: int


def id_of_value(value: object) -> int | None:
    """The id in a record's value: a JSON number is itself, a JSON string is hex.

    Returns None for anything that is not an unsigned 64-bit id (booleans, floats,
    negative or oversized numbers, text with a sign, blanks or a `0x`).
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if 0 <= value <= U64_MAX else None
    if isinstance(value, str):
        return id_of_hex(value)
    return None


def id_of_hex(text: str) -> int | None:
    """The id that a key segment spells in hex, or None. At most 16 digits."""
    if not 0 < len(text) <= 16 or not _HEX_DIGITS.issuperset(text):
        return None
    return int(text, 16)


def id_of_decimal(text: str) -> int | None:
    """The id that a document or header spells in decimal, or None."""
    if not 0 < len(text) <= 20 or not (text.isascii() and text.isdecimal()):
        return None
    number = int(text)
    return number if number <= U64_MAX else None
