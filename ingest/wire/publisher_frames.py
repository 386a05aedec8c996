"""The four frames of a publisher's message, and the load sample inside those of `kv_metrics`.

    frame 0   topic
    frame 1   publisher id, u64 big-endian
    frame 2   sequence, u64 big-endian, from 0 for each publisher
    frame 3   version (1), payload length u32 big-endian, payload = msgpack EventEnvelope

The envelope repeats the ids and the topic and carries the event as bytes; of `kv_metrics` that
is one ActiveLoad. Both are read as named maps and as positional arrays, unknown keys and
further items are ignored, absent and nil are alike (N-2). Numbers are unsigned integers: a
boolean, a float or a numeral in text is malformed.

Nothing here raises for any bytes. A refusal names its result and, where frame 2 could be read,
the sequence: a numbered message that is refused is still no gap (D 17). The declared length is
compared with its ceiling before anything is parsed; msgspec then decodes into fixed types, so a
hostile payload builds no tree of its own (D 39).

Sources: requirement rows LOAD-09..17; decisions 17, 39, 40, 62.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from projections.bounds import SAMPLE_PAYLOAD_BYTES_MAX
from projections.identity import DP_RANK_UNSET, U32_MAX
from projections.notices import FrameResult

KV_METRICS_TOPIC: Final = b"kv_metrics"
FRAMES: Final = 4
FRAME_VERSION: Final = 1
FRAME_HEADER_BYTES: Final = 5  # version and payload length
_ID_BYTES: Final = 8

Unsigned = Annotated[int, msgspec.Meta(ge=0)]  # msgpack itself ends at 64 bits
Rank = Annotated[int, msgspec.Meta(ge=0, le=U32_MAX)]


class Sample(NamedTuple):
    """One load sample of one rank. A load value is None where the engine did not tell it."""

    sequence: int
    published_at_ms: int  # Unix milliseconds by the publisher's clock, informative
    worker_id: int
    dp_rank: int
    active_decode_blocks: int | None
    active_prefill_tokens: int | None
    kv_used_blocks: int | None


class Opened(NamedTuple):
    """A message whose frames and envelope agree: the event's bytes, not yet read."""

    sequence: int
    published_at_ms: int
    event: bytes


class Refused(NamedTuple):
    """A message that counts for nothing but its sequence, which is None where frame 2 was no id."""

    result: FrameResult
    sequence: int | None


class _Envelope(msgspec.Struct, gc=False):
    publisher_id: Unsigned
    sequence: Unsigned
    published_at: Unsigned
    topic: str
    payload: bytes


class _EnvelopeItems(_Envelope, array_like=True, gc=False):
    pass


class _ActiveLoad(msgspec.Struct, gc=False):
    worker_id: Unsigned
    dp_rank: Rank | None = 0
    active_decode_blocks: Unsigned | None = None
    active_prefill_tokens: Unsigned | None = None
    kv_used_blocks: Unsigned | None = None


class _ActiveLoadItems(_ActiveLoad, array_like=True, gc=False):
    pass


_decode_envelope = msgspec.msgpack.Decoder(_Envelope).decode
_decode_envelope_items = msgspec.msgpack.Decoder(_EnvelopeItems).decode
_decode_load = msgspec.msgpack.Decoder(_ActiveLoad).decode
_decode_load_items = msgspec.msgpack.Decoder(_ActiveLoadItems).decode
_encode = msgspec.msgpack.Encoder().encode

# RecursionError: an unknown field nested thousands deep.
UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


def decode_sample_message(frames: Sequence[bytes], publisher_id: int) -> Sample | Refused:
    """Read one message of a `kv_metrics` subscription.

    frames: what the transport delivered, any number and lengths.
    publisher_id: the publisher that discovery announced at this address.
    A worker that is not live is the fold's to refuse; only the fold knows the fleet.
    """
    opened = open_message(frames, KV_METRICS_TOPIC, publisher_id, SAMPLE_PAYLOAD_BYTES_MAX)
    if isinstance(opened, Refused):
        return opened
    event = opened.event
    try:
        load = _decode_load_items(event) if is_array(event) else _decode_load(event)
    except UNREADABLE:
        return Refused(FrameResult.MALFORMED, opened.sequence)
    rank = load.dp_rank or 0
    if rank == DP_RANK_UNSET:
        return Refused(FrameResult.MALFORMED, opened.sequence)
    return Sample(
        opened.sequence,
        opened.published_at_ms,
        load.worker_id,
        rank,
        load.active_decode_blocks,
        load.active_prefill_tokens,
        load.kv_used_blocks,
    )


def open_message(
    frames: Sequence[bytes], topic: bytes, publisher_id: int, payload_bytes_max: int
) -> Opened | Refused:
    """Check the four frames and the envelope of one message of any topic.

    Order of the checks: count and lengths, topic, version, declared length, envelope, and then
    whether all three places agree on topic, publisher and sequence.
    """
    sequence = _sequence_of(frames)
    if len(frames) != FRAMES or sequence is None or len(frames[1]) != _ID_BYTES:
        return Refused(FrameResult.MALFORMED, sequence)
    if frames[0] != topic:
        return Refused(FrameResult.TOPIC_MISMATCH, sequence)
    body = frames[3]
    if len(body) < FRAME_HEADER_BYTES:
        return Refused(FrameResult.MALFORMED, sequence)
    if body[0] != FRAME_VERSION:
        return Refused(FrameResult.UNKNOWN_VERSION, sequence)
    payload_bytes = int.from_bytes(body[1:FRAME_HEADER_BYTES], "big")
    if payload_bytes > payload_bytes_max:
        return Refused(FrameResult.OVERSIZED, sequence)
    payload = body[FRAME_HEADER_BYTES:]
    if len(payload) != payload_bytes:
        return Refused(FrameResult.MALFORMED, sequence)
    try:
        envelope = _decode_envelope_items(payload) if is_array(payload) else _decode_envelope(payload)
    except UNREADABLE:
        return Refused(FrameResult.MALFORMED, sequence)
    if envelope.topic != topic.decode():
        return Refused(FrameResult.TOPIC_MISMATCH, sequence)
    framed_id = int.from_bytes(frames[1], "big")
    if not framed_id == envelope.publisher_id == publisher_id or envelope.sequence != sequence:
        return Refused(FrameResult.IDENTITY_MISMATCH, sequence)
    return Opened(sequence, envelope.published_at, envelope.payload)


def encode_sample_message(publisher_id: int, sample: Sample) -> tuple[bytes, bytes, bytes, bytes]:
    """The four frames that a Dynamo worker publishes for `sample`: named maps, nil fields present."""
    load = _ActiveLoad(
        sample.worker_id,
        sample.dp_rank,
        sample.active_decode_blocks,
        sample.active_prefill_tokens,
        sample.kv_used_blocks,
    )
    return encode_envelope_message(
        KV_METRICS_TOPIC, publisher_id, Opened(sample.sequence, sample.published_at_ms, _encode(load))
    )


def encode_envelope_message(
    topic: bytes, publisher_id: int, opened: Opened
) -> tuple[bytes, bytes, bytes, bytes]:
    """The four frames of one event of any topic."""
    payload = _encode(
        _Envelope(publisher_id, opened.sequence, opened.published_at_ms, topic.decode(), opened.event)
    )
    return (
        topic,
        publisher_id.to_bytes(_ID_BYTES, "big"),
        opened.sequence.to_bytes(_ID_BYTES, "big"),
        bytes((FRAME_VERSION,)) + len(payload).to_bytes(4, "big") + payload,
    )


def _sequence_of(frames: Sequence[bytes]) -> int | None:
    if len(frames) < 3 or len(frames[2]) != _ID_BYTES:
        return None
    return int.from_bytes(frames[2], "big")


def is_array(encoded: bytes | memoryview) -> bool:
    """Whether a msgpack value begins as an array (fixarray, array 16, array 32)."""
    return bool(encoded) and (0x90 <= encoded[0] <= 0x9F or 0xDC <= encoded[0] <= 0xDD)
