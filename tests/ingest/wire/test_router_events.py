"""Block events of relaying workers: recorded ones, every form of theirs, and what else a peer may send."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.wire.event_columns import usual_columns
from ingest.wire.publisher_frames import Refused
from ingest.wire.router_events import KV_PAYLOAD_BYTES_MAX, KvFrame, decode_kv_message
from projections.bounds import (
    KV_EVENTS_PER_FRAME_MAX,
    KV_FRAME_BYTES_MAX,
    KV_HASHES_PER_FRAME_MAX,
    MIB,
    RECORD_BYTES_MAX,
)
from projections.events.codec import encode_record
from projections.events.signals import KV_EVENT_HEAD, KvBatchReceived, KvOperation, StorageTier
from projections.notices import FrameResult
from tests.ingest.wire.kv_messages import (
    AT_MS,
    PUBLISHER,
    WORKER,
    Told,
    event,
    message,
    removed,
    stored,
    told,
)
from tests.ingest.wire.recorded import event_recordings, recorded_messages

captures = os.environ.get("PICKLOG_CAPTURES", "")
CAPTURED = sorted(Path(captures).glob("*/zmq.msgpack.gz")) if captures else []
U64_MAX = 2**64 - 1
STORED, REMOVED, CLEARED = KvOperation
DEVICE = StorageTier.DEVICE


def read(payload: Any) -> KvFrame:
    found = decode_kv_message(message(payload), PUBLISHER)
    assert isinstance(found, KvFrame), found
    return found


def events(payload: Any) -> list[Told]:
    found = read(payload)
    assert found.dropped == 0
    return told(found.heads, found.hashes)


def refused(payload: Any) -> FrameResult:
    found = decode_kv_message(message(payload), PUBLISHER)
    assert isinstance(found, Refused)
    assert found.sequence == 7
    return found.result


def wide(number: int) -> int:
    return 2**63 + number


# Recorded and written out


@pytest.mark.req("KVX-05", "KVX-06", "ZMTP-13")
@pytest.mark.parametrize(
    "path", [*event_recordings(), *CAPTURED], ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_recorded_events_are_taken_whole_and_their_ids_follow_each_other(path: Path) -> None:
    last_ids: dict[tuple[int, int], int] = {}
    for frames in recorded_messages(path):
        if frames[0] != b"kv-events":
            continue
        publisher_id = int.from_bytes(frames[1], "big")
        found = decode_kv_message(frames, publisher_id)
        assert isinstance(found, KvFrame)
        assert found.dropped == 0
        said = msgpack.unpackb(msgpack.unpackb(frames[3][5:])["payload"])
        for one, raw in zip(told(found.heads, found.hashes), said, strict=True):
            key = publisher_id, one.dp_rank
            assert one.event_id == last_ids.get(key, 0) + 1
            last_ids[key] = one.event_id
            data = raw["event"]["data"]
            assert (one.worker_id, one.tier) == (raw["worker_id"], DEVICE)
            if one.operation is STORED:
                blocks = data["stored"]["blocks"]
                assert one.parent == data["stored"]["parent_hash"] or not blocks
                assert one.tokens == tuple(block["tokens_hash"] for block in blocks)
                assert one.engines == tuple(block["block_hash"] for block in blocks)
            else:
                assert one.engines == tuple(data["removed"]["block_hashes"])
    assert last_ids


@pytest.mark.req("KVX-05", "KVX-06")
def test_an_event_written_out_by_hand_is_read() -> None:
    packed = bytes.fromhex(
        "9184a9776f726b65725f6964cfce0acfc6fc35a72aac73746f726167655f74696572a6646576696365"
        "b07265736964656e63795f646f6d61696ea6776f726b6572a56576656e7483a86576656e745f696401a46461746181"
        "a673746f72656483ab706172656e745f68617368c0ae73746172745f706f736974696f6ec0a6626c6f636b7392"
        "83aa626c6f636b5f68617368cf98cf9a1ca7a4e60fab746f6b656e735f68617368cf98cf9a1ca7a4e60fad6d6d5f65787472615f696e666fc0"
        "83aa626c6f636b5f68617368cf2648db83d69b0a9aab746f6b656e735f68617368cf57aac9f6e9d5a2c1ad6d6d5f65787472615f696e666fc0"
        "a764705f72616e6b00"
    )
    first, engine, tokens = 0x98CF9A1CA7A4E60F, 0x2648DB83D69B0A9A, 0x57AAC9F6E9D5A2C1
    assert events(packed) == [Told(WORKER, 0, 1, STORED, DEVICE, None, (first, tokens), (first, engine))]


@pytest.mark.req("KVX-05")
def test_cleared_is_a_bare_word() -> None:
    packed = bytes.fromhex(
        "9183a9776f726b65725f6964cfce0acfc6fc35a72aac73746f726167655f74696572a6646576696365"
        "a56576656e7483a86576656e745f69640ca464617461a7636c6561726564a764705f72616e6b00"
    )
    assert events(packed) == [Told(WORKER, 0, 12, CLEARED, DEVICE, None, (), ())]


def test_the_frame_keeps_number_and_time_of_its_envelope() -> None:
    found = read([event(1, "cleared")])
    assert (found.sequence, found.published_at_ms) == (7, AT_MS)


# Forms


IMAGES = {"mm_objects": [{"mm_hash": 1, "offsets": [[0, 4]]}]}
NAMED_BLOCKS = stored((9, 8), (7, 6))["stored"]["blocks"]
FORMS = {
    "1.6.1": [event(3, stored((9, 8), (7, 6), parent=5), 2)],
    "1.4.2": [event(3, stored((9, 8), (7, 6), parent=5), 2, residency_domain=...)],
    "bare map": event(3, stored((9, 8), (7, 6), parent=5), 2),
    "other order": [dict(reversed(event(3, stored((9, 8), (7, 6), parent=5), 2).items()))],
    "later fields": [
        event(3, {"stored": {"parent_hash": 5, "blocks": stored((9, 8), (7, 6))["stored"]["blocks"],
              "start_position": 64, "shared_cache_eligible": True}}, 2,
              state_source={"a": [1]}, session_id="s")
    ],
    "images": [event(3, {"stored": {"parent_hash": 5, "blocks": [
        {"block_hash": 9, "tokens_hash": 8, "mm_extra_info": IMAGES},
        {"block_hash": 7, "tokens_hash": 6}]}}, 2)],
    "positional": [[WORKER, "device", "worker", [3, {"stored": [5, None, [[9, 8, 1], [7, 6, 1]]]}, 2], 1]],
    "older positional": [[WORKER, "device", [3, {"stored": [5, None, [[9, 8], [7, 6]]]}, 2]]],
    "one positional": [WORKER, "device", "worker", [3, {"stored": [5, None, [[9, 8], [7, 6]]]}, 2]],
    "mixed": [[WORKER, None, None, event(3, {"stored": [5, None, NAMED_BLOCKS]}, 2)["event"]]],
    "tier absent": [event(3, stored((9, 8), (7, 6), parent=5), 2, storage_tier=...)],
    "tier nil": [event(3, stored((9, 8), (7, 6), parent=5), 2, storage_tier=None, residency_domain=None)],
}  # fmt: skip


@pytest.mark.req("KVX-05", "KVX-06")
@pytest.mark.field("B-062")
@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_an_event_say_the_same(form: str) -> None:
    assert events(FORMS[form]) == [Told(WORKER, 2, 3, STORED, DEVICE, 5, (8, 6), (9, 7))]


@pytest.mark.parametrize("rank", [..., None])
def test_a_rank_that_is_absent_or_nil_is_0(rank: Any) -> None:
    inner = {"event_id": 1, "data": removed(4), "dp_rank": rank}
    said = {name: value for name, value in inner.items() if value is not ...}
    assert events([event(1, None, event=said)]) == [Told(WORKER, 0, 1, REMOVED, DEVICE, None, (), (4,))]


@pytest.mark.parametrize("data", ["cleared", {"cleared": None}, {"cleared": {}}])
def test_cleared_may_be_a_map_as_well(data: Any) -> None:
    assert events([event(1, data)]) == [Told(WORKER, 0, 1, CLEARED, DEVICE, None, (), ())]


@pytest.mark.req("KVX-06")
@pytest.mark.parametrize(
    "data", [stored(parent=9), {"stored": {"parent_hash": 9}}, {"stored": {"blocks": None}}, {"stored": {}}]
)
def test_a_store_of_no_blocks_keeps_its_id(data: Any) -> None:
    assert events([event(4, data)]) == [Told(WORKER, 0, 4, STORED, DEVICE, None, (), ())]


@pytest.mark.parametrize(
    "data", [removed(), {"removed": {}}, {"removed": {"block_hashes": None}}, {"removed": [[]]}]
)
def test_a_removal_of_no_blocks_keeps_its_id(data: Any) -> None:
    assert events([event(4, data)]) == [Told(WORKER, 0, 4, REMOVED, DEVICE, None, (), ())]


@pytest.mark.field("B-064")
def test_a_signed_hash_is_the_unsigned_one_with_its_bits() -> None:
    assert events([event(1, stored((-5, -1), parent=-(2**63))), event(2, removed(-5, 7))]) == [
        Told(WORKER, 0, 1, STORED, DEVICE, 2**63, (U64_MAX,), (U64_MAX - 4,)),
        Told(WORKER, 0, 2, REMOVED, DEVICE, None, (), (U64_MAX - 4, 7)),
    ]


@pytest.mark.req("KVX-06")
def test_repeated_hashes_of_one_event_stay_as_they_are() -> None:
    (one,) = events([event(1, stored((1, 2), (1, 2), (3, 2)))])
    assert (one.tokens, one.engines) == ((2, 2, 2), (1, 1, 3))


# Tiers


@pytest.mark.req("KVX-07")
@pytest.mark.parametrize("tier", StorageTier)
def test_every_tier_is_told_with_its_blocks(tier: StorageTier) -> None:
    (one,) = events([event(1, stored((9, 8), parent=7), storage_tier=tier.label)])
    assert (one.tier, one.parent, one.tokens) == (tier, 7, (8,))


@pytest.mark.req("KVX-07")
@pytest.mark.parametrize("data", [stored((9, 8), parent=7), removed(9)])
def test_a_tier_that_no_release_knows_is_not_the_device(data: Any) -> None:
    (one,) = events([event(1, data, storage_tier="moon")])
    assert (one.event_id, one.tier, one.parent, one.engines) == (1, StorageTier.EXTERNAL, None, ())


@pytest.mark.parametrize("data", [stored((9, 8)), removed(9), "cleared"])
def test_what_a_cache_owner_holds_is_outside_the_worker(data: Any) -> None:
    for said in (event(1, data), [WORKER, "device", "cache_owner", [1, data, 0]]):
        one = {**said, "residency_domain": "cache_owner"} if isinstance(said, dict) else said
        assert [found.tier for found in events([one])] == [StorageTier.EXTERNAL]


# Refused


BAD_STORES = [
    {"stored": None},
    {"stored": 5},
    {"stored": {"blocks": 5}},
    {"stored": {"blocks": [5]}},
    {"stored": {"blocks": [{"block_hash": 1}]}},
    {"stored": {"blocks": [{"block_hash": 1, "tokens_hash": 1.5}]}},
    {"stored": {"blocks": [{"block_hash": True, "tokens_hash": 1}]}},
    {"stored": {"blocks": [{"block_hash": "1", "tokens_hash": 1}]}},
    {"stored": {"parent_hash": "root", "blocks": []}},
    {"stored": {"parent_hash": "root", "blocks": [{"block_hash": 1, "tokens_hash": 1}]}},
]
BAD_OTHERS = [
    {"removed": 5},
    {"removed": {"block_hashes": [1, "2"]}},
    {"removed": {"block_hashes": 5}},
    {"stored": {}, "removed": {}},
    {"touched": {}},
    {},
    "gone",
    5,
    None,
]


@pytest.mark.req("KVX-19")
@pytest.mark.field("B-048")
@pytest.mark.parametrize("data", BAD_OTHERS)
def test_an_event_that_cannot_be_read_leaves_out_its_id_and_the_others_stand(data: Any) -> None:
    found = read([event(1, stored((1, 1))), event(2, data), event(3, removed(1))])
    assert [one.event_id for one in told(found.heads, found.hashes)] == [1, 3]
    assert found.dropped == 1


@pytest.mark.req("KVX-19")
@pytest.mark.field("B-048")
@pytest.mark.parametrize("data", BAD_STORES)
def test_a_store_that_cannot_be_read_costs_its_blocks_alone(data: Any) -> None:
    found = read([event(1, stored((1, 1))), event(2, data), event(3, removed(1))])
    said = told(found.heads, found.hashes)
    assert [(one.event_id, one.engines) for one in said] == [(1, (1,)), (2, ()), (3, (1,))]
    assert found.dropped == 1


@pytest.mark.req("KVX-19")
@pytest.mark.parametrize(
    "change",
    [
        {"worker_id": ...},
        {"worker_id": -1},
        {"worker_id": "7"},
        {"event": ...},
        {"event": None},
        {"event": {"data": "cleared"}},
        {"event": {"event_id": -1, "data": "cleared"}},
        {"event": {"event_id": 1.0, "data": "cleared"}},
        {"event": {"event_id": 1, "data": "cleared", "dp_rank": 2**32}},
        {"event": {"event_id": 1, "data": "cleared", "dp_rank": 2**32 - 1}},
        {"event": {"event_id": 1, "data": stored((1, 1)), "dp_rank": 2**32 - 1}},
        {"storage_tier": 5},
        {"residency_domain": 5},
    ],
)
def test_an_event_without_its_names_is_dropped(change: dict[str, Any]) -> None:
    found = read([event(1, "cleared", **change), event(2, "cleared")])
    assert [one.event_id for one in told(found.heads, found.hashes)] == [2]
    assert found.dropped == 1


@pytest.mark.req("KVX-19")
@pytest.mark.parametrize("payload", [b"", b"\xc1", 5, "cleared", None, b"\x91", b"\xdc\x00\x02\x80"])
def test_a_payload_that_is_no_event_at_all_is_malformed(payload: Any) -> None:
    assert refused(payload) is FrameResult.MALFORMED


@pytest.mark.parametrize("payload", [b"\x80", b"\x80\x80", b"\x81\xa1x\x00"])
def test_one_map_that_is_no_event_is_one_dropped_event(payload: bytes) -> None:
    assert read(payload) == KvFrame(7, AT_MS, b"", b"", 1)


def test_items_that_are_no_events_are_dropped() -> None:
    found = read([event(1, "cleared"), 5, None, [], {}, "x"])
    assert (len(found.heads), found.dropped) == (KV_EVENT_HEAD.size, 5)


def test_an_empty_frame_holds_no_events() -> None:
    assert read([]) == KvFrame(7, AT_MS, b"", b"", 0)


@pytest.mark.req("KVX-19")
def test_nesting_without_an_end_is_refused_or_dropped() -> None:
    deep = b"\x91" * 100_000 + b"\xc0"
    assert isinstance(decode_kv_message(message(deep), PUBLISHER), KvFrame | Refused)
    unknown = msgpack.packb(event(1, "cleared"))[:-1] + b"\x00"
    assert isinstance(read(b"\x91" + unknown), KvFrame)
    field = b"\x85" + unknown[1:] + b"\xa1x" + deep
    found = decode_kv_message(message(b"\x91" + field), PUBLISHER)
    assert isinstance(found, KvFrame | Refused)


def test_a_foreign_envelope_is_refused_as_for_samples() -> None:
    frames = message([event(1, "cleared")])
    assert decode_kv_message(frames, PUBLISHER + 1) == Refused(FrameResult.IDENTITY_MISMATCH, 7)
    assert decode_kv_message((b"kv-events-x", *frames[1:]), PUBLISHER) == Refused(
        FrameResult.TOPIC_MISMATCH, 7
    )
    newer = (*frames[:3], b"\x02" + frames[3][1:])
    assert decode_kv_message(newer, PUBLISHER) == Refused(FrameResult.UNKNOWN_VERSION, 7)
    assert decode_kv_message(frames[:3], PUBLISHER) == Refused(FrameResult.MALFORMED, 7)


# Bounds


@pytest.mark.req("KVX-03")
def test_a_batch_of_8192_blocks_is_taken() -> None:
    one = [event(n + 1, stored(*((wide(n), wide(m)) for m in range(128)))) for n in range(64)]
    whole = [event(1, stored(*((wide(m), wide(m)) for m in range(8192))))]
    for payload in (one, whole):
        assert sum(len(found.tokens) for found in events(payload)) == 8192


@pytest.mark.req("KVX-03")
def test_a_frame_of_one_mebibyte_is_taken_and_a_byte_more_is_not() -> None:
    frames = message([event(1, removed(*map(wide, range(116_000))))])
    assert len(frames[3]) < KV_FRAME_BYTES_MAX
    assert isinstance(decode_kv_message(frames, PUBLISHER), KvFrame)
    too_long = b"\x01" + (KV_PAYLOAD_BYTES_MAX + 1).to_bytes(4, "big")
    assert decode_kv_message((*frames[:3], too_long), PUBLISHER) == Refused(FrameResult.OVERSIZED, 7)


@pytest.mark.req("KVX-03")
def test_more_events_or_hashes_than_a_frame_may_hold_are_oversized() -> None:
    assert (
        len(events([event(n, "cleared") for n in range(KV_EVENTS_PER_FRAME_MAX)])) == KV_EVENTS_PER_FRAME_MAX
    )
    short = [WORKER, "device", [1, "cleared"]]
    assert refused([short] * (KV_EVENTS_PER_FRAME_MAX + 1)) is FrameResult.OVERSIZED
    halves = [event(n, removed(*[0] * (KV_HASHES_PER_FRAME_MAX // 2 + n - 1))) for n in (1, 2)]
    assert refused(halves) is FrameResult.OVERSIZED
    assert len(events([halves[0], halves[0]])) == 2
    for data in (removed(*[0] * (KV_HASHES_PER_FRAME_MAX + 1)), {"stored": [None, None, [[0, 0]] * 65_537]}):
        assert refused([event(1, data)]) is FrameResult.OVERSIZED


@pytest.mark.req("KVX-03")
def test_a_full_frame_is_one_record() -> None:
    largest = KvBatchReceived(
        "n" * 255, U64_MAX, 1 << 40, 0, U64_MAX,
        bytes(KV_EVENT_HEAD.size * KV_EVENTS_PER_FRAME_MAX), bytes(8 * KV_HASHES_PER_FRAME_MAX),
        U64_MAX, U64_MAX,
    )  # fmt: skip
    assert len(encode_record(1, bytes(16), 1, 1, largest)) < RECORD_BYTES_MAX


@pytest.mark.req("KVX-19")
@pytest.mark.parametrize(
    "payload",
    [
        b"\xdd\x00\x0f\xff\xff" + b"\x00" * 1_000_000,
        b"\x91" + msgpack.packb(event(1, {"stored": [None, None, [[0, 0]] * 330_000]})),
        b"\x91" + msgpack.packb(event(1, removed(*[0] * 1_000_000))),
        b"\xdd\x00\x0f\xff\xf0" + b"\x80" * 1_000_000,
        msgpack.packb([event(1, {"removed": {"block_hashes": [[]] * 1_000_000}})]),
    ],
)
def test_a_hostile_megabyte_costs_a_few_megabytes_at_most(payload: bytes) -> None:
    frames = message(payload)
    tracemalloc.start()
    try:
        decode_kv_message(frames, PUBLISHER)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * MIB


# Both ways


hashes = st.one_of(
    st.integers(2**63, U64_MAX),
    st.integers(2**56, U64_MAX),
    st.integers(0, 300),
    st.integers(-(2**63), -1),
    st.integers(0, U64_MAX),
)
usual = st.integers(2**32, U64_MAX)


@st.composite
def frames_of_events(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Events with many or few blocks, mostly of the usual form, now and then not."""
    of = draw(st.sampled_from([usual, usual, usual, hashes]))
    made = []
    for number in range(draw(st.integers(1, 4))):
        size = draw(st.sampled_from([0, 1, 40, 130, 200]))
        first, step = draw(of), draw(st.integers(1, 1 << 20))
        near = [(first + step * place) % 2**64 if first >= 0 else first for place in range(size)]
        data: Any = draw(st.sampled_from(["stored", "removed", "stored", "stored", "cleared"]))
        if data == "stored":
            parent = draw(st.none() | of)
            data = stored(*((one, one ^ 5 if one >= 0 else one) for one in near), parent=parent)
        elif data == "removed":
            data = removed(*near)
        made.append(event(number + 1, data, draw(st.sampled_from([0, 3, 300, 70_000]))))
    if draw(st.booleans()):
        made = [{name: value for name, value in one.items() if name != "residency_domain"} for one in made]
    return made


def naive(said: list[dict[str, Any]]) -> list[Told]:
    """What events say, without any product code."""
    found = []
    for one in said:
        inner = one["event"]
        data, where = inner["data"], (one["worker_id"], inner["dp_rank"], inner["event_id"])
        if data == "cleared":
            found.append(Told(*where, CLEARED, DEVICE, None, (), ()))
        elif "removed" in data:
            gone = tuple(number % 2**64 for number in data["removed"]["block_hashes"])
            found.append(Told(*where, REMOVED, DEVICE, None, (), gone))
        else:
            blocks, parent = data["stored"]["blocks"], data["stored"]["parent_hash"]
            tokens = tuple(block["tokens_hash"] % 2**64 for block in blocks)
            engines = tuple(block["block_hash"] % 2**64 for block in blocks)
            parent = parent % 2**64 if parent is not None and blocks else None
            found.append(Told(*where, STORED, DEVICE, parent, tokens, engines))
    return found


@settings(max_examples=150, deadline=None)
@given(frames_of_events())
def test_the_quick_way_and_the_typed_one_say_what_the_events_say(said: list[dict[str, Any]]) -> None:
    packed = msgpack.packb(said)
    columns = usual_columns(packed)
    expected = naive(said)
    assert columns is None or told(*columns) == expected
    assert events(packed) == expected
    shuffled = [dict(reversed(one.items())) for one in said]
    assert usual_columns(msgpack.packb(shuffled)) is None
    found = read(shuffled)
    assert columns is None or (found.heads, found.hashes) == tuple(columns)
    positional = [[one["worker_id"], "device", one["event"]] for one in said]
    assert events(positional) == expected
