"""Frames between a router process and the log's owner: functions over bytes.

    frame  = head | payload
    head   = "PLAP" | version u8 | type u8 | flag u16 | number u64 | records u32 | payload bytes u32

    HELLO         router   session (16)
    WELCOME       owner    log id (16) | end offset u64 | record schema u16
    BATCH         router   u32 length of each record | the records        flag: critical
    ACKNOWLEDGED  owner    first offset u64
    REFUSED       owner    reason u8 | text, UTF-8

All numbers are little-endian. In frames of the owner the flag says that only critical
records are taken now. `number` is the batch's own, drawn by the router; answers repeat it.
A head says how long its payload is, and is judged before memory is taken for that.

Both ends are of one release; the first five bytes and the head's size stay as they are,
so that ends of two releases can at least tell each other so.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import NamedTuple

from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX, RECORD_BYTES_MAX

PROTOCOL = 1
SESSION_BYTES = 16
REFUSAL_BYTES_MAX = 2_048

_MAGIC = b"PLAP"
_HEAD = struct.Struct("<4sBBHQII")
_WELCOME = struct.Struct("<16sQH")
_OFFSET = struct.Struct("<Q")
HEAD_BYTES = _HEAD.size


class FrameType(IntEnum):
    """What a frame is."""

    HELLO = 1
    WELCOME = 2
    BATCH = 3
    ACKNOWLEDGED = 4
    REFUSED = 5


class Reason(IntEnum):
    """Why the owner did not acknowledge."""

    FAILED = 1  # nothing of the batch is in the log
    FULL = 2  # for want of room
    UNCLEAR = 3
    OVER = 4  # the owner's log can be written no more
    BUSY = 5  # too many connections: nothing was read
    UNFIT = 6  # bytes that no router may write


class FrameRefused(ValueError):
    """Bytes that are no frame of ours, or none that is due here."""


class OtherProtocol(FrameRefused):
    """The other end speaks another version."""


class Head(NamedTuple):
    """A head that was judged. size: bytes of the payload that follows."""

    type: FrameType
    flag: bool
    number: int
    records: int
    size: int


class Welcome(NamedTuple):
    """What an owner says of its log. end_offset: one past its newest record then."""

    log_id: bytes
    end_offset: int
    schema: int


_PAYLOADS: dict[FrameType, tuple[int, int]] = {
    FrameType.HELLO: (SESSION_BYTES, SESSION_BYTES),
    FrameType.WELCOME: (_WELCOME.size, _WELCOME.size),
    FrameType.BATCH: (0, COMMIT_BATCH_BYTES_MAX + 4 * COMMIT_BATCH_RECORDS_MAX),
    FrameType.ACKNOWLEDGED: (_OFFSET.size, _OFFSET.size),
    FrameType.REFUSED: (1, 1 + REFUSAL_BYTES_MAX),
}
"""Smallest and largest payload of each type, bytes."""


def decode_head(data: bytes, *due: FrameType) -> Head:
    """A head of one of the types that are due. data: HEAD_BYTES.

    Raises FrameRefused: of a batch also where its numbers cannot be true.
    """
    magic, version, kind, flag, number, records, size = _HEAD.unpack(data)
    if magic != _MAGIC:
        raise FrameRefused("no frame begins here")
    if version != PROTOCOL:
        raise OtherProtocol(f"protocol {version}, this release speaks {PROTOCOL}")
    if kind not in due:
        raise FrameRefused(f"a frame of type {kind} is not due")
    smallest, largest = _PAYLOADS[FrameType(kind)]
    if not smallest <= size <= largest or flag > 1:
        raise FrameRefused(f"a frame of type {kind} with {size} bytes")
    if kind != FrameType.BATCH and records:
        raise FrameRefused(f"a frame of type {kind} with records")
    if kind == FrameType.BATCH and not (
        records <= COMMIT_BATCH_RECORDS_MAX and 0 <= size - 4 * records <= COMMIT_BATCH_BYTES_MAX
    ):
        raise FrameRefused(f"a batch of {records} records, {size} bytes")
    return Head(FrameType(kind), bool(flag), number, records, size)


def hello_frame(session: bytes) -> bytes:
    """session: 16 bytes drawn by a router process for all its connections."""
    return _frame(FrameType.HELLO, session)


def welcome_frame(welcome: Welcome, is_full: bool) -> bytes:
    """The owner's answer to a hello."""
    return _frame(FrameType.WELCOME, _WELCOME.pack(*welcome), flag=is_full)


def batch_frame(number: int, records: Sequence[bytes], critical: bool) -> bytes:
    """Records to commit as one batch, within the ceilings of a batch."""
    lengths = struct.pack(f"<{len(records)}I", *map(len, records))
    return _frame(FrameType.BATCH, b"".join((lengths, *records)), critical, number, len(records))


def acknowledged_frame(number: int, first_offset: int, is_full: bool) -> bytes:
    """The batch is durable from `first_offset` on."""
    return _frame(FrameType.ACKNOWLEDGED, _OFFSET.pack(first_offset), is_full, number)


def refused_frame(number: int, reason: Reason, text: str, is_full: bool) -> bytes:
    """The batch was not acknowledged; the text is cut at REFUSAL_BYTES_MAX."""
    payload = bytes((reason,)) + text.encode("utf-8", "replace")[:REFUSAL_BYTES_MAX]
    return _frame(FrameType.REFUSED, payload, is_full, number)


def welcome_of(payload: bytes) -> Welcome:
    """See welcome_frame."""
    return Welcome(*_WELCOME.unpack(payload))


def records_of(head: Head, payload: bytes) -> list[bytes]:
    """The records of a batch. Raises FrameRefused where lengths and bytes differ."""
    lengths = struct.unpack_from(f"<{head.records}I", payload)
    if max(lengths, default=0) > RECORD_BYTES_MAX:
        raise FrameRefused(f"a record of {max(lengths)} bytes")
    bounds = list(accumulate(lengths, initial=4 * head.records))
    if bounds[-1] != head.size:
        raise FrameRefused(f"records of {bounds[-1] - bounds[0]} bytes in a batch of {head.size}")
    return [bytes(payload[start:end]) for start, end in pairwise(bounds)]


def first_offset_of(payload: bytes) -> int:
    """See acknowledged_frame."""
    return int(_OFFSET.unpack(payload)[0])


def refusal_of(payload: bytes) -> tuple[Reason, str]:
    """See refused_frame. Raises FrameRefused for a reason that this release does not know."""
    try:
        reason = Reason(payload[0])
    except ValueError as problem:
        raise FrameRefused(f"refused for reason {payload[0]}") from problem
    return reason, payload[1:].decode("utf-8", "replace")


def _frame(kind: FrameType, payload: bytes, flag: bool = False, number: int = 0, records: int = 0) -> bytes:
    return _HEAD.pack(_MAGIC, PROTOCOL, kind, flag, number, records, len(payload)) + payload
