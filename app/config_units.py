"""Durations, sizes and shares as people write them in YAML: `500ms`, `3s`, `7d`, `16MiB`, `25%`.

Each is a small ordered value that parses at the border, prints back in the shortest exact form, and tells
pydantic how to read and write it. Inside, time is integer microseconds and size is integer bytes.

A number without a unit is refused for a duration (seconds or milliseconds?) and means bytes for a size.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

DURATION_US_MAX = 3650 * 86_400_000_000
"""Ten years: longer spans are slips of the pen, and this keeps arithmetic far from 64 bits."""

SIZE_BYTES_MAX = 1 << 60
UNIT_TEXT_CHARACTERS_MAX = 64

_DURATION_US = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_SIZE_BYTES = {
    "TiB": 1 << 40,
    "GiB": 1 << 30,
    "MiB": 1 << 20,
    "KiB": 1 << 10,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "KB": 10**3,
    "kB": 10**3,
    "B": 1,
}
_DURATION_PART = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,6}))?(us|ms|s|m|h|d)")
_SIZE_TEXT = re.compile(r"([0-9]{1,19}) ?(TiB|GiB|MiB|KiB|TB|GB|MB|KB|kB|B)?")
_SHARE_TEXT = re.compile(r"([0-9]{1,3}) ?%")

_Value = TypeVar("_Value", bound="_UnitText")


class _UnitText:
    """What the three values share: how pydantic reads them, writes them and describes them."""

    __slots__ = ()
    _schema_pattern = ""

    @classmethod
    def read(cls, value: object) -> Self:
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.read, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "pattern": cls._schema_pattern}


@dataclass(frozen=True, slots=True, order=True)
class Duration(_UnitText):
    """A span of time, whole microseconds, 0 to ten years."""

    us: int
    _schema_pattern = r"^([0-9]+(\.[0-9]+)?(us|ms|s|m|h|d))+$"

    @classmethod
    def read(cls, value: object) -> "Duration":
        """From `500ms`, `3s`, `1h30m`. Raises ValueError for anything else; the message holds no input."""
        if isinstance(value, Duration):
            return value
        if not isinstance(value, str) or len(value) > UNIT_TEXT_CHARACTERS_MAX:
            raise ValueError(
                "is not a duration; write a number with us, ms, s, m, h or d, such as 500ms or 3s"
            )
        text, position, total_us = value.strip(), 0, 0
        while position < len(text) or position == 0:
            part = _DURATION_PART.match(text, position)
            if part is None:
                raise ValueError(
                    "is not a duration; write a number with us, ms, s, m, h or d, such as 500ms or 3s"
                )
            whole, fraction, unit = part.groups()
            scaled = int(whole + (fraction or "")) * _DURATION_US[unit]
            total_us += scaled // 10 ** len(fraction or "")
            position = part.end()
        if total_us > DURATION_US_MAX:
            raise ValueError("is longer than ten years")
        return cls(total_us)

    @property
    def seconds(self) -> float:
        return self.us / 1_000_000

    def __str__(self) -> str:
        for unit, unit_us in _DURATION_US.items():
            if self.us and self.us % unit_us == 0:
                return f"{self.us // unit_us}{unit}"
        return "0s"


@dataclass(frozen=True, slots=True, order=True)
class ByteSize(_UnitText):
    """An amount of bytes, 0 to 2^60."""

    count: int
    _schema_pattern = r"^[0-9]+ ?([KMGT]i?B|kB|B)?$"

    @classmethod
    def read(cls, value: object) -> "ByteSize":
        """From `16MiB`, `10GB` or a whole number of bytes. Raises ValueError; the message holds no input."""
        if isinstance(value, ByteSize):
            return value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SIZE_BYTES_MAX:
            return cls(value)
        parsed = _SIZE_TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
        if parsed is None:
            raise ValueError(
                "is not a size; write whole bytes or a number with KiB, MiB, GiB or TiB, such as 16MiB"
            )
        count = int(parsed.group(1)) * _SIZE_BYTES[parsed.group(2) or "B"]
        if count > SIZE_BYTES_MAX:
            raise ValueError("is larger than 2^60 bytes")
        return cls(count)

    def __str__(self) -> str:
        for unit, unit_bytes in _SIZE_BYTES.items():
            if unit.endswith("iB") and self.count and self.count % unit_bytes == 0:
                return f"{self.count // unit_bytes}{unit}"
        return f"{self.count}B"


@dataclass(frozen=True, slots=True)
class SizeOrShare(_UnitText):
    """A size in bytes, or a share of the file system that holds the data directory. One of the two is set."""

    size: ByteSize | None
    percent: int | None
    _schema_pattern = r"^([0-9]+ ?([KMGT]i?B|kB|B)?|[0-9]{1,3} ?%)$"

    @classmethod
    def read(cls, value: object) -> "SizeOrShare":
        """From `10GiB` or `25%`. Raises ValueError; the message holds no input."""
        if isinstance(value, SizeOrShare):
            return value
        share = _SHARE_TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
        if share is None:
            return cls(ByteSize.read(value), None)
        percent = int(share.group(1))
        if not 1 <= percent <= 100:
            raise ValueError("is a share outside 1% to 100%")
        return cls(None, percent)

    def bytes_of(self, file_system_bytes: int) -> int:
        """The ceiling in bytes on a file system of that many bytes."""
        if self.size is not None:
            return self.size.count
        return file_system_bytes * (self.percent or 0) // 100

    def __str__(self) -> str:
        return str(self.size) if self.size is not None else f"{self.percent}%"


def duration_within(lowest: str, highest: str) -> AfterValidator:
    """A pydantic bound: the duration lies in lowest..highest, both ends included."""
    return AfterValidator(_within(Duration.read(lowest), Duration.read(highest)))


def size_within(lowest: str, highest: str) -> AfterValidator:
    """A pydantic bound: the size lies in lowest..highest, both ends included."""
    return AfterValidator(_within(ByteSize.read(lowest), ByteSize.read(highest)))


def _within(lowest: Any, highest: Any) -> Callable[[_Value], _Value]:
    def check(value: _Value) -> _Value:
        if not lowest <= value <= highest:
            raise ValueError(f"must lie between {lowest} and {highest}")
        return value

    return check
