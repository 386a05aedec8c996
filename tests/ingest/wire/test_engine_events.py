"""Block events of engines without a relay: ids that tell gaps, groups that share hashes, names of content."""

from __future__ import annotations

import itertools
import random
import struct
from array import array
from typing import Any

import msgpack
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.wire.engine_events import (
    GROUPS_MAX,
    RANKS_MAX,
    EngineBatch,
    EngineMessage,
    EngineReader,
    EngineSource,
    open_engine_message,
)
from ingest.wire.publisher_frames import Refused
from projections.bounds import KV_EVENTS_PER_FRAME_MAX, KV_FRAME_BYTES_MAX, KV_HASHES_PER_FRAME_MAX
from projections.events.codec import encode_record
from projections.events.signals import KvBatchReceived, KvOperation, StorageTier
from projections.kv.block_hash import block_hashes, seed_of
from projections.kv.index import Index
from projections.notices import FrameResult
from tests.ingest.wire.engine_batches import (
    BLOCK,
    SOURCE,
    batch,
    encodings,
    engine_message,
    stored_items,
    stored_map,
    tokens,
)
from tests.ingest.wire.kv_messages import Told, told

STORED, REMOVED, CLEARED = KvOperation
DEVICE = StorageTier.DEVICE
BASE = 1 << 40  # ids of the first connection lie above this


class Reader:
    """A reader on its first connection; answers as events."""

    def __init__(self, source: EngineSource = SOURCE) -> None:
        self.reader = EngineReader(source)
        self.reader.begin(1)
        self.last: EngineBatch | None = None

    def read(self, *events: Any, rank: int | None = None) -> list[Told]:
        self.last = self.reader.read(batch(*events, rank=rank))
        assert self.last is not None
        return told(self.last.heads, self.last.hashes)

    @property
    def left_out(self) -> tuple[int, int]:
        """Malformed and unsupported events of the last batch."""
        assert self.last is not None
        return self.last.malformed, self.last.unsupported


@pytest.fixture
def reader() -> Reader:
    return Reader()


def names(ids: list[int], lora: str | None = None, salt: str | None = None) -> tuple[int, ...]:
    packed = block_hashes(array("I", ids).tobytes(), BLOCK, seed_of(lora, salt))
    return struct.unpack(f">{len(packed) // 8}Q", packed)


# What a batch says


def test_the_example_of_the_contract_is_read(reader: Reader) -> None:
    ids = [*range(1, 33)]
    found = reader.read(
        ["BlockStored", [111, 222], None, ids, 16, None, "GPU"],
        ["BlockRemoved", [111], "GPU"],
        ["AllBlocksCleared"],
    )
    assert found == [
        Told(42, 0, BASE + 1, STORED, DEVICE, None, (16863443419780771464, 2287610619914608821), (111, 222)),
        Told(42, 0, BASE + 2, REMOVED, DEVICE, None, (), (111,)),
        Told(42, 0, BASE + 3, CLEARED, DEVICE, None, (), ()),
    ]
    assert reader.last is not None
    assert reader.last.published_at_ms == 1_732_890_000_500
    assert reader.left_out == (0, 0)


@pytest.mark.field("B-062")
def test_the_named_form_says_the_same(reader: Reader) -> None:
    ids = tokens(2)
    first = reader.read(stored_items([111, 222], ids, 9, None, "GPU"), ["BlockRemoved", [111]])
    named = [stored_map([111, 222], ids, 9, medium="GPU"), {"type": "BlockRemoved", "block_hashes": [111]}]
    again = Reader().read(*named)
    assert again == first


def test_an_event_that_means_nothing_takes_no_id(reader: Reader) -> None:
    found = reader.read(["Ignored"], stored_items([1], tokens(1)))
    assert [one.event_id for one in found] == [BASE + 1]
    assert reader.left_out == (0, 0)


@pytest.mark.field("B-064")
def test_engine_hashes_may_be_signed_or_digests(reader: Reader) -> None:
    digest = bytes(24) + (2**64 - 5).to_bytes(8, "big")
    first, second = reader.read(stored_items([digest], tokens(1), -5), ["BlockRemoved", [2**64 - 5, -5]])
    assert (first.parent, first.engines) == (2**64 - 5, (2**64 - 5,))
    assert second.engines == (2**64 - 5,) * 2


def test_the_rank_is_the_configured_one_else_the_batch_says(reader: Reader) -> None:
    assert reader.read(["AllBlocksCleared"])[0].dp_rank == 0
    assert reader.read(["AllBlocksCleared"], rank=3)[0].dp_rank == 3
    fixed = Reader(SOURCE._replace(dp_rank=5))
    assert fixed.read(["AllBlocksCleared"], rank=3)[0].dp_rank == 5


@pytest.mark.field("B-050", "B-051", "B-052")
def test_adapter_and_salt_are_in_the_names_of_blocks(reader: Reader) -> None:
    ids = tokens(2)
    cases: list[tuple[list[Any], tuple[str | None, str | None]]] = [
        ([None, None, "adapter-a"], ("adapter-a", None)),
        ([None, None, {"cache_salt": "tenant-1"}], (None, "tenant-1")),
        ([None, None, None, ["dynamo-cache-salt:tenant-1", None]], (None, "tenant-1")),
        (
            [None, None, "adapter-a", [["adapter-a", "dynamo-cache-salt:tenant-1"], None]],
            ("adapter-a", "tenant-1"),
        ),
        ([None, None, None, ["X", None]], (None, "X")),
    ]
    for more, (lora, salt) in cases:
        (one,) = reader.read(stored_items([1, 2], ids, None, *more))
        assert one.tokens == names(ids, lora, salt)
    assert names(ids, "X", None) != names(ids, None, "X") != names(ids)


def test_images_are_in_the_names_of_their_blocks(reader: Reader) -> None:
    digest = f"{0xDEADBEEF:016x}" + "0" * 48
    ids = [*range(1, 33)]
    (one,) = reader.read(stored_items([1, 2], ids, None, None, None, None, [digest, None]))
    assert one.tokens == (14529151895984176542, 2287610619914608821)


# Groups


@pytest.mark.field("B-045", "B-046")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_blocks_of_other_attention_touch_nothing_whatever_their_order(order: tuple[int, ...]) -> None:
    ids = tokens(2)
    events = [
        stored_items([1, 2], ids, None, None, "GPU", None, None, 0, "full_attention"),
        stored_items([1, 3], ids, None, None, "GPU", None, None, 1, "mamba"),
        stored_items([2, 4], ids, None, None, "GPU", None, None, 2, "sliding_window", 64),
    ]
    reader = Reader()
    found = reader.read(*(events[place] for place in order))
    assert found == [Told(42, 0, BASE + 1, STORED, DEVICE, None, names(ids), (1, 2))]
    assert reader.left_out == (0, 2)
    gone = reader.read(
        ["BlockRemoved", [1], "GPU", 1, "mamba"],
        ["BlockRemoved", [2], "GPU", 2],
        ["BlockRemoved", [2], "GPU", 0],
        ["BlockRemoved", [1], "GPU", 0, "full_attention"],
    )
    assert [one.engines for one in gone] == [(2,), (1,)]
    assert [one.event_id for one in gone] == [BASE + 2, BASE + 3]


@pytest.mark.field("B-045")
def test_a_store_with_more_tokens_than_its_hashes_stand_for_is_another_groups(reader: Reader) -> None:
    ids = tokens(5)
    assert reader.read(stored_items([1], ids, None, None, "GPU", None, None, 1)) == []
    assert reader.left_out == (0, 1)
    assert len(reader.read(stored_items([1, 2, 3, 4, 5], ids, None, None, "GPU", None, None, 0))) == 1
    assert reader.read(["BlockRemoved", [1], "GPU", 1]) == []
    assert len(reader.read(["BlockRemoved", [1], "GPU", 0])) == 1


@pytest.mark.field("B-045", "B-059")
def test_a_store_of_another_block_size_is_another_groups(reader: Reader) -> None:
    assert reader.read(stored_items([1, 2], tokens(1), size=8)) == []
    assert reader.read(stored_items([1], [1] * 64, size=64)) == []
    assert reader.left_out == (0, 1)


@pytest.mark.parametrize("kind", [None, "full_attention", "mla_attention", "sink_full_attention"])
def test_full_attention_of_any_kind_is_taken(reader: Reader, kind: str | None) -> None:
    more = [None, "GPU", None, None, 0, kind]
    assert (
        len(reader.read(stored_items([1], tokens(1), None, *more), ["BlockRemoved", [1], None, 0, kind])) == 2
    )


def test_groups_are_remembered_within_bounds(reader: Reader) -> None:
    for group in range(GROUPS_MAX + 10):
        reader.read(stored_items([1], tokens(2), None, None, "GPU", None, None, group))
    assert len(reader.reader._groups) == GROUPS_MAX
    assert reader.read(["BlockRemoved", [1], None, GROUPS_MAX + 9]) == []
    assert len(reader.read(["BlockRemoved", [1], None, 0])) == 1, (
        "forgotten: it may cost credit, never give it"
    )


def test_what_is_not_local_is_left_out(reader: Reader) -> None:
    where = [None, "GPU", None, None, 0, "full_attention", None]
    for locality in ("REMOTE", "remote", "ELSEWHERE"):
        assert reader.read(stored_items([1], tokens(1), None, *where, locality)) == []
        assert reader.left_out == (0, 1)
    assert len(reader.read(stored_items([1], tokens(1), None, *where, "LOCAL"))) == 1


# Tiers


@pytest.mark.req("KVX-07")
@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, StorageTier.DEVICE),
        ("gpu", StorageTier.DEVICE),
        ("CPU_PINNED", StorageTier.HOST_PINNED),
        ("CPU_TIER2", StorageTier.DISK),
        ("NVMe", StorageTier.DISK),
        ("SHARED", StorageTier.EXTERNAL),
    ],
)
def test_the_medium_is_the_tier(reader: Reader, medium: str | None, tier: StorageTier) -> None:
    found = reader.read(stored_items([1], tokens(1), None, None, medium), ["BlockRemoved", [1], medium])
    assert [one.tier for one in found] == [tier, tier]


def test_an_unknown_medium_is_left_out(reader: Reader) -> None:
    assert reader.read(stored_items([1], tokens(1), None, None, "MOON"), ["BlockRemoved", [1], "MOON"]) == []
    assert reader.left_out == (0, 2)


@pytest.mark.field("B-047")
def test_a_lower_tier_without_tokens_says_its_tier_and_nothing_else(reader: Reader) -> None:
    found = reader.read(stored_items([*range(23)], [], 0, None, "CPU", size=0), stored_items([1], tokens(1)))
    assert found[0] == Told(42, 0, BASE + 1, STORED, StorageTier.HOST_PINNED, None, (), ())
    assert found[1].event_id == BASE + 2


# Malformed


@pytest.mark.req("KVX-19")
@pytest.mark.field("B-048")
def test_fewer_tokens_than_a_block_are_malformed_and_what_follows_is_taken(reader: Reader) -> None:
    reader = Reader(SOURCE._replace(block_size=256))
    found = reader.read(
        ["BlockStored", [1, 2, 3, 4], None, [1, 2, 3], 256, None, "GPU"],
        ["BlockStored", [5], None, [*range(256)], 256, None, "GPU"],
    )
    assert [(one.event_id, one.engines) for one in found] == [(BASE + 1, (5,))]
    assert reader.left_out == (1, 0)


@pytest.mark.field("B-065")
def test_pairs_of_tokens_are_unsupported(reader: Reader) -> None:
    pairs = [[n, n + 1] for n in range(16)]
    assert reader.read(stored_items([1], pairs), stored_items([2], tokens(1)))[0].engines == (2,)
    assert reader.left_out == (0, 1)
    assert reader.last is not None
    assert reader.last.has_pairs


@pytest.mark.req("KVX-19")
@pytest.mark.parametrize(
    "event",
    [
        stored_items([1], [-1] * 16),
        stored_items([1], [2**32] * 16),
        stored_items([1], ["a"] * 16),
        stored_items([1], [1.5] * 16),
        stored_items([1], [[1, 2, 3]] * 16),
        stored_items([1], None),  # type: ignore[arg-type]
        stored_items(["a"], tokens(1)),
        stored_items([b"short"], tokens(1)),
        stored_items([1], tokens(1), "root"),
        ["BlockStored"],
    ],
)
def test_a_store_that_cannot_be_read_costs_itself(reader: Reader, event: Any) -> None:
    reader.read(stored_items([9], tokens(1)))
    assert [one.event_id for one in reader.read(event, ["BlockRemoved", [9]])] == [BASE + 2]
    assert reader.left_out == (1, 0)


@pytest.mark.req("KVX-19")
@pytest.mark.parametrize("event", [["BlockRemoved"], ["BlockRemoved", ["a"]], ["Later", 1], 5, None, {}, []])
def test_anything_else_that_cannot_be_read_leaves_out_an_id(reader: Reader, event: Any) -> None:
    reader.read(stored_items([9], tokens(1)))
    assert [one.event_id for one in reader.read(event, ["BlockRemoved", [9]])] == [BASE + 3]
    assert reader.left_out == (1, 0)


@pytest.mark.req("KVX-19")
@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\x90", msgpack.packb([1.0, 5]), msgpack.packb({"ts": 1}),
                                    msgpack.packb(["a", []]), msgpack.packb([1.0, [], 2**32]),
                                    msgpack.packb([1.0, [], 2**32 - 1]),
                                    msgpack.packb([1.0, [0] * (KV_EVENTS_PER_FRAME_MAX + 1)])])  # fmt: skip
def test_a_batch_that_cannot_be_read_leaves_out_an_id_of_every_rank(reader: Reader, packed: bytes) -> None:
    reader.read(["AllBlocksCleared"], rank=0)
    reader.read(["AllBlocksCleared"], rank=1)
    assert reader.reader.read(packed) is None
    assert reader.read(["AllBlocksCleared"], rank=0)[0].event_id == BASE + 3
    assert reader.read(["AllBlocksCleared"], rank=1)[0].event_id == BASE + 3


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_time_that_is_none_is_0(seconds: float) -> None:
    found = Reader().reader.read(batch(["AllBlocksCleared"], seconds=seconds))
    assert found is not None
    assert found.published_at_ms == 0


@pytest.mark.field("B-060")
def test_a_flood_of_blocks_of_one_token_is_bounded() -> None:
    reader = Reader(SOURCE._replace(block_size=1))
    many = KV_HASHES_PER_FRAME_MAX // 4
    (one,) = reader.read(stored_items([*range(many)], [7] * many, size=1))
    assert len(set(one.tokens)) == 1
    assert len(reader.read(*[stored_items([*range(many)], [7] * many, size=1)] * 3)) == 1
    assert reader.left_out == (2, 0)


def test_ranks_of_one_engine_are_bounded(reader: Reader) -> None:
    for rank in range(RANKS_MAX):
        reader.read(["AllBlocksCleared"], rank=rank)
    assert reader.reader.read(batch(["AllBlocksCleared"], rank=RANKS_MAX)) is None


# Ids


@pytest.mark.field("B-066")
def test_ids_follow_each_other_a_rank_and_jump_where_something_was_missed(reader: Reader) -> None:
    def next_id(rank: int) -> int:
        return reader.read(["AllBlocksCleared"], rank=rank)[0].event_id

    assert [next_id(0), next_id(0), next_id(1), next_id(0)] == [BASE + 1, BASE + 2, BASE + 1, BASE + 3]
    reader.reader.miss()
    assert [next_id(0), next_id(1)] == [BASE + 5, BASE + 3]
    reader.reader.begin(2)
    assert [next_id(0), next_id(1)] == [2 * BASE + 1, 2 * BASE + 1]


# Frames


def test_three_frames_open_to_number_and_batch() -> None:
    packed = batch(["Ignored"])
    assert open_engine_message(engine_message(7, packed, b"kv@pod"), b"kv@") == EngineMessage(7, packed)
    assert open_engine_message(engine_message(7, packed), b"") == EngineMessage(7, packed)


@pytest.mark.field("B-068")
def test_other_frames_are_refused() -> None:
    good = engine_message(7, b"x", b"kv")
    for frames in ((), good[:2], (*good, b""), (good[0], b"short", good[2])):
        assert open_engine_message(frames, b"") == Refused(FrameResult.MALFORMED, None)
    assert open_engine_message(good, b"other") == Refused(FrameResult.TOPIC_MISMATCH, 7)
    large = (b"", good[1], bytes(KV_FRAME_BYTES_MAX + 1))
    assert open_engine_message(large, b"") == Refused(FrameResult.OVERSIZED, 7)


# Token ids go no further


@pytest.mark.req("KVX-05")
def test_no_record_made_of_engine_events_holds_token_ids() -> None:
    source = random.Random(5)
    prompt = [source.randrange(300, 60_000) for _ in range(4 * BLOCK)]
    reader = Reader()
    batches = [
        batch(stored_items([1, 2, 3, 4], prompt)),
        batch(stored_map([5, 6], prompt[: 2 * BLOCK], 4, lora_name="a", cache_salt="s")),
        batch(stored_items([7], prompt[:BLOCK], None, None, "CPU"), ["BlockRemoved", [7], "CPU"]),
        batch(stored_items([8], [[n, n] for n in prompt[:BLOCK]])),
        batch(stored_items([9, 10], prompt[:BLOCK]), {"type": "Later", "token_ids": prompt}),
    ]
    log = b""
    for number, packed in enumerate(batches):
        said = reader.reader.read(packed)
        assert said is not None
        fact = KvBatchReceived("prod", 5, 1, number, number, said.heads, said.hashes, said.published_at_ms)
        log += encode_record(number + 1, bytes(16), 1, number + 1, fact)
    runs = [prompt[at : at + 4] for at in range(len(prompt) - 3)]
    assert any(run in batches[0] for run in encodings(runs[0]))
    for run in runs:
        assert not any(one in log for one in encodings(run))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=BLOCK, max_size=BLOCK * 3))
def test_names_are_the_hash_of_the_tokens_as_u32(ids: list[int]) -> None:
    ids = ids[: len(ids) // BLOCK * BLOCK]
    (one,) = Reader().read(stored_items([*range(len(ids) // BLOCK)], ids))
    blocks = [struct.pack(f"<{BLOCK}I", *ids[at : at + BLOCK]) for at in range(0, len(ids), BLOCK)]
    assert one.tokens == tuple(xxhash.xxh3_64_intdigest(block, seed=1337) for block in blocks)


@pytest.mark.field("B-051", "B-052")
def test_blocks_behind_a_salt_that_is_said_once_are_nobody_elses_credit(reader: Reader) -> None:
    ids = tokens(3)
    salted = stored_items([1], ids[:16], None, None, None, None, [["tenant-1"], None])
    first, second, third = reader.read(
        salted, stored_items([2], ids[16:32], 1), stored_items([9], ids[:16], None, None, None, "tenant-1")
    )
    index = Index()
    index.open_slot(0, 1)
    for one in (first, second, third):
        parent = None if one.parent is None else struct.pack(">Q", one.parent)
        columns = (struct.pack(f">{len(one.tokens)}Q", *one.tokens), struct.pack(">Q", *one.engines))
        index.stored(0, parent, *columns)

    def depth(lora: str | None, salt: str | None) -> int:
        found = index.find(struct.pack(">3Q", *names(ids, lora, salt)), 1)
        return found[0][0] if found else 0

    assert depth(None, "tenant-1") == 1, "what names no salt costs credit"
    assert depth("tenant-1", None) == 1, "an adapter of the same name is another seed"
    assert depth(None, None) == depth(None, "tenant-2") == depth("tenant-1", "tenant-1") == 0
    index.removed(0, struct.pack(">Q", 9))
    assert (depth("tenant-1", None), depth(None, "tenant-1")) == (0, 1)


def test_a_connection_begins_for_the_worker_that_it_is_told() -> None:
    reader = EngineReader(SOURCE._replace(instance_id=None))
    found = []
    for connection, worker in ((1, 9), (2, None), (3, 10)):
        reader.begin(connection, worker)
        said = reader.read(batch(["AllBlocksCleared"]))
        assert said is not None
        found += [(one.worker_id, one.event_id) for one in told(said.heads, said.hashes)]
    assert found == [(9, BASE + 1), (9, 2 * BASE + 1), (10, 3 * BASE + 1)]
