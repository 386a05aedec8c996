"""Four frames, envelope and load sample: recorded ones exactly, every other shape tolerated or refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.wire.publisher_frames import (
    Opened,
    Refused,
    Sample,
    decode_sample_message,
    encode_envelope_message,
    encode_sample_message,
    open_message,
)
from projections.notices import FrameResult
from tests.ingest.wire.recorded import event_recordings, recorded_messages, sample_recordings

U64_MAX = 2**64 - 1
PUBLISHER = 4_113_563_812_675_516
WORKER = 3_246_181_283_018_911_712
SEQUENCE = 7

captures = os.environ.get("PICKLOG_CAPTURES", "")
CAPTURED = sorted(Path(captures).glob("*/zmq.msgpack.gz")) if captures else []


def load(**changes: Any) -> dict[str, Any]:
    """An ActiveLoad as a named map; a change to `...` takes the field away."""
    fields = {
        "worker_id": WORKER,
        "dp_rank": 1,
        "active_decode_blocks": None,
        "active_prefill_tokens": None,
        "kv_used_blocks": 42,
    }
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def envelope(**changes: Any) -> dict[str, Any]:
    """An EventEnvelope as a named map around `load()`."""
    fields = {
        "publisher_id": PUBLISHER,
        "sequence": SEQUENCE,
        "published_at": 1_795_969_684_138,
        "topic": "kv_metrics",
        "payload": msgpack.packb(load()),
    }
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def frames_of(packed: object, **changes: Any) -> list[bytes]:
    """Four frames around an envelope (bytes stay as they are); `topic`, `publisher`, ... replace parts."""
    payload = packed if isinstance(packed, bytes) else msgpack.packb(packed)
    version, declared = changes.get("version", 1), changes.get("declared", len(payload))
    return [
        changes.get("topic", b"kv_metrics"),
        changes.get("publisher", PUBLISHER.to_bytes(8, "big")),
        changes.get("sequence", SEQUENCE.to_bytes(8, "big")),
        changes.get("body", bytes([version]) + declared.to_bytes(4, "big") + payload),
    ]


def decoded(packed: object, **changes: Any) -> Sample | Refused:
    """What becomes of those frames at a subscription to PUBLISHER."""
    return decode_sample_message(frames_of(packed, **changes), PUBLISHER)


def decoded_load(packed: object) -> Sample | Refused:
    """What becomes of an inner event."""
    return decoded(envelope(payload=packed if isinstance(packed, bytes) else msgpack.packb(packed)))


def refused(result: FrameResult, sequence: int | None = SEQUENCE) -> Refused:
    """The expected refusal."""
    return Refused(result, sequence)


GOOD = Sample(SEQUENCE, 1_795_969_684_138, WORKER, 1, None, None, 42)


# Recorded


@pytest.mark.req("LOAD-09", "LOAD-10", "LOAD-12", "ZMTP-13", "ZMTP-14")
@pytest.mark.parametrize(
    "path", [*sample_recordings(), *CAPTURED], ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_recorded_samples_are_decoded_and_encoded_byte_exactly(path: Path) -> None:
    last_sequences: dict[int, int] = {}
    for frames in recorded_messages(path):
        if frames[0] != b"kv_metrics":
            continue
        publisher_id = int.from_bytes(frames[1], "big")
        sample = decode_sample_message(frames, publisher_id)
        assert isinstance(sample, Sample)
        assert list(encode_sample_message(publisher_id, sample)) == frames
        assert sample.sequence == last_sequences.get(publisher_id, -1) + 1
        assert sample.active_prefill_tokens is None and sample.kv_used_blocks is not None
        last_sequences[publisher_id] = sample.sequence
    assert last_sequences


@pytest.mark.req("LOAD-09", "LOAD-10")
@pytest.mark.parametrize("path", event_recordings(), ids=lambda path: path.name)
def test_recorded_block_events_open_and_close_byte_exactly(path: Path) -> None:
    for frames in recorded_messages(path):
        publisher_id = int.from_bytes(frames[1], "big")
        opened = open_message(frames, b"kv-events", publisher_id, 1 << 20)
        assert isinstance(opened, Opened)
        assert isinstance(msgpack.unpackb(opened.event), list)
        assert list(encode_envelope_message(b"kv-events", publisher_id, opened)) == frames


@pytest.mark.req("LOAD-09", "LOAD-10", "LOAD-12")
def test_a_sample_written_out_by_hand_is_read() -> None:
    body = bytes.fromhex(
        "01000000ac"
        "85ac7075626c69736865725f6964cf000e9d01194f3fbca873657175656e636500ac7075626c69736865645f6174cf000001a22810bf70"
        "a5746f706963aa6b765f6d657472696373a77061796c6f6164c45a"
        "85a9776f726b65725f6964cf2d0b6511ab822fe0a764705f72616e6b00b46163746976655f6465636f64655f626c6f636b73c0"
        "b56163746976655f70726566696c6c5f746f6b656e73c0ae6b765f757365645f626c6f636b7300"
    )
    frames = [b"kv_metrics", bytes.fromhex("000e9d01194f3fbc"), bytes(8), body]
    assert decode_sample_message(frames, 0xE9D01194F3FBC) == Sample(
        0, 0x1A22810BF70, 0x2D0B6511AB822FE0, 0, None, None, 0
    )


# Tolerated


@pytest.mark.req("LOAD-10")
@pytest.mark.field("B-062")
@pytest.mark.parametrize("outer", ["map", "array"])
@pytest.mark.parametrize("inner", ["map", "array"])
def test_maps_and_positional_arrays_say_the_same(outer: str, inner: str) -> None:
    event = msgpack.packb(load() if inner == "map" else list(load().values()))
    whole = envelope(payload=event)
    assert decoded(whole if outer == "map" else list(whole.values())) == GOOD


@pytest.mark.req("LOAD-11")
@pytest.mark.field("B-062")
@pytest.mark.parametrize(
    "extra", [1_795_969_684_138_000_000, None, "text", [1, [2]], {"a": {"b": 1.5}}, b"\xff"]
)
def test_later_fields_are_ignored_in_both_encodings(extra: object) -> None:
    event = load() | {"scheduler_load_scope": extra}
    whole = envelope(payload=msgpack.packb(event)) | {"published_at_ns": extra}
    assert decoded(whole) == GOOD
    positional = [*envelope(payload=msgpack.packb([*load().values(), extra, extra])).values(), extra, extra]
    assert decoded(positional) == GOOD


def test_fields_may_come_in_any_order() -> None:
    event = dict(reversed(load().items()))
    assert decoded(dict(reversed(envelope(payload=msgpack.packb(event)).items()))) == GOOD


@pytest.mark.req("LOAD-12")
@pytest.mark.field("B-062")
@pytest.mark.parametrize("name", ["active_decode_blocks", "active_prefill_tokens", "kv_used_blocks"])
def test_load_value_may_be_absent_or_nil(name: str) -> None:
    values: dict[str, Any] = {name: None}
    expected = GOOD._replace(**values)
    assert decoded_load(load(**{name: ...})) == expected
    assert decoded_load(load(**{name: None})) == expected
    assert decoded_load(load(**{name: U64_MAX})) == GOOD._replace(**{name: U64_MAX})


@pytest.mark.req("LOAD-12")
def test_rank_is_zero_when_absent_or_nil() -> None:
    for event in (load(dp_rank=...), load(dp_rank=None)):
        assert decoded_load(event) == GOOD._replace(dp_rank=0)
    assert decoded_load([WORKER]) == GOOD._replace(dp_rank=0, kv_used_blocks=None)
    assert decoded_load(load(dp_rank=4294967294)) == GOOD._replace(dp_rank=4294967294)


def test_numbers_in_wider_forms_than_needed_are_read() -> None:
    event = b"\x82\xa9worker_id\xcf" + WORKER.to_bytes(8, "big") + b"\xa7dp_rank\xd3" + (1).to_bytes(8, "big")
    assert decoded_load(event) == GOOD._replace(kv_used_blocks=None)


# Refused


@pytest.mark.req("LOAD-12", "LOAD-13")
def test_rank_that_says_unset_is_malformed() -> None:
    assert decoded_load(load(dp_rank=4294967295)) == refused(FrameResult.MALFORMED)
    assert decoded_load([WORKER, 4294967295]) == refused(FrameResult.MALFORMED)


@pytest.mark.req("LOAD-13")
@pytest.mark.field("B-068")
def test_fewer_frames_than_four_are_malformed_and_tell_the_sequence_when_they_have_it() -> None:
    frames = frames_of(envelope())
    for count in (0, 1, 2):
        assert decode_sample_message(frames[:count], PUBLISHER) == refused(FrameResult.MALFORMED, None)
    assert decode_sample_message(frames[:3], PUBLISHER) == refused(FrameResult.MALFORMED)
    assert decode_sample_message([*frames, b""], PUBLISHER) == refused(FrameResult.MALFORMED)


@pytest.mark.req("LOAD-13")
@pytest.mark.parametrize("short", [b"", b"\x00", bytes(7), bytes(9)])
def test_id_frame_of_another_length_is_malformed(short: bytes) -> None:
    assert decoded(envelope(), publisher=short) == refused(FrameResult.MALFORMED)
    assert decoded(envelope(), sequence=short) == refused(FrameResult.MALFORMED, None)


@pytest.mark.req("LOAD-13")
@pytest.mark.parametrize("length", range(5))
def test_body_without_a_whole_header_is_malformed(length: int) -> None:
    assert decoded(envelope(), body=b"\x01\x00\x00\x00"[:length]) == refused(FrameResult.MALFORMED)


@pytest.mark.req("LOAD-13")
@pytest.mark.parametrize("difference", [-1, 1, 1000])
def test_declared_length_must_be_the_real_one(difference: int) -> None:
    payload = msgpack.packb(envelope())
    assert decoded(payload, declared=len(payload) + difference) == refused(FrameResult.MALFORMED)


@pytest.mark.req("LOAD-14")
@pytest.mark.parametrize("version", [0, 2, 255])
def test_other_versions_are_unknown_whatever_they_carry(version: int) -> None:
    assert decoded(envelope(), version=version) == refused(FrameResult.UNKNOWN_VERSION)
    assert decoded(b"\xc1", version=version, declared=2**32 - 1) == refused(FrameResult.UNKNOWN_VERSION)


@pytest.mark.req("LOAD-15")
@pytest.mark.parametrize("topic", ["kv_metrics-x", "kv-events", "", "kv_metric", "KV_METRICS"])
def test_another_topic_in_either_place_is_a_mismatch(topic: str) -> None:
    assert decoded(envelope(), topic=topic.encode()) == refused(FrameResult.TOPIC_MISMATCH)
    assert decoded(envelope(topic=topic)) == refused(FrameResult.TOPIC_MISMATCH)


@pytest.mark.req("LOAD-16")
@pytest.mark.parametrize("declared", [16385, 2**31, 2**32 - 1])
def test_payload_declared_above_16_kib_is_oversized_before_it_is_parsed(declared: int) -> None:
    assert decoded(b"\xc1", declared=declared) == refused(FrameResult.OVERSIZED)


@pytest.mark.req("LOAD-16")
def test_payload_of_exactly_16_kib_is_read() -> None:
    room = 16384 - len(msgpack.packb(envelope() | {"pad": bytes(10_000)})) + 10_000
    payload = msgpack.packb(envelope() | {"pad": bytes(room)})
    assert len(payload) == 16384
    assert decoded(payload) == GOOD
    over = msgpack.packb(envelope() | {"pad": bytes(room + 1)})
    assert decoded(over) == refused(FrameResult.OVERSIZED)


@pytest.mark.req("LOAD-17")
def test_ids_that_disagree_are_an_identity_mismatch() -> None:
    other = PUBLISHER + 1
    mismatch = refused(FrameResult.IDENTITY_MISMATCH)
    assert decoded(envelope(), publisher=other.to_bytes(8, "big")) == mismatch
    assert decoded(envelope(publisher_id=other)) == mismatch
    assert decode_sample_message(frames_of(envelope()), other) == mismatch
    assert decoded(envelope(sequence=SEQUENCE + 1)) == mismatch


BAD_VALUES: list[object] = [
    True,
    False,
    -1,
    1.0,
    "1",
    b"1",
    [],
    {},
    msgpack.Timestamp(1, 1),
    msgpack.ExtType(5, b"1"),
]


@pytest.mark.req("LOAD-13")
@pytest.mark.parametrize("name", list(load()))
@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
def test_load_number_of_another_type_is_malformed(name: str, value: object) -> None:
    assert decoded_load(load(**{name: value})) == refused(FrameResult.MALFORMED)
    assert decoded_load(list(load(**{name: value}).values())) == refused(FrameResult.MALFORMED)


@pytest.mark.req("LOAD-13")
@pytest.mark.parametrize("name", ["publisher_id", "sequence", "published_at"])
@pytest.mark.parametrize("value", [*BAD_VALUES, None, ...], ids=repr)
def test_envelope_number_of_another_type_or_none_is_malformed(name: str, value: object) -> None:
    assert decoded(envelope(**{name: value})) == refused(FrameResult.MALFORMED)


@pytest.mark.req("LOAD-13")
@pytest.mark.parametrize(
    "changes", [{"topic": 5}, {"topic": b"kv_metrics"}, {"payload": "text"}, {"payload": ...}]
)
def test_envelope_text_and_payload_of_another_type_are_malformed(changes: dict[str, object]) -> None:
    assert decoded(envelope(**changes)) == refused(FrameResult.MALFORMED)


@pytest.mark.parametrize("rank", [2**32, U64_MAX])
def test_rank_beyond_32_bits_is_malformed(rank: int) -> None:
    assert decoded_load(load(dp_rank=rank)) == refused(FrameResult.MALFORMED)


@pytest.mark.req("LOAD-13")
def test_load_without_a_worker_is_malformed() -> None:
    events: list[object] = [load(worker_id=...), load(worker_id=None), [], {}]
    for event in events:
        assert decoded_load(event) == refused(FrameResult.MALFORMED)


HOSTILE = {
    "nothing": b"",
    "never used byte": b"\xc1",
    "a number": b"\x05",
    "a string": b"\xa3abc",
    "map of 2^32 pairs": b"\xdf\xff\xff\xff\xff",
    "array of 2^32 items": b"\xdd\xff\xff\xff\xff",
    "string of 2^32 bytes": b"\x81\xdb\xff\xff\xff\xff",
    "map that ends early": b"\x85\xac",
    "number as a key": b"\x81\x01\x02",
    "key that is no UTF-8": b"\x81\xa2\xff\xfe\x01",
    "nested arrays": b"\x81\xa1x" + b"\x91" * 16_000 + b"\x01",
    "nested maps": b"\x81\xa1x" + b"\x81\xa1x" * 5_000 + b"\x01",
    "nested arrays, positional": b"\x96" + b"\x01" * 3 + b"\x91" * 16_000 + b"\x01",
}


@pytest.mark.req("LOAD-13")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_msgpack_is_malformed_outside_and_inside(name: str) -> None:
    assert decoded(HOSTILE[name]) == refused(FrameResult.MALFORMED)
    assert decoded_load(HOSTILE[name][:16_000]) == refused(FrameResult.MALFORMED)


@pytest.mark.parametrize("place", ["envelope", "load"])
def test_bytes_after_the_end_are_malformed(place: str) -> None:
    tail = b"\x00"
    if place == "envelope":
        assert decoded(msgpack.packb(envelope()) + tail) == refused(FrameResult.MALFORMED)
    else:
        assert decoded_load(msgpack.packb(load()) + tail) == refused(FrameResult.MALFORMED)


def test_topic_that_is_no_utf8_is_refused() -> None:
    payload = msgpack.packb(envelope()).replace(b"\xaakv_metrics", b"\xaakv_metric\xff")
    assert decoded(payload) == refused(FrameResult.MALFORMED)
    surrogate = msgpack.packb(envelope()).replace(b"\xaakv_metrics", b"\xaakv_metr\xed\xa0\x80")
    assert decoded(surrogate) in (refused(FrameResult.MALFORMED), refused(FrameResult.TOPIC_MISMATCH))


# Properties

u64 = st.integers(0, U64_MAX)
samples = st.builds(
    Sample,
    u64,
    u64,
    u64,
    st.integers(0, 2**32 - 2),
    st.none() | u64,
    st.none() | u64,
    st.none() | u64,
)


@given(publisher_id=u64, sample=samples)
def test_decoding_what_was_encoded_gives_the_sample_back(publisher_id: int, sample: Sample) -> None:
    assert decode_sample_message(encode_sample_message(publisher_id, sample), publisher_id) == sample


@settings(deadline=None)
@given(frames=st.lists(st.binary(max_size=64), max_size=6), publisher_id=u64)
def test_any_frames_give_a_value_and_never_raise(frames: list[bytes], publisher_id: int) -> None:
    answer = decode_sample_message(frames, publisher_id)
    assert isinstance(answer, Refused)
    readable = len(frames) > 2 and len(frames[2]) == 8
    assert answer.sequence == (int.from_bytes(frames[2], "big") if readable else None)
