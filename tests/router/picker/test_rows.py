"""Bytes of candidate tables."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.events.picks import ExcludedReason, Verdict
from projections.identity import U32_MAX, U64_MAX
from router.picker.rows import CandidateRow, pack_rows, unpack_rows

NUMBER = st.integers(0, U64_MAX)
ROW = st.builds(
    CandidateRow,
    st.text(max_size=5),
    NUMBER,
    st.integers(0, U32_MAX),
    st.none() | st.floats(allow_nan=False),
    st.none() | NUMBER,
    st.none() | NUMBER,
    NUMBER,
    NUMBER,
    st.none() | NUMBER,
    st.sampled_from(Verdict),
    st.sampled_from(ExcludedReason),
    NUMBER,
    host_blocks=st.just(0),
    disk_blocks=st.just(0),
    predicted_blocks=st.just(0),
    credit=st.none(),
)
WITH_PREFIX = st.builds(
    lambda row, *prefix: CandidateRow(*row[:12], *prefix),
    ROW,
    NUMBER,
    NUMBER,
    NUMBER,
    st.floats(allow_nan=False),
)
PLAIN = CandidateRow("dynamo", 7, 1, 0.25, None, 3, 0, 10, None, Verdict.QUIET, ExcludedReason.NONE)


@given(st.lists(ROW, max_size=12) | st.lists(WITH_PREFIX, max_size=12))
def test_rows_come_back_as_they_were(rows: list[CandidateRow]) -> None:
    back = unpack_rows(pack_rows(rows))
    assert back == rows
    for row, again in zip(rows, back, strict=True):
        assert type(again.verdict) is Verdict and type(again.excluded) is ExcludedReason
        if row.cost is not None and again.cost is not None:
            assert math.copysign(1, row.cost) == math.copysign(1, again.cost)


def test_layout_is_as_documented() -> None:
    expected = (
        b"\x01\x01\x06\x00dynamo\x01\x00\x00\x00"
        b"\x00\x05\x02\x00"
        b"\x01\x00\x00\x00"
        b"\x07\x00\x00\x00\x00\x00\x00\x00"
        b"\x00\x00\x00\x00\x00\x00\xd0\x3f"
        + bytes(8)
        + b"\x03\x00\x00\x00\x00\x00\x00\x00"
        + bytes(8)
        + b"\x0a\x00\x00\x00\x00\x00\x00\x00"
        + bytes(16)
    )
    assert pack_rows([PLAIN]) == expected


def test_numbers_beyond_their_column_are_forced_into_it() -> None:
    wild = PLAIN._replace(active_decode_blocks=-5, unanswered_tokens=U64_MAX + 1, dp_rank=U32_MAX + 1)
    (row,) = unpack_rows(pack_rows([wild]))
    assert (row.active_decode_blocks, row.unanswered_tokens, row.dp_rank) == (0, U64_MAX, U32_MAX)
    assert row.cost == 0.25


@pytest.mark.parametrize("cut", range(1, len(pack_rows([PLAIN, PLAIN]))))
def test_cut_table_is_refused(cut: int) -> None:
    with pytest.raises(ValueError):
        unpack_rows(pack_rows([PLAIN, PLAIN])[:cut])


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused_with_a_value_error_or_read(data: bytes) -> None:
    try:
        rows = unpack_rows(data)
    except ValueError:
        return
    assert len(rows) * 72 <= len(data)


def test_other_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="layout 3"):
        unpack_rows(b"\x03" + pack_rows([PLAIN])[1:])


def test_table_with_the_prefix_term_has_a_layout_of_its_own() -> None:
    row = PLAIN._replace(overlap_blocks=9, host_blocks=3, disk_blocks=2, predicted_blocks=1, credit=0.25)
    plain, packed = pack_rows([PLAIN._replace(overlap_blocks=9)]), pack_rows([row])
    assert packed[:1] == b"\x02"
    assert packed[1 : len(plain)] == plain[1:]
    assert packed[len(plain) :] == struct.pack("<QQQd", 3, 2, 1, 0.25)


def test_table_of_one_layout_is_not_read_as_the_other() -> None:
    with pytest.raises(ValueError):
        unpack_rows(b"\x02" + pack_rows([PLAIN])[1:])
