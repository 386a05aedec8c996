"""JSON of others is read the same way everywhere, and never raises."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.bounds import RECORD_VALUE_BYTES_MAX, VALUE_NESTING_MAX
from projections.registry.json_text import (
    UNUSABLE,
    Unreadable,
    count_of,
    is_nested_too_deep,
    read_object,
    text_of,
)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", Unreadable.JSON),
        (b"{", Unreadable.JSON),
        (b"[1]", Unreadable.OBJECT),
        (b"null", Unreadable.OBJECT),
        (b'{"a": NaN}', Unreadable.JSON),
        (b'{"a": -Infinity}', Unreadable.JSON),
        (b'{"a": "\xff"}', Unreadable.TEXT),
        (b'\xef\xbb\xbf{"a": 1}', Unreadable.JSON),
        (b'{"a": 1} {"b": 2}', Unreadable.JSON),
        (b'{"a": "' + b"\n" + b'"}', Unreadable.JSON),
    ],
)
@pytest.mark.req("RED-09")
def test_what_is_no_json_object_is_refused_with_its_reason(value: bytes, reason: Unreadable) -> None:
    assert read_object(value) is reason


@pytest.mark.req("MEM-01")
def test_a_value_above_the_ceiling_is_refused_before_it_is_parsed() -> None:
    short = b'{"a": "' + b"x" * 100 + b'"}'
    assert isinstance(read_object(short), dict)
    long = b'{"a": "' + b"x" * RECORD_VALUE_BYTES_MAX + b'"}'
    assert read_object(long) is Unreadable.TOO_LONG


def test_nesting_at_the_ceiling_is_read_and_one_deeper_is_refused() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    assert isinstance(read_object(nested(VALUE_NESTING_MAX)), dict)
    assert read_object(nested(VALUE_NESTING_MAX + 1)) is Unreadable.NESTED
    assert read_object(b"[" * 1_000_000) is Unreadable.NESTED


def test_many_brackets_side_by_side_or_inside_of_strings_are_not_nesting() -> None:
    flat = json.dumps({"a": [[] for _ in range(1_000)], "b": "[" * 1_000, "c": '\\"[[[' * 100})
    assert not is_nested_too_deep(flat.encode())


def test_a_string_that_never_ends_costs_one_walk() -> None:
    for tail in (b"", b"\\"):
        assert read_object(b'{"a": "' + b'\\"[' * 300_000 + tail) is Unreadable.JSON


def test_numbers_that_no_field_can_hold_are_unusable() -> None:
    document = read_object(
        b'{"u64": 18446744073709551615, "above": 18446744073709551616, "long": '
        + b"9" * 10_000
        + b', "f": 1.5}'
    )
    assert document == {"u64": (1 << 64) - 1, "above": UNUSABLE, "long": UNUSABLE, "f": UNUSABLE}
    assert count_of(UNUSABLE) is None and text_of(UNUSABLE, 10) is None


def test_counts_are_whole_unsigned_and_bounded() -> None:
    assert [count_of(v, 10) for v in (0, 10, 11, -1, True, "3", None)] == [
        0,
        10,
        None,
        None,
        None,
        None,
        None,
    ]


def test_text_with_a_lone_surrogate_reads_as_absent() -> None:
    document = read_object(rb'{"bad": "\ud800", "pair": "\ud83d\ude00"}')
    assert isinstance(document, dict)
    assert text_of(document["bad"], 10) is None
    assert text_of(document["pair"], 10) == "\U0001f600"
    assert text_of("x" * 11, 10) is None


@given(st.binary(max_size=300))
def test_no_bytes_raise(value: bytes) -> None:
    assert isinstance(read_object(value), dict | Unreadable)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=4), _JSON, max_size=5))
def test_any_object_without_odd_numbers_is_read_as_it_is(document: dict[str, object]) -> None:
    assert read_object(json.dumps(document).encode()) == document
