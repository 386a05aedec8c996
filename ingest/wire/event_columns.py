"""Big frames of kv-events in the form that Dynamo writes them, read column by column.

A stored block of the usual form takes 57 bytes, 41 of which are the same in every block:

    83  aa "block_hash"  cf ........  ab "tokens_hash"  cf ........  ad "mm_extra_info"  c0

So byte k of all block hashes of a frame is one slice with a step of 57, and no object is made for
a block. The 16 columns of hash bytes are moved to their place and then zeroed; what remains must
equal the skeleton, which checks every other byte of every block at once. Removed hashes (cf and
8 bytes each) are read in the same way. The heads between the blocks are matched by one regular
expression, at a position that the event before it fixed.

Whatever is not exactly of this form (a hash that msgpack wrote short, other keys, another order,
positional arrays) gives None, and the typed decoder reads the frame anew: both say the same of
every frame that both read (a property test). Measured by `bench/kv_frames.py`.

Sources: decision 11; wire contract, RouterEvent and KvCacheEvent.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ingest.wire.publisher_frames import is_array
from projections.events.signals import KV_EVENT_HEAD, KvOperation, StorageTier
from projections.identity import DP_RANK_UNSET, U32_MAX

BLOCKS_MIN: Final = 128  # fewer in a frame are read faster by the typed decoder
FRAME_BYTES_MIN: Final = 4_096  # smaller ones are not worth a look
EVENT_BYTES_MIN: Final = 1_024  # a frame's events are at least this long on average

_BLOCK_LEAD: Final = b"\x83\xaablock_hash\xcf"
_TOKENS_LEAD: Final = b"\xabtokens_hash\xcf"
_SKELETON: Final = _BLOCK_LEAD + bytes(8) + _TOKENS_LEAD + bytes(8) + b"\xadmm_extra_info\xc0"
_BLOCK_BYTES: Final = len(_SKELETON)
_ENGINE_AT: Final = len(_BLOCK_LEAD)
_TOKENS_AT: Final = _ENGINE_AT + 8 + len(_TOKENS_LEAD)
_REMOVED_BYTES: Final = 9

_UNSIGNED: Final = rb"([\x00-\x7f]|\xcc.|\xcd..|\xce.{4}|\xcf.{8})"
_COUNT: Final = rb"([\x90-\x9f]|\xdc..)"
_HEAD: Final = re.compile(
    rb"(\x83|\x84)\xa9worker_id" + _UNSIGNED + rb"\xacstorage_tier\xa6device(\xb0residency_domain\xa6worker)?"
    rb"\xa5event\x83\xa8event_id" + _UNSIGNED + rb"\xa4data\x81"
    rb"(?:\xa6stored\x83\xabparent_hash(\xc0|\xcf.{8})\xaestart_position\xc0\xa6blocks" + _COUNT
    + rb"|\xa7removed\x81\xacblock_hashes" + _COUNT + rb")",
    re.DOTALL,
)  # fmt: skip
_RANK: Final = re.compile(rb"\xa7dp_rank" + _UNSIGNED, re.DOTALL)


class Columns(NamedTuple):
    """The events of a frame as the log holds them (KvBatchReceived). hashes: big-endian u64."""

    heads: bytes
    hashes: bytes


def usual_columns(event: bytes) -> Columns | None:
    """Columns of a frame's events, None where they are not worth it or not of the usual form.

    event: the payload of an envelope, below the frame's ceiling.
    """
    events, at = array_head(event)
    if not events or len(event) < EVENT_BYTES_MIN * events:
        return None
    heads: list[tuple[int, int, int, int, bytes, int]] = []
    stored: list[bytes] = []
    removed: list[bytes] = []
    for _ in range(events):
        found = _HEAD.match(event, at)
        if found is None:
            return None
        size, worker, residency, event_id, parent, blocks, hashes = found.groups()
        if (size == b"\x84") is not (residency is not None):
            return None
        count = _count_of(blocks or hashes)
        stop = found.end() + count * (_REMOVED_BYTES if blocks is None else _BLOCK_BYTES)
        rank = _RANK.match(event, stop)
        if rank is None:
            return None
        (removed if blocks is None else stored).append(event[found.end() : stop])
        dp_rank = _number_of(rank[1])
        if dp_rank > U32_MAX or dp_rank == DP_RANK_UNSET:
            return None
        is_parent = count > 0 and parent is not None and parent != b"\xc0"  # of no blocks it means nothing
        operation = KvOperation.REMOVED if blocks is None else KvOperation.STORED
        head = (
            _number_of(worker),
            dp_rank,
            _number_of(event_id),
            operation,
            parent[1:] if is_parent else b"",
            count,
        )
        heads.append(head)
        at = rank.end()
    if at != len(event):
        return None
    return _joined(heads, b"".join(stored), b"".join(removed))


def _joined(
    heads: list[tuple[int, int, int, int, bytes, int]], stored: bytes, removed: bytes
) -> Columns | None:
    """All events' columns one after the other. stored, removed: the hashes of all events, as they came."""
    blocks = len(stored) // _BLOCK_BYTES
    if blocks < BLOCKS_MIN and len(stored) >= len(removed):
        return None
    both = _stored_hashes(stored, blocks)
    gone = _removed_hashes(removed)
    if both is None or gone is None:
        return None
    packed: list[bytes] = []
    hashes: list[bytes] = []
    token, engine, other = 0, 8 * blocks, 0
    pack = KV_EVENT_HEAD.pack
    for worker, dp_rank, event_id, operation, parent, count in heads:
        packed.append(
            pack(worker, dp_rank, event_id, operation, StorageTier.DEVICE, 1 if parent else 0, count)
        )
        size = 8 * count
        if operation == KvOperation.REMOVED:
            hashes.append(gone[other : other + size])
            other += size
        else:
            hashes += (parent, both[token : token + size], both[engine : engine + size])
            token += size
            engine += size
    return Columns(b"".join(packed), b"".join(hashes))


def _stored_hashes(stored: bytes, blocks: int) -> bytes | None:
    """All tokens hashes, then all engine hashes; None where a byte outside them is not the skeleton's."""
    rest = bytearray(stored)
    hashes = bytearray(16 * blocks)
    zeros = bytes(blocks)
    split = 8 * blocks
    for place in range(8):
        hashes[place:split:8] = rest[_TOKENS_AT + place :: _BLOCK_BYTES]
        rest[_TOKENS_AT + place :: _BLOCK_BYTES] = zeros
        hashes[split + place :: 8] = rest[_ENGINE_AT + place :: _BLOCK_BYTES]
        rest[_ENGINE_AT + place :: _BLOCK_BYTES] = zeros
    return bytes(hashes) if rest == _SKELETON * blocks else None


def _removed_hashes(removed: bytes) -> bytes | None:
    """The hashes without the byte that says that each is a full u64."""
    if removed[::_REMOVED_BYTES] != b"\xcf" * (len(removed) // _REMOVED_BYTES):
        return None
    hashes = bytearray(removed)
    del hashes[::_REMOVED_BYTES]
    return bytes(hashes)


def array_head(packed: bytes | memoryview) -> tuple[int, int]:
    """Declared length of a msgpack array and where its first item stands; (0, 0) where it is none."""
    if not is_array(packed):
        return 0, 0
    if packed[0] <= 0x9F:
        return packed[0] & 0x0F, 1
    size = 3 if packed[0] == 0xDC else 5
    return int.from_bytes(packed[1:size], "big"), size


def _count_of(head: bytes) -> int:
    return int.from_bytes(head[1:], "big") if len(head) > 1 else head[0] & 0x0F


def _number_of(packed: bytes) -> int:
    """An unsigned msgpack integer of any width."""
    return packed[0] if len(packed) == 1 else int.from_bytes(packed[1:], "big")
