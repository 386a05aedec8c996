"""One record <-> canonical bytes with a check word.

    u16 LE schema | msgpack array [kind, time, writer, epoch, sequence, fields...] | u64 LE check

The check word is xxh3-64 over everything before it. Equal facts encode to equal bytes
(minimal integers, doubles as 8 bytes, no maps), so an outcome is compared as bytes. The
bytes hold no offset: a record keeps its bytes wherever it is copied to.

Decoding refuses, as a function of the bytes alone, what no writer of ours produces: a
wrong check word, a type that the fact does not have, a missing field without default.
Further fields than the fact knows are ignored (a newer writer appended them).
"""

from __future__ import annotations

import struct
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgpack
import xxhash

from projections.bounds import RECORD_BYTES_MAX
from projections.events.envelope import WRITER_BYTES, Record
from projections.events.kinds import FACT_KINDS, FIRST_FIELDS, INNER, KIND_OF_FACT, SCHEMA, Kind

_SCHEMA = struct.Struct("<H")
_CHECK = struct.Struct("<Q")
_SCHEMA_BYTES = _SCHEMA.pack(SCHEMA)
_HEAD_FIELDS = 5  # kind, time, writer, epoch, sequence

_pack = msgpack.Packer(use_bin_type=True, autoreset=True, strict_types=False).pack
_unpackb = msgpack.unpackb
_xxh3 = xxhash.xxh3_64_intdigest
_read_check = _CHECK.unpack_from
_new: Any = tuple.__new__  # a named tuple's own constructor costs twice as much


class Refusal(Enum):
    """Why bytes are no record of ours."""

    TOO_SHORT = "too short"
    TOO_LONG = "longer than a record may be"
    CHECK_WORD = "check word differs"
    SCHEMA = "schema is newer than this release"
    NOT_MSGPACK = "not the canonical array"
    UNKNOWN_KIND = "unknown kind"
    FIELDS = "fields do not fit the kind"


class RecordRefused(ValueError):
    """Bytes that are no record. `reason` is a Refusal, `kind` the number where it was read."""

    def __init__(self, reason: Refusal, kind: int = 0) -> None:
        super().__init__(f"{reason.value} (kind {kind})" if kind else reason.value)
        self.reason = reason
        self.kind = kind


def encode_record(time: int, writer: bytes, epoch: int, sequence: int, fact: tuple[Any, ...]) -> bytes:
    """Canonical bytes of one record, check word included.

    Raises ValueError when they exceed RECORD_BYTES_MAX: a record is never split.
    """
    shorten = _SHORTENED.get(type(fact))
    fields = fact if shorten is None else shorten(fact)
    body: bytes = _SCHEMA_BYTES + _pack((KIND_OF_FACT[type(fact)], time, writer, epoch, sequence, *fields))
    if len(body) + _CHECK.size > RECORD_BYTES_MAX:
        raise ValueError(f"record of {len(body)} bytes is above {RECORD_BYTES_MAX}")
    return body + _CHECK.pack(_xxh3(body))


def encode_value(value: tuple[Any, ...]) -> bytes:
    """Canonical bytes of a part of a fact, for comparing and digesting."""
    shorten = _SHORTENED.get(type(value))
    packed: bytes = bytes(_pack(value if shorten is None else shorten(value)))
    return packed


def check_word(data: bytes) -> int:
    """The check word that a record's bytes end with (not verified; of shorter bytes, what there is)."""
    return int.from_bytes(data[-_CHECK.size :], "little")


def peek_kind(data: bytes) -> int:
    """The kind of record bytes without decoding them; 0 where there is none. Not verified."""
    head = data[_SCHEMA.size] if len(data) > _SCHEMA.size + 3 else 0
    if 0x90 <= head <= 0x9F:  # fixarray: the kind, a small integer, follows
        return data[_SCHEMA.size + 1]
    return data[_SCHEMA.size + 3] if head == 0xDC else 0  # array16


def decode_record(offset: int, data: bytes) -> Record:
    """The record at `offset`. Raises RecordRefused, nothing else, for any bytes."""
    check, values, fact = decode_parts(data)
    record: Record = _new(Record, (offset, check, *values[:_HEAD_FIELDS], fact))
    return record


def decode_parts(data: bytes) -> tuple[int, tuple[Any, ...], tuple[Any, ...]]:
    """A record as its check word, its values, of which the first five are the head, and its fact.

    The usual record passes by comparing the types of all its values, head included, with
    a shape that was checked before; identity decides, so the comparison costs next to
    nothing. Everything else takes the slow way. Raises RecordRefused as `decode_record`.
    """
    body = data[:-8]
    size = len(body)
    if not _SMALLEST <= size <= _LARGEST:
        raise RecordRefused(Refusal.TOO_LONG if size > _LARGEST else Refusal.TOO_SHORT)
    (check,) = _read_check(data, size)
    if _xxh3(body) != check:
        raise RecordRefused(Refusal.CHECK_WORD)
    if not body.startswith(_SCHEMA_BYTES):
        raise RecordRefused(Refusal.SCHEMA)
    try:
        values = _unpackb(body[2:], use_list=False, max_ext_len=0)
    except Exception as problem:  # msgpack raises several unrelated types for hostile bytes
        raise RecordRefused(Refusal.NOT_MSGPACK) from problem
    try:
        plan = _PLANS[values[0]]
        if [*map(type, values)] in plan.known and len(values[2]) == WRITER_BYTES:
            return check, values, _new(plan.fact, values[_HEAD_FIELDS:])
    except (KeyError, TypeError, IndexError):
        pass  # an unknown kind, or no array: told apart below
    return check, values, _build_slowly(values)


def _build_slowly(values: Any) -> tuple[Any, ...]:
    """The fact of values of any shape; remembers a plain shape once it was found right."""
    if type(values) is not tuple or len(values) < _HEAD_FIELDS:
        raise RecordRefused(Refusal.NOT_MSGPACK)
    kind, writer = values[0], values[2]
    shape = [*map(type, values)]
    if shape[:_HEAD_FIELDS] != _HEAD_SHAPE or len(writer) != WRITER_BYTES:
        raise RecordRefused(Refusal.NOT_MSGPACK)
    plan = _PLANS.get(kind)
    if plan is None:
        raise RecordRefused(Refusal.UNKNOWN_KIND, kind)
    fact: tuple[Any, ...] | None = plan.build(values[_HEAD_FIELDS:])
    if fact is None:
        raise RecordRefused(Refusal.FIELDS, kind)
    if plan.plain and len(values) == plan.values and len(plan.known) < _KNOWN_SHAPES_MAX:
        plan.known.append(shape)
    return fact


def owner_stamp(data: bytes) -> int | None:
    """The log time of an owner's record or claim, read from its head alone; None for any other bytes.

    The record is not verified: for looking through records that were verified before.
    """
    kind = peek_kind(data)
    at = 4 if data[2:3] != b"\xdc" else 6  # behind the kind, which is a small integer
    if kind == 0 or len(data) < _HEAD_BYTES_MAX // 2:
        return None
    if data[at] == 0xCF and data[at + 9 : at + 11] == b"\xc4\x10" and data[at + 27] < 0x80:
        epoch = data[at + 27]  # the usual widths: u64 time, 16 bytes of writer, small epoch
        time = int.from_bytes(data[at + 1 : at + 9], "big")
        return time if epoch >= 1 or kind == Kind.LANE_OPENED else None
    return _owner_stamp_slowly(data, kind)


def _owner_stamp_slowly(data: bytes, kind: int) -> int | None:
    """The same for heads of any widths."""
    try:
        head = msgpack.Unpacker(use_list=False, max_buffer_size=RECORD_BYTES_MAX)
        head.feed(data[2:_HEAD_BYTES_MAX])
        head.read_array_header()
        _kind, time, _writer, epoch = head.unpack(), head.unpack(), head.unpack(), head.unpack()
    except Exception:  # hostile bytes, see decode_record
        return None
    is_owned = type(epoch) is int and (epoch >= 1 or kind == Kind.LANE_OPENED)
    return time if is_owned and type(time) is int else None


_HEAD_SHAPE = [int, int, bytes, int, int]
_SMALLEST = _SCHEMA.size + 1
_LARGEST = RECORD_BYTES_MAX - _CHECK.size
_KNOWN_SHAPES_MAX = 64  # of one kind; further ones are checked each time
_HEAD_BYTES_MAX = 64  # schema, array head and the five head fields at their widest


def _shortener(fact: Any) -> Callable[[tuple[Any, ...]], tuple[Any, ...]] | None:
    """What leaves out later fields that hold their defaults, inside too; None where none can be."""
    inner = tuple(
        (index, short, many)
        for index, kind, many in INNER.get(fact, ())
        if (short := _shortener(kind)) is not None
    )
    first = FIRST_FIELDS.get(fact, len(fact._fields))
    later = tuple(fact._field_defaults[name] for name in fact._fields[first:])
    if not inner and not later:
        return None

    def shorten(value: tuple[Any, ...]) -> tuple[Any, ...]:
        if later:
            if value[first:] == later:
                value = value[:first]
            else:
                count = len(value)
                while value[count - 1] == later[count - 1 - first]:
                    count -= 1
                value = value[:count]
        if inner:
            fields = [*value]
            for index, short, many in inner:
                if index < len(fields) and fields[index] is not None:
                    fields[index] = tuple(map(short, fields[index])) if many else short(fields[index])
            value = tuple(fields)
        return value

    return shorten


_SHORTENED: dict[type, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = {
    fact: shorten
    for fact in (*KIND_OF_FACT, *INNER, *FIRST_FIELDS)
    if (shorten := _shortener(fact)) is not None
}


class _Plan:
    """How the fields of one kind become its fact.

    known: shapes (types of all values, head included) that were checked once; only for
    plain facts, whose fields hold no tuples: there the types alone decide.
    """

    __slots__ = ("build", "fact", "known", "plain", "values")

    def __init__(self, fact: Any) -> None:
        hints = typing.get_type_hints(fact)
        self.fact = fact
        self.build = _builder(fact)
        self.plain = fact not in INNER and not any(_has_tuple(hints[name]) for name in fact._fields)
        self.values = _HEAD_FIELDS + len(fact._fields)
        self.known: list[list[type]] = []


def _builder(fact: Any) -> Callable[[tuple[Any, ...]], Any]:
    """A function from decoded fields to the fact, or None where they do not fit.

    Accepted combinations of field types are remembered, so that the usual record costs
    one list of types and its comparison; fields that hold tuples are checked inside
    each time.
    """
    hints = typing.get_type_hints(fact)
    checks = tuple(_check_of(hints[name]) for name in fact._fields)
    deep = tuple((i, checks[i]) for i, name in enumerate(fact._fields) if _has_tuple(hints[name]))
    inner = tuple((index, _inner_builder(kind, many)) for index, kind, many in INNER.get(fact, ()))
    count = len(fact._fields)
    defaults = tuple(fact._field_defaults[n] for n in fact._fields if n in fact._field_defaults)
    known: list[list[type]] = []

    def fitted(values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if len(values) > count:
            return values[:count]
        missing = count - len(values)
        return values + defaults[len(defaults) - missing :] if missing <= len(defaults) else None

    def build(values: tuple[Any, ...]) -> Any:
        if len(values) != count:
            longer = fitted(values)
            if longer is None:
                return None
            values = longer
        if inner:
            fields = [*values]
            for index, make in inner:
                value = fields[index]
                if value is not None:
                    fields[index] = value = make(value) if type(value) is tuple else None
                    if value is None:
                        return None
            values = tuple(fields)
        shape = [*map(type, values)]
        if shape in known:
            for index, check in deep:
                if not check(values[index]):
                    return None
        elif not all(check(value) for check, value in zip(checks, values, strict=True)):
            return None
        elif len(known) < _KNOWN_SHAPES_MAX:
            known.append(shape)
        return _new(fact, values)

    return build


def _inner_builder(fact: Any, many: bool) -> Callable[[tuple[Any, ...]], Any]:
    """The same for one inner fact, or for a tuple of them."""
    build = _builder(fact)
    if not many:
        return build

    def build_many(values: tuple[Any, ...]) -> Any:
        made = tuple(build(one) if type(one) is tuple else None for one in values)
        return None if None in made else made

    return build_many


def _has_tuple(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple


def _check_of(hint: Any) -> Callable[[Any], bool]:
    """A predicate for values of an annotation: exact types, unions, tuples of these."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        options = tuple(_check_of(option) for option in typing.get_args(hint))
        return lambda value: any(option(value) for option in options)
    if origin is tuple:
        args = typing.get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            if isinstance(args[0], type) and args[0] is not tuple:
                only = {args[0]}
                return lambda value: type(value) is tuple and (not value or {*map(type, value)} == only)
            each = _check_of(args[0])
            return lambda value: isinstance(value, tuple) and all(map(each, value))
        parts = tuple(_check_of(arg) for arg in args)
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(part(one) for part, one in zip(parts, value, strict=True))
        )
    return lambda value: type(value) is hint


_PLANS: dict[int, _Plan] = {int(kind): _Plan(row.fact) for kind, row in FACT_KINDS.items()}
