"""The forms in which engines write block events: positional arrays and maps, read into one.

Source: wire contract 5.6; field reports B-062, B-064.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import msgspec

from ingest.wire.event_packer import packed_hashes
from ingest.wire.publisher_frames import is_array
from projections.bounds import KV_HASHES_PER_FRAME_MAX

_DIGEST_BYTES_MAX: Final = 64
_HASH_BYTES: Final = 8
_LOCALITIES: Final = frozenset(("LOCAL", "REMOTE"))


class UnfitHash(ValueError):
    """A block hash that is no hash."""


class StoredForm(NamedTuple):
    """A chain of blocks. hashes: big-endian u64. token_ids: packed msgpack, not yet read."""

    hashes: bytes
    parent: int | None
    token_ids: memoryview
    block_size: int | None
    medium: str | None
    lora: str | None
    salt: str | None
    extra_keys: Any
    mm_infos: Any
    group: Group


class RemovedForm(NamedTuple):
    """Blocks that are gone. hashes: big-endian u64."""

    hashes: bytes
    medium: str | None
    group: Group


class Group(NamedTuple):
    """Which kind of blocks an event speaks of, as far as it says so."""

    number: int | None
    kind: str | None
    locality: str | None


class Barrier(NamedTuple):
    """Everything is gone. is_effective: False for an event that means nothing."""

    is_effective: bool


_Hash = int | bytes
_Hashes = Annotated[list[_Hash], msgspec.Meta(max_length=KV_HASHES_PER_FRAME_MAX // 2)]


class _Salted(msgspec.Struct, gc=False):
    """SGLang's map in the place of the adapter."""

    cache_salt: str | None = None


class _Stored(msgspec.Struct, tag_field="type", tag="BlockStored", gc=False):
    block_hashes: _Hashes
    token_ids: msgspec.Raw
    parent_block_hash: _Hash | None = None
    block_size: int | None = None
    medium: str | None = None
    lora_name: str | _Salted | None = None
    cache_salt: str | None = None
    extra_keys: msgspec.Raw = msgspec.Raw()
    block_mm_infos: msgspec.Raw = msgspec.Raw()
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None


class _Removed(msgspec.Struct, tag_field="type", tag="BlockRemoved", gc=False):
    block_hashes: _Hashes
    medium: str | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None


class _Cleared(msgspec.Struct, tag_field="type", tag="AllBlocksCleared", gc=False):
    pass


class _Ignored(msgspec.Struct, tag_field="type", tag="Ignored", gc=False):
    pass


class _StoredItems(msgspec.Struct, array_like=True, tag="BlockStored", gc=False):
    block_hashes: _Hashes
    parent_block_hash: _Hash | None
    token_ids: msgspec.Raw
    block_size: int | None = None
    lora_id: msgspec.Raw = msgspec.Raw()
    medium: str | None = None
    lora_name: str | _Salted | None = None
    extra_keys: msgspec.Raw = msgspec.Raw()
    tail_0: msgspec.Raw = msgspec.Raw()
    tail_1: msgspec.Raw = msgspec.Raw()
    tail_2: msgspec.Raw = msgspec.Raw()
    tail_3: msgspec.Raw = msgspec.Raw()
    tail_4: msgspec.Raw = msgspec.Raw()
    tail_5: msgspec.Raw = msgspec.Raw()


class _RemovedItems(msgspec.Struct, array_like=True, tag="BlockRemoved", gc=False):
    block_hashes: _Hashes
    medium: str | None = None
    tail_0: msgspec.Raw = msgspec.Raw()
    tail_1: msgspec.Raw = msgspec.Raw()
    tail_2: msgspec.Raw = msgspec.Raw()
    tail_3: msgspec.Raw = msgspec.Raw()
    tail_4: msgspec.Raw = msgspec.Raw()


class _ClearedItems(msgspec.Struct, array_like=True, tag="AllBlocksCleared", gc=False):
    pass


class _IgnoredItems(msgspec.Struct, array_like=True, tag="Ignored", gc=False):
    pass


class _Shape(msgspec.Struct, gc=False):
    type: str


class _ShapeItems(_Shape, array_like=True, gc=False):
    pass


_Decoder = msgspec.msgpack.Decoder
_decode_named = _Decoder(_Stored | _Removed | _Cleared | _Ignored).decode
_decode_items = _Decoder(_StoredItems | _RemovedItems | _ClearedItems | _IgnoredItems).decode
_decode_any = _Decoder(Any).decode
_decode_shape = _Decoder(_Shape).decode
_decode_shape_items = _Decoder(_ShapeItems).decode


def read_engine_event(packed: bytes) -> StoredForm | RemovedForm | Barrier:
    """One event of either form. Raises UnfitHash, and what UNREADABLE names."""
    event = _decode_items(packed) if is_array(memoryview(packed)) else _decode_named(packed)
    if isinstance(event, _Stored):
        lora, salt = _adapter_of(event.lora_name, event.cache_salt)
        return StoredForm(
            _hashes(event.block_hashes), _parent(event.parent_block_hash), memoryview(event.token_ids),
            event.block_size, event.medium, lora, salt, _any(event.extra_keys), _any(event.block_mm_infos),
            Group(event.group_idx, event.kv_cache_spec_kind, event.locality),
        )  # fmt: skip
    if isinstance(event, _StoredItems):
        tail = [event.tail_0, event.tail_1, event.tail_2, event.tail_3, event.tail_4, event.tail_5]
        lora, salt = _adapter_of(event.lora_name, None)
        mm_infos = _any(tail[0]) if is_array(memoryview(tail[0])) else None
        return StoredForm(
            _hashes(event.block_hashes), _parent(event.parent_block_hash), memoryview(event.token_ids),
            event.block_size, event.medium, lora, salt, _any(event.extra_keys), mm_infos, _group_of(tail),
        )  # fmt: skip
    if isinstance(event, _Removed):
        group = Group(event.group_idx, event.kv_cache_spec_kind, event.locality)
        return RemovedForm(_hashes(event.block_hashes), event.medium, group)
    if isinstance(event, _RemovedItems):
        tail = [event.tail_0, event.tail_1, event.tail_2, event.tail_3, event.tail_4]
        return RemovedForm(_hashes(event.block_hashes), event.medium, _group_of(tail))
    return Barrier(isinstance(event, _Cleared | _ClearedItems))


def is_store(packed: bytes) -> bool:
    """Whether an event that could not be read was at least meant as a store. Never raises."""
    try:
        shape = _decode_shape_items(packed) if is_array(memoryview(packed)) else _decode_shape(packed)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False
    return shape.type == "BlockStored"


def _group_of(tail: list[msgspec.Raw]) -> Group:
    """The positional tail: places differ between releases, so values are told apart by type."""
    index: int | None = None
    texts: list[str] = []
    for packed in tail:
        value = None if is_array(memoryview(packed)) else _any(packed)
        if isinstance(value, str):
            texts.append(value)
        elif type(value) is int and not texts and index is None:
            index = value
    kind = texts.pop(0) if texts and texts[0] not in _LOCALITIES else None
    return Group(index, kind, texts[0] if texts else None)


def _adapter_of(lora: str | _Salted | None, salt: str | None) -> tuple[str | None, str | None]:
    return (None, lora.cache_salt or salt) if isinstance(lora, _Salted) else (lora, salt)


def _any(packed: msgspec.Raw) -> Any:
    return _decode_any(packed) if packed else None


def _parent(value: int | bytes | None) -> int | None:
    return None if value is None else _number(value)


def _hashes(values: list[int | bytes]) -> bytes:
    """Big-endian u64 of a column."""
    return packed_hashes([value if type(value) is int else _number(value) for value in values])


def _number(value: int | bytes) -> int:
    """A hash as a number; of a digest its last 8 bytes count. Raises UnfitHash."""
    if isinstance(value, int):
        return value
    if not _HASH_BYTES <= len(value) <= _DIGEST_BYTES_MAX:
        raise UnfitHash
    return int.from_bytes(value[-_HASH_BYTES:], "big")
