"""Frames between a router and its render processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prompt.render_wire import LENGTH_BYTES, Frame, FrameBroken, Kind, frame_of, length_of, prefix_of


@given(st.sampled_from(Kind), st.binary(max_size=40), st.binary(max_size=40))
def test_a_frame_is_read_as_it_was_written(kind: Kind, head: bytes, body: bytes) -> None:
    data = prefix_of(kind, head, len(body)) + body
    assert length_of(data, 1000) == len(data) - LENGTH_BYTES
    assert frame_of(data[LENGTH_BYTES:]) == Frame(kind, head, body)


def test_a_length_above_its_ceiling_is_refused_before_anything_is_read() -> None:
    data = prefix_of(Kind.DONE, b"", 100)
    assert length_of(data, 105) == 105
    with pytest.raises(FrameBroken):
        length_of(data, 104)
    with pytest.raises(FrameBroken):
        length_of(b"\xff\xff\xff\xff", 1 << 20)
    with pytest.raises(FrameBroken):
        length_of(b"\x04\x00\x00\x00", 1 << 20)


@given(st.binary(min_size=5, max_size=60))
def test_no_bytes_do_more_than_break_a_frame(data: bytes) -> None:
    try:
        frame = frame_of(data)
    except FrameBroken:
        return
    assert len(frame.head) + len(frame.body) + 5 == len(data)
