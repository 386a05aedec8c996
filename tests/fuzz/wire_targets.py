"""Fuzz targets of the wire codecs: what each promises for any bytes whatever.

* `zmtp`: one stream gives the same messages, reason and answers whole and byte by byte (the
  first goes through the quick loop, the second never does); nothing but ZmtpRefused is raised;
  messages keep their bounds; memory stays near what has arrived.
* `zmtp_handshake`: the same from the first byte of the greeting on.
* `sample`: any body gives a Sample or a refusal; where a second, independent msgpack reader
  understands an accepted body, it reads the same numbers.
* `key`, `file_name`: any text gives parts or a refusal; accepted parts survive a round trip.
* `kv_message`, `kv_events`, `engine`: see `kv_targets`.
"""

from __future__ import annotations

from typing import Any

import msgpack

from ingest.wire.fleet_keys import KeyRefused, PublisherKeyParts, key_of, key_of_file, parse_key, text_of_key
from ingest.wire.publisher_frames import Refused, Sample, decode_sample_message, encode_sample_message
from ingest.wire.zmtp import ZmtpMachine, ZmtpRefused
from ingest.wire.zmtp_frames import Message, encode_message
from ingest.wire.zmtp_limits import KV_METRICS_LIMITS
from projections.events.discovery import Keyspace
from tests.fuzz.kv_targets import kv_targets
from tests.fuzz.mutate import Target
from tests.ingest.wire import fake_publisher as fake
from tests.ingest.wire.recorded import recorded_lines, recorded_messages, sample_recordings

TOPIC = b"kv_metrics"
HANDSHAKE = fake.greeting_bytes() + fake.ready_bytes()
BUFFERED_MAX = KV_METRICS_LIMITS.idle_bytes + 256 + 16 + KV_METRICS_LIMITS.frame_bytes_max[-1]


def _fed(chunks: list[bytes]) -> tuple[list[Message], object, int]:
    machine = ZmtpMachine(KV_METRICS_LIMITS, TOPIC)
    machine.bytes_to_send()
    messages: list[Message] = []
    raised = 0
    for chunk in chunks:
        try:
            messages += machine.receive_bytes(chunk)
        except ZmtpRefused as refused:
            messages += refused.messages
            raised += 1
        machine.bytes_to_send()
        assert machine.buffered_bytes <= BUFFERED_MAX, "memory beyond the ceilings"
    assert raised == (machine.reason is not None), "raised once, and only for a refusal"
    return messages, machine.reason, machine.buffered_bytes


def check_stream(data: bytes) -> None:
    """One whole connection."""
    whole = _fed([data])
    assert whole == _fed([data[at : at + 1] for at in range(len(data))]), "differs byte by byte"
    assert whole == _fed([data[at : at + 211] for at in range(0, len(data), 211)]), "differs in chunks"
    for message in whole[0]:
        assert 1 <= len(message) <= 4
        assert all(
            len(f) <= most for f, most in zip(message, KV_METRICS_LIMITS.frame_bytes_max, strict=False)
        )


def check_sample(data: bytes) -> None:
    """16 bytes of id frames, then a body frame; the publisher expected is the one framed."""
    framed, sequence, body = data[:8], data[8:16], data[16:]
    publisher_id = int.from_bytes(framed, "big")
    answer = decode_sample_message([TOPIC, framed, sequence, body], publisher_id)
    if isinstance(answer, Refused):
        assert answer.sequence == (int.from_bytes(sequence, "big") if len(sequence) == 8 else None)
        return
    assert all(value is None or (type(value) is int and 0 <= value < 2**64) for value in answer)
    assert answer.dp_rank < 2**32 - 1
    again = decode_sample_message(encode_sample_message(publisher_id, answer), publisher_id)
    assert again == answer, "does not survive its own encoding"
    other = _read_otherwise(body)
    assert other is None or other == answer, f"another reader sees {other}"


def _read_otherwise(body: bytes) -> Sample | None:
    """The sample as the msgpack package reads it, or None where that package gives up."""
    try:
        whole = _named(body[5:], ("publisher_id", "sequence", "published_at", "topic", "payload"))
        load = _named(
            whole["payload"],
            ("worker_id", "dp_rank", "active_decode_blocks", "active_prefill_tokens", "kv_used_blocks"),
        )
    except (ValueError, msgpack.UnpackException, TypeError, RecursionError):
        return None
    return Sample(
        whole["sequence"],
        whole["published_at"],
        load["worker_id"],
        load.get("dp_rank") or 0,
        load.get("active_decode_blocks"),
        load.get("active_prefill_tokens"),
        load.get("kv_used_blocks"),
    )


def _named(packed: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    value = msgpack.unpackb(packed, strict_map_key=False, timestamp=0)
    return value if isinstance(value, dict) else dict(zip(names, value, strict=False))


def check_key(data: bytes) -> None:
    """A key as etcd gives it."""
    text = text_of_key(data)
    if isinstance(text, KeyRefused):
        return
    parts = parse_key(text)
    if not isinstance(parts, KeyRefused):
        keyspace = Keyspace.CHANNELS if isinstance(parts, PublisherKeyParts) else Keyspace.CARDS
        written = key_of(keyspace, parts)
        if keyspace is Keyspace.CHANNELS:
            assert parse_key(written) == parts
        else:
            assert tuple(parse_key(written))[:4] == tuple(parts)[:4]


def check_file_name(data: bytes) -> None:
    """A file name as the operating system gives it."""
    name = data.decode("utf-8", "surrogateescape")
    for keyspace in Keyspace:
        key = key_of_file(keyspace, name)
        if isinstance(key, str):
            parse_key(key)


def _samples() -> list[bytes]:
    bodies = [b"".join(frames[1:]) for path in sample_recordings() for frames in recorded_messages(path)[:12]]
    ids = bytes(7) + b"\x09" + bytes(7) + b"\x03"
    load = [5, 1, None, 7, 8, "local"]
    positional = msgpack.packb([9, 3, 1, "kv_metrics", msgpack.packb(load), 77])
    bodies.append(ids + b"\x01" + len(positional).to_bytes(4, "big") + positional)
    return bodies


def targets() -> list[Target]:
    """All of them, corpora read anew."""
    recorded = [frames for path in sample_recordings() for frames in recorded_messages(path)[:8]]
    ping = fake.command_bytes(b"PING", b"\x00\x00ctx")
    big = fake.message_bytes([TOPIC, bytes(8), bytes(8), bytes(3000)])
    streams = [
        b"".join(encode_message(frames) for frames in recorded[:8]),
        encode_message(recorded[8]) + ping + encode_message(recorded[9]) + big,
        fake.message_bytes([TOPIC]) + fake.message_bytes([TOPIC, bytes(8)]) + encode_message(recorded[10]),
    ]
    handshakes = [
        HANDSHAKE,
        fake.greeting_bytes(3, 1) + fake.ready_bytes(b"XPUB", padding=20) + encode_message(recorded[0]),
        fake.greeting_bytes() + fake.ERROR_COMMAND.ready,
    ]
    keys = [str(line["key"]).encode() for line in recorded_lines("fleet_keys.jsonl.gz")]
    names = [str(line["file"]).rpartition("/")[2].encode() for line in recorded_lines("file_names.jsonl.gz")]
    return [
        Target("zmtp", streams, lambda data: check_stream(HANDSHAKE + data)),
        Target("zmtp_handshake", handshakes, check_stream),
        Target("sample", _samples(), check_sample),
        Target("key", keys, check_key),
        Target("file_name", names, check_file_name),
        *kv_targets(),
    ]
