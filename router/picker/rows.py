"""Candidate rows, and the bytes in which a pick records and digests them.

A packed table is little-endian, without padding, column after column:

    u8   layout: 1, or 2 with the prefix term
    u8   namespaces, then for each: u16 bytes of its UTF-8 name, the name
    u32  rows; then each of these columns, one value a row:
         u8  namespace, its place in the list above
         u8  which of cost (1), prefill tokens (2), decode blocks (4), age (8) are known
         u8  verdict
         u8  excluded reason
         u32 dp rank
         u64 instance id
         f64 cost
         u64 active prefill tokens
         u64 active decode blocks
         u64 unanswered tokens
         u64 unanswered blocks
         u64 sample age, microseconds
         u64 overlap blocks
       of layout 2 also:
         u64 host blocks
         u64 disk blocks
         u64 predicted blocks
         f64 credit

A table has layout 2 where its first row has a credit: the prefix term took part in all of
its rows or in none.

Unknown values are written as 0. Numbers above 64 bits are written as the largest, negative
ones as 0: a table always packs, whatever a fleet reported. No rows at all are no bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from projections.events.picks import ExcludedReason, Verdict
from projections.identity import U32_MAX, U64_MAX

LAYOUT = 1
LAYOUT_PREFIX = 2
TABLES_REMEMBERED = 256  # shapes of tables and lists of namespaces
_COST, _PREFILL, _DECODE, _AGE = 1, 2, 4, 8
ALL_KNOWN = _COST | _PREFILL | _DECODE | _AGE
_COLUMNS = {LAYOUT: "BBBBIQdQQQQQQ", LAYOUT_PREFIX: "BBBBIQdQQQQQQQQQd"}
_ROW_BYTES = {layout: struct.calcsize("<" + columns) for layout, columns in _COLUMNS.items()}
_COUNT = struct.Struct("<I")


class CandidateRow(NamedTuple):
    """One candidate of one phase at the time of the question.

    cost: with which it competed; None where it has none, or where costs decided nothing.
    active_prefill_tokens, active_decode_blocks: of the latest sample of any age, None
    without one or where nil; blocks fall back to kv_used_blocks.
    unanswered_tokens, unanswered_blocks: what dispatches without an answer add.
    overlap_blocks: whole blocks of the prompt from the root that it holds on the device, those
    included that only own picks predict, which are the last predicted_blocks of them.
    host_blocks, disk_blocks: how many more, without a hole, host memory and then disk hold.
    credit: in blocks, what these were worth; None where the prefix term took no part.
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
    host_blocks: int = 0
    disk_blocks: int = 0
    predicted_blocks: int = 0
    credit: float | None = None


def pack_rows(rows: Sequence[CandidateRow]) -> bytes:
    """The bytes of a table; equal tables have equal bytes."""
    if not rows:
        return b""
    count = len(rows)
    columns = [*zip(*rows, strict=True)]
    names, instances, ranks, costs, prefill, decode, tokens, blocks, ages, verdicts, excluded = columns[:11]
    overlaps, *lower, credits_ = columns[11:]
    layout = LAYOUT if credits_[0] is None else LAYOUT_PREFIX
    head, places = named(tuple(names), layout)
    known, optional = without_none((costs, prefill, decode, ages), count)
    wide = [ranks, instances, *optional[:3], tokens, blocks, optional[3], overlaps]
    if layout == LAYOUT_PREFIX:
        wide += [*lower, [credit or 0.0 for credit in credits_]]
    codes = _COLUMNS[layout][4:]
    try:
        numbers = _numbers(count, codes).pack(*chain.from_iterable(wide))
    except struct.error:
        numbers = _numbers(count, codes).pack(*chain.from_iterable(map(bounded, codes, wide)))
    return b"".join((head, _COUNT.pack(count), places, known, bytes(verdicts), bytes(excluded), numbers))


def unpack_rows(data: bytes) -> list[CandidateRow]:
    """The rows of `pack_rows`. Raises ValueError for bytes that it does not write."""
    if not data:
        return []
    try:
        names, offset = _names(data)
        (count,) = struct.unpack_from("<I", data, offset)
        offset += 4
        if len(data) != offset + count * _ROW_BYTES[data[0]]:
            raise ValueError(f"{len(data)} bytes are no table of {count} rows")
        columns = []
        for code in _COLUMNS[data[0]]:
            columns.append(struct.unpack_from(f"<{count}{code}", data, offset))
            offset += struct.calcsize(f"<{count}{code}")
        return [_row(names, fields) for fields in zip(*columns, strict=True)]
    except (struct.error, IndexError) as problem:
        raise ValueError("cut candidate table") from problem


@lru_cache(TABLES_REMEMBERED)
def _numbers(count: int, codes: str) -> struct.Struct:
    """Columns of so many numbers each."""
    return struct.Struct("<" + "".join(f"{count}{code}" for code in codes))


def without_none(columns: tuple[Any, ...], count: int) -> tuple[bytes, list[Any]]:
    """Which values are known, and the columns with 0 for those that are not.

    A column is mostly known in all rows or in none, so these two are told first.
    """
    everywhere, known, filled = 0, None, []
    for bit, column in zip((_COST, _PREFILL, _DECODE, _AGE), columns, strict=True):
        unknown = column.count(None)
        if not unknown:
            everywhere |= bit
            filled.append(column)
        elif unknown == count:
            filled.append(bytes(count))
        else:
            known = known or [0] * count
            for place, value in enumerate(column):
                if value is not None:
                    known[place] |= bit
            filled.append([0 if value is None else value for value in column])
    if known is None:
        return bytes((everywhere,)) * count, filled
    return bytes([bits | everywhere for bits in known]), filled


def named(names: tuple[str, ...], layout: int) -> tuple[bytes, bytes]:
    """Layout and list of namespaces, and each row's place in that list."""
    if names.count(names[0]) == len(names):
        return _head((names[0],), layout), bytes(len(names))
    distinct = tuple(sorted({*names}))
    place_of = {name: place for place, name in enumerate(distinct)}
    return _head(distinct, layout), bytes([place_of[name] for name in names])


@lru_cache(TABLES_REMEMBERED)
def _head(names: tuple[str, ...], layout: int) -> bytes:
    """Layout and list of namespaces."""
    head = [bytes((layout, len(names)))]
    for name in names:
        text = name.encode("utf-8", "surrogatepass")
        head += (struct.pack("<H", len(text)), text)
    return b"".join(head)


def bounded(code: str, values: Sequence[Any]) -> list[Any]:
    """A column with every number forced into its width."""
    if code == "d":
        return [*values]
    largest = U32_MAX if code == "I" else U64_MAX
    return [max(0, min(value, largest)) for value in values]


def _names(data: bytes) -> tuple[list[str], int]:
    """Namespace names of a packed table, and where its rows begin."""
    if data[0] not in _COLUMNS:
        raise ValueError(f"candidate table of layout {data[0]}")
    names, offset = [], 2
    for _ in range(data[1]):
        (length,) = struct.unpack_from("<H", data, offset)
        offset += 2
        names.append(data[offset : offset + length].decode("utf-8", "surrogatepass"))
        offset += length
    return names, offset


def _row(names: list[str], fields: tuple[Any, ...]) -> CandidateRow:
    place, known, verdict, excluded, rank, instance, cost, prefill, decode, tokens, blocks, age = fields[:12]
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
        *fields[12:],
    )
