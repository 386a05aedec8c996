"""JSON of the fleet, read the same way everywhere.

Values under the watched prefixes are written by others. They are read here so that equal
bytes give equal results on every interpreter: nesting is counted before parsing, so depth
never meets a recursion limit; `NaN` and `Infinity` are refused; a number that no field
could hold (a fraction, more than 64 bits) is UNUSABLE, and text that cannot be encoded (a
lone surrogate) reads as absent.

Nothing here raises for any bytes.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Any, Final, NoReturn

from projections.bounds import RECORD_VALUE_BYTES_MAX, VALUE_NESTING_MAX
from projections.identity import U64_MAX

# Possessive, and a string without an end reaches to the end: every byte is looked at once.
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_OPENING: Final = frozenset(b"[{")
_U64_DIGITS: Final = 20
UNUSABLE: Final = ()  # in the place of a number that no field can hold: of no JSON type


class Unreadable(Enum):
    """Why a value is no record. The text is for the log line."""

    TOO_LONG = "above the ceiling of a value"
    TEXT = "not UTF-8"
    NESTED = "nested too deep"
    JSON = "not JSON"
    OBJECT = "not a JSON object"
    TYPE = "record of another type"
    ID = "no instance id"


def read_object(value: bytes) -> dict[str, Any] | Unreadable:
    """The JSON object in `value`. Numbers that no field can hold are UNUSABLE inside it."""
    if len(value) > RECORD_VALUE_BYTES_MAX:
        return Unreadable.TOO_LONG
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return Unreadable.TEXT
    if is_nested_too_deep(value):
        return Unreadable.NESTED
    try:
        document = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return Unreadable.JSON
    return document if isinstance(document, dict) else Unreadable.OBJECT


def is_nested_too_deep(value: bytes) -> bool:
    """Whether brackets outside of strings are more than VALUE_NESTING_MAX deep."""
    brackets = _STRINGS.sub(b"", value).translate(None, _NO_BRACKETS)
    if len(brackets) <= VALUE_NESTING_MAX:
        return False
    depth = 0
    for bracket in brackets:
        if bracket not in _OPENING:
            depth -= 1
        elif depth >= VALUE_NESTING_MAX:
            return True
        else:
            depth += 1
    return False


def text_of(value: object, characters_max: int) -> str | None:
    """A string that can be encoded and is at most so long, else None."""
    if not isinstance(value, str) or len(value) > characters_max:
        return None
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value


def count_of(value: object, maximum: int = U64_MAX) -> int | None:
    """An unsigned integer up to `maximum`, else None. Booleans are no numbers."""
    if type(value) is not int or not 0 <= value <= maximum:
        return None
    return value


def object_of(value: object) -> dict[str, Any]:
    """A JSON object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no JSON")


def _integer(digits: str) -> int | tuple[()]:
    """At most 64 bits; never longer digits, whose conversion has limits of its own."""
    if len(digits) > _U64_DIGITS + 1:
        return UNUSABLE
    number = int(digits)
    return number if -U64_MAX <= number <= U64_MAX else UNUSABLE


def _fraction(_digits: str) -> tuple[()]:
    """No field of ours is a fraction."""
    return UNUSABLE


_DECODER: Final = json.JSONDecoder(
    parse_int=_integer, parse_float=_fraction, parse_constant=_refuse_constant, strict=True
)
