"""Candidate rows, and the bytes in which a pick records and digests them.

A packed table is little-endian, without padding:

    u8   layout, 1
    u8   namespaces, then for each: u16 bytes of its UTF-8 name, the name
    u32  rows, then for each 72 bytes:
         u8  namespace, its place in the list above      u64 instance id     u32 dp rank
         u8  which of cost (1), prefill tokens (2), decode blocks (4), age (8) are known
         u8  verdict      u8  excluded reason
         f64 cost         u64 active prefill tokens      u64 active decode blocks
         u64 unanswered tokens   u64 unanswered blocks   u64 sample age, microseconds
         u64 overlap blocks

Unknown values are written as 0. Numbers above 64 bits are written as the largest, negative
ones as 0: a table always packs, whatever a fleet reported. No rows at all are no bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from projections.events.picks import ExcludedReason, Verdict
from projections.identity import U32_MAX, U64_MAX

LAYOUT = 1
_ROW = "BQIBBBdQQQQQQ"
_ROW_BYTES = struct.calcsize("<" + _ROW)
_COST, _PREFILL, _DECODE, _AGE = 1, 2, 4, 8
_STRUCTS_KEPT = 64
_FLOAT_COLUMN = 6


class CandidateRow(NamedTuple):
    """One candidate of one phase at the time of the question.

    cost: with which it competed; None where it has none, or where costs decided nothing.
    active_prefill_tokens, active_decode_blocks: of the latest sample of any age, None
    without one or where nil; blocks fall back to kv_used_blocks.
    unanswered_tokens, unanswered_blocks: what dispatches without an answer add.
    """

    namespace: str
    instance_id: int
    dp_rank: int
    cost: float | None
    active_prefill_tokens: int | None
    active_decode_blocks: int | None
    unanswered_tokens: int
    unanswered_blocks: int
    sample_age_us: int | None
    verdict: Verdict
    excluded: ExcludedReason
    overlap_blocks: int = 0


def pack_rows(rows: Sequence[CandidateRow]) -> bytes:
    """The bytes of a table; equal tables have equal bytes."""
    if not rows:
        return b""
    names = sorted({row[0] for row in rows})
    place_of = {name: place for place, name in enumerate(names)}
    head = [bytes((LAYOUT, len(names)))]
    for name in names:
        text = name.encode("utf-8", "surrogatepass")
        head += (struct.pack("<H", len(text)), text)
    flat: list[float] = []
    for name, instance, rank, cost, prefill, decode, tokens, blocks, age, verdict, excluded, overlap in rows:
        known = 0
        if cost is None:
            cost = 0.0
        else:
            known = _COST
        if prefill is None:
            prefill = 0
        else:
            known |= _PREFILL
        if decode is None:
            decode = 0
        else:
            known |= _DECODE
        if age is None:
            age = 0
        else:
            known |= _AGE
        flat += (
            place_of[name],
            instance,
            rank,
            known,
            verdict,
            excluded,
            cost,
            prefill,
            decode,
            tokens,
            blocks,
            age,
            overlap,
        )
    table = _table(len(rows))
    try:
        body = table.pack(len(rows), *flat)
    except struct.error:
        body = table.pack(len(rows), *_bounded(flat))
    return b"".join((*head, body))


def unpack_rows(data: bytes) -> list[CandidateRow]:
    """The rows of `pack_rows`. Raises ValueError for bytes that it does not write."""
    if not data:
        return []
    try:
        names, offset = _names(data)
        (count,) = struct.unpack_from("<I", data, offset)
        if len(data) != offset + 4 + count * _ROW_BYTES:
            raise ValueError(f"{len(data)} bytes are no table of {count} rows")
        return [_row(names, fields) for fields in struct.iter_unpack("<" + _ROW, data[offset + 4 :])]
    except (struct.error, IndexError) as problem:
        raise ValueError("cut candidate table") from problem


@lru_cache(maxsize=_STRUCTS_KEPT)
def _table(count: int) -> struct.Struct:
    return struct.Struct("<I" + _ROW * count)


def _bounded(flat: list[float]) -> list[float]:
    """Every integer forced into its column."""
    width = len(_ROW)
    bounded: list[float] = []
    for place, value in enumerate(flat):
        column = place % width
        if column == _FLOAT_COLUMN:
            bounded.append(value)
        else:
            bounded.append(max(0, min(int(value), U32_MAX if _ROW[column] == "I" else U64_MAX)))
    return bounded


def _names(data: bytes) -> tuple[list[str], int]:
    """Namespace names of a packed table, and where its rows begin."""
    if data[0] != LAYOUT:
        raise ValueError(f"candidate table of layout {data[0]}")
    names, offset = [], 2
    for _ in range(data[1]):
        (length,) = struct.unpack_from("<H", data, offset)
        offset += 2
        names.append(data[offset : offset + length].decode("utf-8", "surrogatepass"))
        offset += length
    return names, offset


def _row(names: list[str], fields: tuple[int, ...]) -> CandidateRow:
    place, instance, rank, known, verdict, excluded, cost, prefill, decode, tokens, blocks, age, overlap = (
        fields
    )
    return CandidateRow(
        names[place],
        instance,
        rank,
        cost if known & _COST else None,
        prefill if known & _PREFILL else None,
        decode if known & _DECODE else None,
        tokens,
        blocks,
        age if known & _AGE else None,
        Verdict(verdict),
        ExcludedReason(excluded),
        overlap,
    )
