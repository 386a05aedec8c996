"""What a Kafka record says of its place in the log: one header of 24 bytes.

Offsets of a topic and of the log in it differ: a copied log keeps its offsets, also where they
jump, and a topic counts markers of transactions that are no records. So each record carries

    log id (16) | number, signed 64 bit big-endian

under one of four names:

    picklog.origin  the topic's first record, which is none of the log: the log's first offset
    picklog.base    a held record of the checkpoint that a copy begins with: the checkpoint's offset
    picklog.offset  a copied record: its offset in the log
    picklog.shift   an appended record: what to add to its offset in the topic

A record with any other header, or of another log id, means that the topic was recreated or is
used for something else. All of it survives retention: no record needs one before it.

Source: architecture 7.4, "a log copied into a topic keeps its offsets".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

PLACE = struct.Struct(">16sq")
ORIGIN_VALUE = b"a log of picklog"


class Role(Enum):
    """What a record of the topic is; the value is the header's name."""

    ORIGIN = "picklog.origin"
    BASE = "picklog.base"
    COPIED = "picklog.offset"
    APPENDED = "picklog.shift"


_ROLES = {role.value: role for role in Role}


class Told(NamedTuple):
    """What a header tells."""

    role: Role
    log_id: bytes
    number: int

    def offset(self, kafka_offset: int) -> int:
        """The record's offset in the log; for an origin the log's first one."""
        return kafka_offset + self.number if self.role is Role.APPENDED else self.number


def place_header(role: Role, log_id: bytes, number: int) -> tuple[str, bytes]:
    """The header of a record."""
    return role.value, PLACE.pack(log_id, number)


def read_place(headers: Sequence[tuple[str, bytes]]) -> Told | None:
    """What the headers of a record tell; None for a record that is none of ours."""
    for name, value in headers:
        role = _ROLES.get(name)
        if role is not None and len(value) == PLACE.size:
            log_id, number = PLACE.unpack(value)
            return Told(role, log_id, number)
    return None
