"""Frames between routers and the owner: there and back, and what is refused before memory is taken."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.log.socket_frames import (
    HEAD_BYTES,
    REFUSAL_BYTES_MAX,
    FrameRefused,
    FrameType,
    Head,
    OtherProtocol,
    Reason,
    Welcome,
    acknowledged_frame,
    batch_frame,
    decode_head,
    first_offset_of,
    hello_frame,
    records_of,
    refusal_of,
    refused_frame,
    welcome_frame,
    welcome_of,
)
from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX, RECORD_BYTES_MAX
from projections.identity import U64_MAX

EVERY_TYPE = tuple(FrameType)


def taken(frame: bytes) -> tuple[Head, bytes]:
    head, payload = decode_head(frame[:HEAD_BYTES], *EVERY_TYPE), frame[HEAD_BYTES:]
    assert head.size == len(payload)
    return head, payload


def head(
    kind: int, records: int, size: int, flag: int = 0, magic: bytes = b"PLAP", version: int = 1
) -> bytes:
    return struct.pack("<4sBBHQII", magic, version, kind, flag, 7, records, size)


@given(st.lists(st.binary(max_size=40), max_size=20), st.booleans(), st.integers(0, U64_MAX))
def test_a_batch_comes_back(records: list[bytes], critical: bool, number: int) -> None:
    found, payload = taken(batch_frame(number, records, critical))
    assert found == Head(FrameType.BATCH, critical, number, len(records), len(payload))
    assert records_of(found, payload) == records


def test_hello_and_welcome_come_back() -> None:
    assert taken(hello_frame(b"session-16-bytes"))[1] == b"session-16-bytes"
    welcome = Welcome(bytes(range(16)), U64_MAX, 3)
    found, payload = taken(welcome_frame(welcome, True))
    assert (found.type, found.flag, welcome_of(payload)) == (FrameType.WELCOME, True, welcome)


def test_answers_come_back() -> None:
    found, payload = taken(acknowledged_frame(8, 1 << 40, True))
    assert found[:3] == (FrameType.ACKNOWLEDGED, True, 8)
    assert first_offset_of(payload) == 1 << 40
    found, payload = taken(refused_frame(9, Reason.FULL, "kein Platz, Übermaß", False))
    assert found[:3] == (FrameType.REFUSED, False, 9)
    assert refusal_of(payload) == (Reason.FULL, "kein Platz, Übermaß")


def test_a_long_text_is_cut() -> None:
    _, payload = taken(refused_frame(1, Reason.FAILED, "ü" * REFUSAL_BYTES_MAX, False))
    assert len(refusal_of(payload)[1]) == REFUSAL_BYTES_MAX // 2


def test_a_reason_of_another_release_is_refused() -> None:
    with pytest.raises(FrameRefused):
        refusal_of(b"\xc8text")


def test_the_largest_batch_goes_through() -> None:
    record = bytes(COMMIT_BATCH_BYTES_MAX // COMMIT_BATCH_RECORDS_MAX)
    records = [record] * COMMIT_BATCH_RECORDS_MAX
    found, payload = taken(batch_frame(1, records, True))
    assert records_of(found, payload) == records


@pytest.mark.parametrize(
    "data",
    [
        head(FrameType.BATCH, 1, 5, magic=b"GET "),
        head(0, 0, 0),
        head(6, 0, 0),
        head(255, 0, 0),
        head(FrameType.HELLO, 0, 15),
        head(FrameType.HELLO, 0, 17),
        head(FrameType.HELLO, 1, 16),
        head(FrameType.WELCOME, 0, 16),
        head(FrameType.ACKNOWLEDGED, 0, 9),
        head(FrameType.REFUSED, 0, 0),
        head(FrameType.REFUSED, 0, REFUSAL_BYTES_MAX + 2),
        head(FrameType.BATCH, 0, 0xFFFFFFFF),
        head(FrameType.BATCH, 0xFFFFFFFF, 0xFFFFFFFF),
        head(FrameType.BATCH, 2, 7),
        head(FrameType.BATCH, 1, 4 + COMMIT_BATCH_BYTES_MAX + 1),
        head(FrameType.BATCH, COMMIT_BATCH_RECORDS_MAX + 1, 4 * COMMIT_BATCH_RECORDS_MAX + 4),
        head(FrameType.BATCH, 1, 5, flag=2),
    ],
)
def test_a_head_that_cannot_be_true_is_refused(data: bytes) -> None:
    with pytest.raises(FrameRefused):
        decode_head(data, *EVERY_TYPE)


def test_a_frame_that_is_not_due_is_refused() -> None:
    with pytest.raises(FrameRefused, match="not due"):
        decode_head(batch_frame(1, [], True), FrameType.HELLO)


def test_another_version_is_told_apart() -> None:
    with pytest.raises(OtherProtocol, match="protocol 2"):
        decode_head(head(99, 9, 9, version=2), FrameType.HELLO)


@pytest.mark.parametrize(
    ("lengths", "content"),
    [((3, 2), b"12345678"), ((3, 9), b"12345"), ((RECORD_BYTES_MAX + 1,), b"12345"), ((0,), b"1")],
)
def test_lengths_that_do_not_fit_the_bytes_are_refused(lengths: tuple[int, ...], content: bytes) -> None:
    payload = struct.pack(f"<{len(lengths)}I", *lengths) + content
    found = decode_head(head(FrameType.BATCH, len(lengths), len(payload)), FrameType.BATCH)
    with pytest.raises(FrameRefused):
        records_of(found, payload)


@given(st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES))
def test_random_heads_are_refused_or_within_bounds(data: bytes) -> None:
    for begins in (data, b"PLAP\x01" + data[5:]):
        try:
            found = decode_head(begins, *EVERY_TYPE)
        except FrameRefused:
            continue
        assert found.size <= COMMIT_BATCH_BYTES_MAX + 4 * COMMIT_BATCH_RECORDS_MAX
