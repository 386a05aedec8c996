"""Bytes of ZMTP itself against the grammar's own examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.wire import zmtp_frames
from ingest.wire.zmtp_frames import (
    decode_message,
    encode_command,
    encode_frame,
    encode_message,
    encode_ready,
    metadata_of,
)
from tests.ingest.wire import fake_publisher as fake


def test_greeting_is_64_bytes_of_version_3_0_and_null() -> None:
    assert zmtp_frames.GREETING.hex() == "ff00000000000000007f03004e554c4c" + "00" * 48


def test_ready_names_a_sub() -> None:
    assert zmtp_frames.READY == encode_ready(b"SUB") == fake.ready_bytes(b"SUB")


def test_ready_of_the_standards_worked_example_is_met() -> None:
    assert encode_ready(b"DEALER", (b"Identity", b"")) == (
        b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
    )


@pytest.mark.parametrize(
    ("size", "header"),
    [(0, "0000"), (255, "00ff"), (256, "020000000000000100"), (70000, "020000000000011170")],
)
def test_size_takes_its_shortest_form(size: int, header: str) -> None:
    assert encode_frame(bytes(size)) == bytes.fromhex(header) + bytes(size)


def test_all_frames_of_a_message_but_the_last_announce_more() -> None:
    assert encode_message([b"a", b"", b"bc"]) == b"\x01\x01a\x01\x00\x00\x02bc"
    assert encode_message([b"x" * 256, b"y"])[:1] == b"\x03"


def test_command_carries_the_length_of_its_name() -> None:
    assert encode_command(b"PING", b"\x00\x05ab") == b"\x04\x09\x04PING\x00\x05ab"


@given(
    st.dictionaries(st.from_regex(rb"[a-z0-9+._-]{1,30}", fullmatch=True), st.binary(max_size=40), max_size=6)
)
def test_metadata_are_read_as_written(properties: dict[bytes, bytes]) -> None:
    raw = b"".join(
        bytes([len(name)]) + name.upper() + len(value).to_bytes(4, "big") + value
        for name, value in properties.items()
    )
    assert metadata_of(raw) == properties
    for end in range(1, len(raw)):  # a cut is noticed unless it falls between two properties
        read = metadata_of(raw[:end])
        assert read is None or list(read.items()) == list(properties.items())[: len(read)]


BODIES = st.one_of(st.binary(max_size=300), st.integers(250, 70_000).map(bytes))


@given(st.lists(BODIES, min_size=1, max_size=6))
def test_a_message_is_read_back_whole_and_no_part_of_it_is(frames: list[bytes]) -> None:
    data = encode_message(frames)
    assert decode_message(data) == tuple(frames)
    assert decode_message(data[:-1]) is None
    assert decode_message(data + b"\0") is None


@given(st.binary(max_size=64))
def test_any_bytes_are_one_message_or_none(data: bytes) -> None:
    found = decode_message(data)
    assert found is None or decode_message(encode_message(found)) == found
