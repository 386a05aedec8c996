"""Fuzz targets of block events: what their decoders promise for any bytes whatever.

* `kv_message`: id frames and a body frame give a frame of events or a refusal; the columns of the
  events use up their hashes exactly, and are one record.
* `kv_events`: any payload; the quick way and the typed one say the same of what both read, and where
  a second, independent msgpack reader understands a payload of plain events, it reads the same ones.
* `engine`: any batch of an engine gives events with ids that only grow, or none; the fuzzed reader lives
  on from case to case only within one case's run, so that each case can be repeated alone.
"""

from __future__ import annotations

from typing import Any

import msgpack

from ingest.wire.engine_events import EngineReader
from ingest.wire.event_columns import usual_columns
from ingest.wire.publisher_frames import Refused
from ingest.wire.router_events import KvFrame, decode_kv_message
from projections.bounds import KV_EVENTS_PER_FRAME_MAX, KV_HASHES_PER_FRAME_MAX
from projections.events.signals import KV_EVENT_HEAD, KvOperation
from tests.fuzz.mutate import Target
from tests.ingest.wire.engine_batches import SOURCE, batch, stored_items, stored_map, tokens
from tests.ingest.wire.kv_messages import TOPIC, Told, event, message, removed, stored, told
from tests.ingest.wire.recorded import event_recordings, recorded_messages

PUBLISHER = 9
_ENVELOPE_BYTES = 200  # more than what stands before and behind the payload


def check_message(data: bytes) -> None:
    """16 bytes of id frames, then a body frame; the publisher expected is the one framed."""
    framed, sequence, body = data[:8], data[8:16], data[16:]
    answer = decode_kv_message([TOPIC, framed, sequence, body], int.from_bytes(framed, "big"))
    if isinstance(answer, Refused):
        assert answer.sequence == (int.from_bytes(sequence, "big") if len(sequence) == 8 else None)
        return
    assert 0 <= answer.published_at_ms < 2**64
    _check_columns(answer.heads, answer.hashes)


def check_events(data: bytes) -> None:
    """The payload of an envelope."""
    answer = decode_kv_message(message(data, 1, PUBLISHER), PUBLISHER)
    columns = usual_columns(data)
    if isinstance(answer, Refused):
        assert columns is None
        return
    said = _check_columns(answer.heads, answer.hashes)
    if columns is not None:  # the same events, one map more: the typed way reads them
        assert answer.dropped == 0
        typed = _typed(data)
        assert typed is None or (typed.heads, typed.hashes) == (answer.heads, answer.hashes), (
            "the ways differ"
        )
    plain = _read_otherwise(data)
    assert plain is None or answer.dropped or plain == said, f"another reader sees {plain}"


def check_engine(data: bytes) -> None:
    """A batch, read twice by one reader with a good one between."""
    reader = EngineReader(SOURCE)
    reader.begin(1)
    last: dict[int, int] = {}
    for packed in (data, batch(stored_items([1], tokens(1))), data):
        answer = reader.read(packed)
        if answer is None:
            continue
        assert 0 <= answer.published_at_ms < 2**64
        for one in _check_columns(answer.heads, answer.hashes):
            assert one.worker_id == SOURCE.instance_id
            assert one.event_id > last.get(one.dp_rank, 0), "ids go back"
            last[one.dp_rank] = one.event_id


def _check_columns(heads: bytes, hashes: bytes) -> list[Told]:
    assert len(heads) <= KV_EVENT_HEAD.size * KV_EVENTS_PER_FRAME_MAX
    assert len(hashes) <= 8 * KV_HASHES_PER_FRAME_MAX
    return told(heads, hashes)


def _typed(data: bytes) -> KvFrame | None:
    """The same array with an event of another form at its end, which the quick way does not read."""
    events = msgpack.unpackb(data, strict_map_key=False)
    longer = message(msgpack.packb([*events, event(0, "cleared", later=1)]), 1, PUBLISHER)
    found = decode_kv_message(longer, PUBLISHER)
    if isinstance(found, Refused):
        return None
    return found._replace(heads=found.heads[: -KV_EVENT_HEAD.size])


def _read_otherwise(data: bytes) -> list[Told] | None:
    """Events as the msgpack package reads them, None where they are not all plain and named."""
    try:
        events = msgpack.unpackb(data, strict_map_key=False, timestamp=0)
        return [_plain(one) for one in events]
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException, RecursionError):
        return None


def _plain(one: Any) -> Told:
    inner = one["event"]
    if one.get("storage_tier") != "device" or one.get("residency_domain") not in (None, "worker"):
        raise ValueError
    data, rank = inner["data"], inner.get("dp_rank") or 0
    where = one["worker_id"], rank, inner["event_id"]
    if data == "cleared":
        return Told(*where, KvOperation.CLEARED, 1, None, (), ())  # type: ignore[arg-type]  # compares equal
    ((name, content),) = data.items()
    if name == "removed":
        gone = tuple(number % 2**64 for number in content["block_hashes"])
        return Told(*where, KvOperation.REMOVED, 1, None, (), gone)  # type: ignore[arg-type]
    if name != "stored":
        raise ValueError
    names = tuple(block["block_hash"] % 2**64 for block in content["blocks"])
    held = tuple(block["tokens_hash"] % 2**64 for block in content["blocks"])
    parent = content.get("parent_hash")
    parent = parent % 2**64 if parent is not None and names else None
    return Told(*where, KvOperation.STORED, 1, parent, held, names)  # type: ignore[arg-type]


def kv_targets() -> list[Target]:
    """All targets of this file."""
    recorded = [frames for path in event_recordings() for frames in recorded_messages(path)[:10]]
    wide = [(2**63 + n, 2**62 + n) for n in range(150)]
    events = [
        msgpack.packb([event(1, stored(*wide, parent=5), 300), event(2, removed(*range(2**63, 2**63 + 9)))]),
        msgpack.packb([event(1, stored((-5, 7))), event(2, "cleared"), event(3, removed(1, 2, 3))]),
        msgpack.packb([[7, "device", "worker", [3, {"stored": [5, None, [[9, 8, None]]]}, 2]]]),
        msgpack.packb(event(4, stored(), storage_tier="disk", residency_domain="cache_owner")),
    ]
    for frames in recorded:
        payload = frames[3]
        at = payload.index(b"\xa7payload")
        assert at < _ENVELOPE_BYTES
        events.append(msgpack.unpackb(payload[5:])["payload"])
    digest = bytes(24) + bytes(range(8))
    engine = [
        batch(
            stored_items(
                [1, -2], tokens(2), digest, None, "GPU", "a", ["k" * 64, ["x", 3]], 0, "full_attention"
            )
        ),
        batch(
            stored_map(
                [digest], tokens(1), lora_name={"cache_salt": "s"}, block_mm_infos=[{"mm_objects": []}]
            )
        ),
        batch(["BlockRemoved", [1], "CPU", 1, "mamba"], ["AllBlocksCleared"], ["Ignored"], rank=3),
        batch(stored_items([1], [[1, 2]] * 16), {"type": "BlockRemoved", "block_hashes": [digest]}),
    ]
    return [
        Target("kv_message", [b"".join(frames[1:]) for frames in recorded], check_message),
        Target("kv_events", events, check_events),
        Target("engine", engine, check_engine),
    ]
