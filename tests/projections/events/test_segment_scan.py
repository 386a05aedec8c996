from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.events.segment_format import (
    HEADER_BYTES,
    IndexBuilder,
    SegmentHeader,
    chain_start,
    encode_batch,
    encode_footer,
    encode_header,
    frame_records,
)
from projections.events.segment_scan import StopKind, scan
from tests.log_suite import record

HEADER = SegmentHeader(bytes(16), 40, b"markmark", 0, bytes(32))


class Built:
    """A segment of batches with 1, 2, 3, ... records, with the place where each batch ends."""

    def __init__(self, batches: int, sealed: bool = False) -> None:
        head, offset = chain_start(HEADER), HEADER.first_offset
        data, index = encode_header(HEADER), IndexBuilder()
        self.ends = [len(data)]
        self.offsets = [offset]
        self.records: list[bytes] = []
        for size in range(1, batches + 1):
            records = [record(offset + n) for n in range(size)]
            index.note(offset, len(data))
            batch, head = encode_batch(HEADER.mark, offset, records, head)
            data += batch
            offset += size
            self.ends.append(len(data))
            self.offsets.append(offset)
            self.records += records
        if sealed:
            footer, head = encode_footer(HEADER, offset, index.entries, head, len(data))
            data += footer
        self.data, self.head = data, head

    def good_until(self, position: int) -> int:
        """Offset after the last batch that ends at or before a byte position."""
        return max(offset for end, offset in zip(self.ends, self.offsets, strict=True) if end <= position)


def records_of(data: bytes) -> list[bytes]:
    found = scan(data, HEADER)
    return [one for frame in found.batches for one in frame_records(data, frame)]


def test_a_whole_segment_is_read_to_its_clean_end() -> None:
    built = Built(5)
    for tail in (b"", bytes(5000)):
        found = scan(built.data + tail, HEADER)
        assert (found.stop.kind, found.stop.position) == (StopKind.CLEAN, len(built.data))
        assert (found.end_offset, found.head) == (55, built.head)
        assert records_of(built.data + tail) == built.records


def test_a_sealed_segment_ends_at_its_footer() -> None:
    built = Built(5, sealed=True)
    found = scan(built.data, HEADER)
    assert (found.stop.kind, found.end_offset, found.head) == (StopKind.SEALED, 55, built.head)


def test_an_empty_segment_is_clean() -> None:
    found = scan(encode_header(HEADER), HEADER)
    assert (found.stop.kind, found.end_offset, found.batches) == (StopKind.CLEAN, 40, [])


@pytest.mark.parametrize("tail", [b"", bytes(300)])
def test_a_segment_cut_at_any_byte_is_torn_there_and_whole_before(tail: bytes) -> None:
    built = Built(4)
    for cut in range(HEADER_BYTES, len(built.data)):
        found = scan(built.data[:cut] + tail, HEADER)
        assert found.end_offset == built.good_until(cut)
        expected = StopKind.CLEAN if cut in built.ends else StopKind.TORN
        assert found.stop.kind in (expected, StopKind.CLEAN if not tail else expected)
        assert found.stop.position == max(end for end in built.ends if end <= cut)


def test_a_bit_flipped_before_the_last_batch_is_corruption_and_in_it_is_a_torn_tail() -> None:
    built = Built(4)
    for at in range(HEADER_BYTES, len(built.data)):
        data = built.data[:at] + bytes([built.data[at] ^ 0x40]) + built.data[at + 1 :]
        found = scan(data, HEADER)
        in_last = at >= built.ends[-2]
        assert found.stop.kind is (StopKind.TORN if in_last else StopKind.CORRUPT)
        assert found.end_offset == built.good_until(at)
        assert found.stop.detail


def test_a_bit_flipped_anywhere_in_a_sealed_segment_is_never_clean() -> None:
    built = Built(3, sealed=True)
    for at in range(HEADER_BYTES, len(built.data)):
        data = built.data[:at] + bytes([built.data[at] ^ 0x40]) + built.data[at + 1 :]
        found = scan(data, HEADER)
        assert found.stop.kind in (StopKind.CORRUPT, StopKind.TORN)
        if at < built.ends[-1]:
            assert found.stop.kind is StopKind.CORRUPT


def test_rubbish_after_the_last_batch_is_a_torn_tail() -> None:
    built = Built(3)
    found = scan(built.data + bytes(50) + b"x" + bytes(50), HEADER)
    assert (found.stop.kind, found.end_offset) == (StopKind.TORN, built.offsets[-1])


def test_a_batch_that_was_left_out_is_corruption() -> None:
    built = Built(4)
    data = built.data[: built.ends[1]] + built.data[built.ends[2] :]
    found = scan(data, HEADER)
    assert (found.stop.kind, found.end_offset) == (StopKind.CORRUPT, built.offsets[1])


def test_a_record_that_holds_the_bytes_of_a_batch_is_not_taken_for_one() -> None:
    inner, _ = encode_batch(b"othermrk", 41, [record(1)], bytes(32))
    batch, _ = encode_batch(HEADER.mark, 40, [record(0) + inner], chain_start(HEADER))
    data = encode_header(HEADER) + batch
    assert scan(data[:-3], HEADER).stop.kind is StopKind.TORN


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(HEADER_BYTES, 1500), st.binary(min_size=1, max_size=40)), max_size=4))
def test_overwritten_segments_give_a_true_prefix_or_nothing(edits: list[tuple[int, bytes]]) -> None:
    built = Built(6)
    data = bytearray(built.data)
    for at, new in edits:
        data[at : at + len(new)] = new
    found = records_of(bytes(data))
    assert found == built.records[: len(found)]
