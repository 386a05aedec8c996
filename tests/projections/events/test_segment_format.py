from __future__ import annotations

from itertools import pairwise

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX
from projections.events.segment_format import (
    FRAME_HEAD_BYTES,
    HEADER_BYTES,
    INDEX_STEP_BYTES,
    TAIL_BYTES,
    IndexBuilder,
    IndexEntry,
    SegmentHeader,
    SegmentRefused,
    chain_start,
    decode_header,
    encode_batch,
    encode_footer,
    encode_header,
    footer_position,
    frame_records,
    frame_size,
    read_footer,
    read_frame,
    record_checks,
)
from tests.log_suite import record

HEADER = SegmentHeader(bytes(range(16)), 1 << 20, b"markmark", 1_790_000_000_000_000, bytes(range(32)))
HEAD = chain_start(HEADER)
RECORDS = [record(n, blob=n) for n in range(5)]


def test_a_header_comes_back_as_it_was_written() -> None:
    data = encode_header(HEADER)
    assert len(data) == HEADER_BYTES
    assert decode_header(data + b"what follows") == HEADER


def test_a_header_with_any_bit_flipped_is_refused() -> None:
    data = encode_header(HEADER)
    for at in range(HEADER_BYTES):
        with pytest.raises(SegmentRefused):
            decode_header(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])


def test_a_header_that_is_cut_short_is_refused() -> None:
    data = encode_header(HEADER)
    for size in range(HEADER_BYTES):
        with pytest.raises(SegmentRefused):
            decode_header(data[:size])


def test_the_bytes_of_a_batch_are_as_documented() -> None:
    data, head = encode_batch(b"markmark", 77, [b"first-record", b"second-record!"], bytes(32))
    payload = (12).to_bytes(4, "little") + (14).to_bytes(4, "little") + b"first-recordsecond-record!"
    start = b"markmark" + (77).to_bytes(8, "little") + (2).to_bytes(4, "little")
    start += len(payload).to_bytes(4, "little")
    assert head == blake3(bytes(32) + start + payload).digest()
    assert data == start + head + payload


def test_a_batch_comes_back_whole_and_with_a_tail_behind_it() -> None:
    data, head = encode_batch(HEADER.mark, 9, RECORDS, HEAD)
    for tail in (b"", b"\0" * 100, data):
        frame = read_frame(data + tail, 0, HEADER.mark, HEAD)
        assert (frame.first_offset, frame.records, frame.end, frame.head) == (9, 5, len(data), head)
        assert frame_records(data + tail, frame) == RECORDS


def test_a_batch_that_is_cut_anywhere_is_refused() -> None:
    data, _ = encode_batch(HEADER.mark, 9, RECORDS, HEAD)
    for size in range(len(data)):
        with pytest.raises(SegmentRefused):
            read_frame(data[:size], 0, HEADER.mark, HEAD)


def test_a_batch_with_any_bit_flipped_does_not_continue_the_chain() -> None:
    data, _ = encode_batch(HEADER.mark, 9, RECORDS, HEAD)
    for at in range(len(data)):
        with pytest.raises(SegmentRefused):
            read_frame(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], 0, HEADER.mark, HEAD)


def test_a_batch_after_another_chain_head_is_refused() -> None:
    data, _ = encode_batch(HEADER.mark, 9, RECORDS, HEAD)
    with pytest.raises(SegmentRefused, match="chain"):
        read_frame(data, 0, HEADER.mark, bytes(32))
    assert read_frame(data, 0, HEADER.mark, None).records == 5


def test_a_batch_of_another_segment_is_no_batch_here() -> None:
    data, _ = encode_batch(b"othermrk", 9, RECORDS, HEAD)
    assert frame_size(data, 0, HEADER.mark) is None


def test_batches_outside_the_ceilings_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="0 records"):
        encode_batch(HEADER.mark, 0, [], HEAD)
    with pytest.raises(ValueError, match="allowed"):
        encode_batch(HEADER.mark, 0, [b"x" * 11] * (COMMIT_BATCH_RECORDS_MAX + 1), HEAD)
    with pytest.raises(ValueError, match="above"):
        encode_batch(HEADER.mark, 0, [bytes(COMMIT_BATCH_BYTES_MAX // 2)] * 3, HEAD)


def test_a_claimed_size_above_the_ceiling_is_refused_before_it_is_read() -> None:
    data, _ = encode_batch(HEADER.mark, 9, RECORDS, HEAD)
    for count, size in ((5, 1 << 31), (COMMIT_BATCH_RECORDS_MAX + 1, 1 << 20), (0, 10), (1000, 10)):
        forged = data[:16] + count.to_bytes(4, "little") + size.to_bytes(4, "little") + data[24:]
        assert frame_size(forged, 0, HEADER.mark) is None


def test_lengths_that_do_not_add_up_are_refused() -> None:
    data, _ = encode_batch(HEADER.mark, 9, RECORDS, HEAD)
    forged = bytearray(data)
    forged[FRAME_HEAD_BYTES] += 1
    frame = read_frame(bytes(forged), 0, HEADER.mark, None)
    with pytest.raises(SegmentRefused, match="add up"):
        frame_records(bytes(forged), frame)


def test_a_footer_is_found_from_the_end_and_holds_its_index() -> None:
    entries = [IndexEntry(1 << 20, 128), IndexEntry((1 << 20) + 500, 70_000)]
    data, head = encode_footer(HEADER, 1 << 21, entries, HEAD, 4096)
    assert footer_position(data[-TAIL_BYTES:], HEADER) == 4096
    frame, found = read_footer(data, 0, HEADER, HEAD)
    assert (frame.first_offset, frame.head, found) == (1 << 21, head, entries)
    with pytest.raises(SegmentRefused, match="does not end"):
        read_footer(data + b"\0", 0, HEADER, HEAD)


def test_a_footer_with_any_bit_flipped_is_refused() -> None:
    data, _ = encode_footer(HEADER, 1 << 21, [IndexEntry(1 << 20, 128)], HEAD, 0)
    for at in range(len(data) - TAIL_BYTES):
        with pytest.raises(SegmentRefused):
            read_footer(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], 0, HEADER, HEAD)


def test_no_tail_bytes_are_taken_for_a_footer_by_chance() -> None:
    assert footer_position(bytes(TAIL_BYTES), HEADER) is None
    assert footer_position(b"", HEADER) is None


def test_the_sparse_index_names_a_batch_about_every_step() -> None:
    index = IndexBuilder()
    for n in range(1000):
        index.note(n * 10, HEADER_BYTES + n * (INDEX_STEP_BYTES // 4))
    positions = [entry.position for entry in index.entries]
    assert positions[0] == HEADER_BYTES
    assert len(positions) == 250
    assert all(b - a == INDEX_STEP_BYTES for a, b in pairwise(positions))


def test_noting_a_place_twice_adds_nothing() -> None:
    index = IndexBuilder()
    index.note(0, 128)
    index.note(0, 128)
    assert index.entries == [IndexEntry(0, 128)]


def test_check_words_tell_good_records_from_bad() -> None:
    good = record(3)
    assert record_checks(good)
    assert not record_checks(good[:-1] + b"x")
    assert not record_checks(b"short")


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused_and_nothing_else(data: bytes) -> None:
    marked = HEADER.mark + data
    for head in (HEAD, None):
        try:
            frame = read_frame(marked, 0, HEADER.mark, head)
            frame_records(marked, frame)
        except SegmentRefused:
            pass
    for read in (decode_header, lambda found: read_footer(HEADER.footer_mark + found, 0, HEADER, None)):
        with pytest.raises(SegmentRefused):
            read(data)
