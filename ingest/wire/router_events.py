"""The kv-events inside the four frames of a `kv-events` message, as the packed columns of the log.

The payload is an array of RouterEvent maps; a bare map is the older form. Every level is read as
a named map and as a positional array, unknown keys and further items are ignored, absent and nil
are alike (N-2). Hashes are 64 bits however the engine wrote them: a signed integer is the same
hash as the unsigned one with its bits (B-064).

    RouterEvent      worker_id, storage_tier, residency_domain, event
    KvCacheEvent     event_id, data, dp_rank
    data             {"stored": {parent_hash, start_position, blocks}}, {"removed": {block_hashes}}
                     or "cleared"
    block            block_hash, tokens_hash

Nothing here raises for any bytes. One event that cannot be read costs itself, not its frame. What
becomes of its event id follows what could be lost: of a store only credit, so its head is kept
without blocks and nothing is missed; of anything else a removal, so its id is left out and the
fold finds a gap there, which clears the rank.

A tier that no release knows is not the device: the event keeps its id and no blocks. What a cache
owner holds outside the worker is `external`, whatever its tier says.

Big frames of the usual form take a way of their own, see `event_columns`; both ways say the same.

Sources: requirement rows KVX-03, KVX-05, KVX-06, KVX-19; decisions 11, 17, 39; B-048, B-062, B-064.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from ingest.wire.event_columns import FRAME_BYTES_MIN, array_head, usual_columns
from ingest.wire.event_packer import DEVICE, EXTERNAL, REMOVED, STORED, EventPacker, packed_hashes
from ingest.wire.publisher_frames import (
    FRAME_HEADER_BYTES,
    UNREADABLE,
    Rank,
    Refused,
    Unsigned,
    is_array,
    open_message,
)
from projections.bounds import KV_EVENTS_PER_FRAME_MAX, KV_FRAME_BYTES_MAX, KV_HASHES_PER_FRAME_MAX
from projections.events.signals import StorageTier
from projections.identity import DP_RANK_UNSET
from projections.notices import FrameResult

KV_EVENTS_TOPIC: Final = b"kv-events"
KV_PAYLOAD_BYTES_MAX: Final = KV_FRAME_BYTES_MAX - FRAME_HEADER_BYTES

_TIERS: Final = {tier.label: int(tier) for tier in StorageTier}
_CACHE_OWNER: Final = "cache_owner"
_NIL: Final = 0xC0


class KvFrame(NamedTuple):
    """The events of one message, packed as `KvBatchReceived` holds them.

    dropped: events that could not be read. heads is b"" where none is left.
    """

    sequence: int
    published_at_ms: int  # Unix milliseconds by the publisher's clock, informative
    heads: bytes
    hashes: bytes
    dropped: int


class _Block(msgspec.Struct, gc=False):
    block_hash: int
    tokens_hash: int


class _BlockItems(_Block, array_like=True, gc=False):
    pass


_Blocks = Annotated[list[_Block], msgspec.Meta(max_length=KV_HASHES_PER_FRAME_MAX // 2)]
_Hashes = Annotated[list[int], msgspec.Meta(max_length=KV_HASHES_PER_FRAME_MAX)]


# The named form as a whole: what every known release writes.


class _Stored(msgspec.Struct, gc=False):
    parent_hash: int | None = None
    blocks: _Blocks | None = None


class _Removed(msgspec.Struct, gc=False):
    block_hashes: _Hashes | None = None


class _Data(msgspec.Struct, gc=False):
    stored: _Stored | None = None
    removed: _Removed | None = None
    cleared: msgspec.Raw = msgspec.Raw()


class _Event(msgspec.Struct, gc=False):
    event_id: Unsigned
    data: _Data | str
    dp_rank: Rank | None = 0


class _RouterEvent(msgspec.Struct, gc=False):
    worker_id: Unsigned
    event: _Event
    storage_tier: str | None = None
    residency_domain: str | None = None


# Level by level: either form at each, and what is left of an event that cannot be read.


class _Outer(msgspec.Struct, gc=False):
    worker_id: Unsigned
    event: msgspec.Raw
    storage_tier: str | None = None
    residency_domain: str | None = None


class _OuterItems(msgspec.Struct, array_like=True, gc=False):
    worker_id: Unsigned
    storage_tier: str | None
    third: msgspec.Raw  # the event itself before there were domains
    fourth: msgspec.Raw = msgspec.Raw()


class _Inner(msgspec.Struct, gc=False):
    event_id: Unsigned
    data: msgspec.Raw
    dp_rank: Rank | None = 0


class _InnerItems(_Inner, array_like=True, gc=False):
    pass


class _Variants(msgspec.Struct, gc=False):
    stored: msgspec.Raw = msgspec.Raw()
    removed: msgspec.Raw = msgspec.Raw()
    cleared: msgspec.Raw = msgspec.Raw()


class _Chain(msgspec.Struct, gc=False):
    parent_hash: int | None = None
    start_position: msgspec.Raw = msgspec.Raw()  # holds its place in the positional form
    blocks: msgspec.Raw = msgspec.Raw()


class _ChainItems(_Chain, array_like=True, gc=False):
    pass


class _Names(msgspec.Struct, gc=False):
    block_hashes: msgspec.Raw = msgspec.Raw()


class _NamesItems(_Names, array_like=True, gc=False):
    pass


_Decoder = msgspec.msgpack.Decoder
_decode_all = _Decoder(Annotated[list[_RouterEvent], msgspec.Meta(max_length=KV_EVENTS_PER_FRAME_MAX)]).decode
_decode_one = _Decoder(_RouterEvent).decode
_decode_apart = _Decoder(
    Annotated[list[msgspec.Raw], msgspec.Meta(max_length=KV_EVENTS_PER_FRAME_MAX)]
).decode
_decode_outer, _decode_outer_items = _Decoder(_Outer).decode, _Decoder(_OuterItems).decode
_decode_inner, _decode_inner_items = _Decoder(_Inner).decode, _Decoder(_InnerItems).decode
_decode_chain, _decode_chain_items = _Decoder(_Chain).decode, _Decoder(_ChainItems).decode
_decode_names, _decode_names_items = _Decoder(_Names).decode, _Decoder(_NamesItems).decode
_decode_blocks, _decode_block_items = _Decoder(_Blocks).decode, _Decoder(list[_BlockItems]).decode
_decode_variants = _Decoder(_Variants).decode
_decode_hashes = _Decoder(_Hashes).decode
_decode_word = _Decoder(str | None).decode


class _Oversized(Exception):
    """A frame beyond its ceilings."""


class _Unfit(Exception):
    """Parts of an event that do not fit together."""


def decode_kv_message(frames: Sequence[bytes], publisher_id: int) -> KvFrame | Refused:
    """Read one message of a `kv-events` subscription.

    frames: what the transport delivered, any number and lengths.
    publisher_id: the publisher that discovery announced at this address.
    More than KV_EVENTS_PER_FRAME_MAX events or KV_HASHES_PER_FRAME_MAX hashes are refused as
    oversized. Which worker and rank may be spoken of is the fold's to judge.
    """
    opened = open_message(frames, KV_EVENTS_TOPIC, publisher_id, KV_PAYLOAD_BYTES_MAX)
    if isinstance(opened, Refused):
        return opened
    sequence, published_at_ms, event = opened
    columns = usual_columns(event) if len(event) >= FRAME_BYTES_MIN else None
    if columns is not None:
        return KvFrame(sequence, published_at_ms, *columns, 0)
    try:
        packer = _packed_whole(event) or _packed_apart(event)
    except _Oversized:
        return Refused(FrameResult.OVERSIZED, sequence)
    except UNREADABLE:
        return Refused(FrameResult.MALFORMED, sequence)
    return KvFrame(sequence, published_at_ms, *packer.columns(), packer.dropped)


def _packed_whole(event: bytes) -> EventPacker | None:
    """All events of the named form; None where one of them is anything else."""
    try:
        events = _decode_all(event) if is_array(event) else [_decode_one(event)]
    except UNREADABLE:
        return None
    packer = EventPacker()
    for said in events:
        inner = said.event
        rank, data = inner.dp_rank or 0, inner.data
        if said.storage_tier == "device" and said.residency_domain != _CACHE_OWNER:
            tier: int | None = DEVICE
        else:
            tier = _tier_of(said.storage_tier, said.residency_domain)
        if rank == DP_RANK_UNSET:
            return None
        if isinstance(data, str):
            if data != "cleared":
                return None
            packer.cleared(said.worker_id, rank, inner.event_id, tier or EXTERNAL)
            continue
        stored, removed = data.stored, data.removed
        if data.cleared or (stored is None) is (removed is None):
            return None
        if stored is not None:
            blocks, parent = stored.blocks if tier else None, stored.parent_hash
            if not blocks:
                hashes = []
            elif parent is None:
                hashes = [block.tokens_hash for block in blocks]
                hashes += [block.block_hash for block in blocks]
            elif len(blocks) == 1:
                hashes = [parent, blocks[0].tokens_hash, blocks[0].block_hash]
            else:
                hashes = [parent, *[block.tokens_hash for block in blocks]]
                hashes += [block.block_hash for block in blocks]
            packer.add(said.worker_id, rank, inner.event_id, STORED, tier or EXTERNAL, hashes)
        elif removed is not None:
            hashes = (removed.block_hashes if tier else None) or []
            packer.add(said.worker_id, rank, inner.event_id, REMOVED, tier or EXTERNAL, hashes)
        if packer.words > KV_HASHES_PER_FRAME_MAX:
            raise _Oversized
    return packer


def _packed_apart(event: bytes) -> EventPacker:
    """Each event by itself, in whatever form. Raises what UNREADABLE names where there are no events."""
    if is_array(event):
        if array_head(event)[0] > KV_EVENTS_PER_FRAME_MAX:
            raise _Oversized
        found: list[bytes] = [*_decode_apart(event)]
        if found and not _is_compound(memoryview(found[0])):
            found = [event]  # one event, positional
    elif _is_compound(event):
        found = [event]
    else:
        raise msgspec.ValidationError("neither an event nor an array of them")
    packer = EventPacker()
    for one in found:
        try:
            _add_event(packer, memoryview(one))
        except (*UNREADABLE, _Unfit):
            packer.dropped += 1
    return packer


def _add_event(packer: EventPacker, packed: memoryview) -> None:
    """Raises what UNREADABLE names, and _Unfit, for an event that cannot be read."""
    if is_array(packed):
        items = _decode_outer_items(packed)
        worker_id, tier_name = items.worker_id, items.storage_tier
        has_domain = not _is_compound(memoryview(items.third))
        event = memoryview(items.fourth if has_domain else items.third)
        domain = _decode_word(items.third) if has_domain else None
    else:
        outer = _decode_outer(packed)
        worker_id, event = outer.worker_id, memoryview(outer.event)
        tier_name, domain = outer.storage_tier, outer.residency_domain
    inner = _decode_inner_items(event) if is_array(event) else _decode_inner(event)
    rank, tier = inner.dp_rank or 0, _tier_of(tier_name, domain)
    if rank == DP_RANK_UNSET:
        raise _Unfit
    where = (worker_id, rank, inner.event_id, tier or EXTERNAL)
    if not _is_compound(memoryview(inner.data)):
        if _decode_word(inner.data) != "cleared":
            raise _Unfit
        return packer.cleared(*where)
    variants = _decode_variants(inner.data)
    if [bool(variants.stored), bool(variants.removed), bool(variants.cleared)].count(True) != 1:
        raise _Unfit
    if variants.cleared:
        return packer.cleared(*where)
    if variants.removed:
        return packer.removed(*where, _removed_of(memoryview(variants.removed), packer) if tier else b"")
    parent, hashes = None, b""
    try:
        if tier:
            parent, hashes = _stored_of(memoryview(variants.stored), packer)
    except UNREADABLE:
        packer.dropped += 1
    return packer.stored(*where, parent, hashes)


def _stored_of(packed: memoryview, packer: EventPacker) -> tuple[int | None, bytes]:
    """Parent and hashes (tokens, then engine's) of a chain in either form."""
    chain = _decode_chain_items(packed) if is_array(packed) else _decode_chain(packed)
    found = memoryview(chain.blocks)
    if not found or found[0] == _NIL:
        return None, b""
    count, at = array_head(found)
    _check_room(packer, 2 * count)
    blocks = (_decode_block_items if is_array(found[at:]) else _decode_blocks)(found)
    hashes = [block.tokens_hash for block in blocks]
    hashes += [block.block_hash for block in blocks]
    return chain.parent_hash, packed_hashes(hashes)


def _removed_of(packed: memoryview, packer: EventPacker) -> bytes:
    """Engine hashes of a removal in either form."""
    names = _decode_names_items(packed) if is_array(packed) else _decode_names(packed)
    found = memoryview(names.block_hashes)
    if not found or found[0] == _NIL:
        return b""
    _check_room(packer, array_head(found)[0])
    return packed_hashes(_decode_hashes(found))


def _check_room(packer: EventPacker, words: int) -> None:
    """Before memory is taken for what an array declares."""
    if packer.words + words > KV_HASHES_PER_FRAME_MAX:
        raise _Oversized


def _tier_of(name: str | None, domain: str | None) -> int | None:
    """The tier of an event, None for one that no release knows."""
    tier = DEVICE if name is None else _TIERS.get(name)
    return EXTERNAL if domain == _CACHE_OWNER and tier == DEVICE else tier


def _is_compound(packed: bytes | memoryview) -> bool:
    """Whether a msgpack value begins as a map or an array."""
    return bool(packed) and (0x80 <= packed[0] <= 0x9F or 0xDC <= packed[0] <= 0xDF)
