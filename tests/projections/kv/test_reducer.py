"""Batches of kv-events: the gate, cursors, gaps, tiers, and what odd ones are worth."""

from __future__ import annotations

import random
import struct

import pytest

from projections.events.codec import decode_record
from projections.events.control import FoldModeAdopted
from projections.events.picks import BlockHashes
from projections.events.signals import (
    KV_EVENT_HEAD,
    Family,
    FrameRefused,
    KvBatchReceived,
    KvOperation,
    SubscriptionState,
)
from projections.fold import Fold
from projections.fold_modes import KV_INDEX, LOWER_TIERS
from projections.notices import BlocksOrphaned, FrameResult
from projections.view import Overlay
from replay.timeline import index_at
from tests.projections.fleet_script import NS
from tests.projections.kv.kv_script import (
    DEVICE,
    DISK,
    EXTERNAL,
    HOST,
    KV,
    Event,
    KvScript,
    S,
    chain,
    cleared,
    packed,
    ranks_card,
    removed,
    stored,
)
from tests.projections.kv.kv_story import kv_story
from tests.projections.kv.plain_rules import PlainRules


def one_worker(*modes: int, ranks: int = 1) -> KvScript:
    script = KvScript(*modes)
    script.worker(1, **ranks_card(ranks))
    return script


@pytest.mark.req("KVX-08", "KVX-09")
def test_a_rank_holds_what_its_events_say() -> None:
    script = one_worker()
    script.batch(stored(1, "a", "b", "c"), stored(2, "a", "b", "c", "d", below=3))
    assert script.results() == {"applied": 2}
    assert script.device("a", "b", "c", "d", "e") == {(1, 0): 4}
    assert script.device("a", "x") == {(1, 0): 1} and script.device("x") == {}
    script.batch(removed(3, "a", "b", "c", "d", above=3))
    assert script.device("a", "b", "c", "d") == {(1, 0): 3}


@pytest.mark.req("KVX-09")
@pytest.mark.field("B-042")
def test_a_hole_ends_the_match_and_a_refill_restores_it() -> None:
    script = one_worker()
    names = chain("a", "b", "c")[1]
    script.batch(stored(1, "a", "b", "c"))
    script.batch(Event(KvOperation.REMOVED, 2, 1, 0, DEVICE, None, names[8:16], 1))
    assert script.device("a", "b", "c") == {(1, 0): 1}
    script.batch(stored(3, "a", "b", below=1))
    assert script.device("a", "b", "c") == {(1, 0): 3}


@pytest.mark.req("KVX-10")
@pytest.mark.field("B-044")
def test_a_chain_without_its_parent_is_no_block_of_the_rank() -> None:
    script = one_worker()
    script.batch(stored(1, "a", "b", "c", below=1))
    assert script.results() == {"orphan": 1} and script.blocks() == 0
    script.batch(stored(2, "a", "b", "c"))
    assert script.results() == {"applied": 1} and script.device("a", "b", "c") == {(1, 0): 3}


@pytest.mark.req("KVX-10")
def test_orphans_on_the_device_are_told_with_their_rank_once_in_a_row() -> None:
    script = one_worker(KV_INDEX, LOWER_TIERS, ranks=2)
    script.batch(
        stored(1, "a"),
        stored(2, "a", "b", "c", below=2),
        stored(3, "a", "b", "d", below=2),
        stored(4, "a", "x", below=1, tier=HOST),
        stored(1, "a", "b", below=1, rank=1),
    )
    orphans = [notice for notice in script.notices if isinstance(notice, BlocksOrphaned)]
    assert orphans == [BlocksOrphaned(NS, 1, 0), BlocksOrphaned(NS, 1, 1)]
    assert script.results() == {"applied": 1, "orphan": 4}


@pytest.mark.req("KVX-10")
@pytest.mark.field("B-035")
def test_a_block_that_is_its_own_parent_is_refused_alone() -> None:
    script = one_worker()
    tokens, names = chain("a", "b")
    script.batch(stored(1, "a"))
    script.batch(Event(KvOperation.STORED, 2, 1, 0, DEVICE, names[:8], tokens + names, 2))
    assert script.results() == {"self_parent": 1}
    assert script.device("a", "b") == {(1, 0): 2}


@pytest.mark.req("KVX-11")
@pytest.mark.field("B-040")
def test_removals_and_clears_touch_their_own_rank_alone() -> None:
    script = one_worker(ranks=2)
    script.batch(stored(1, "a", "b"), stored(1, "a", "b", rank=1))
    script.batch(removed(2, "a", "b", above=1))
    assert script.device("a", "b") == {(1, 0): 1, (1, 1): 2}
    script.batch(cleared(3))
    assert script.device("a", "b") == {(1, 1): 2} and script.clears() == [("engine", 1, 0, 1)]


@pytest.mark.req("KVX-13")
def test_a_rank_that_no_live_worker_declares_is_an_identity_mismatch() -> None:
    script = one_worker(ranks=4)
    script.batch(stored(1, "a", rank=9), stored(1, "a", worker=2), stored(1, "a", rank=3))
    assert script.results() == {"applied": 1, "identity_mismatch": 2}
    assert script.device("a") == {(1, 3): 1}
    script.worker(2)
    script.batch(stored(1, "a", worker=2))
    assert script.device("a") == {(1, 3): 1, (2, 0): 1}, "from its next event on"


@pytest.mark.req("KVX-13")
def test_ranks_that_take_turns_in_a_batch_keep_their_own_events() -> None:
    script = one_worker(KV_INDEX, LOWER_TIERS, ranks=2)
    script.batch(
        stored(1, "a"),
        stored(1, "x", rank=1),
        stored(2, "y", rank=9),
        stored(2, "a", "b", below=1, rank=0),
        stored(3, "a", "b", "c", below=2, tier=HOST),
        stored(2, "x", "y", below=1, rank=1),
        stored(4, "a", "b", "d", below=2),
    )
    assert script.device("a", "b", "d") == {(1, 0): 3}
    assert script.device("x", "y") == {(1, 1): 2}
    assert script.results() == {"applied": 5, "identity_mismatch": 1, "orphan": 1}


@pytest.mark.req("KVX-13")
def test_a_binding_names_the_rank_where_the_card_has_several() -> None:
    script = one_worker(ranks=4)
    script.worker(2)
    script.bind(70, 1, 3)
    script.bind(71, 2, 5)
    script.batch(stored(1, "a"))
    script.batch(stored(1, "a", worker=2), publisher_id=71)
    assert script.device("a") == {(1, 3): 1, (2, 0): 1}, "one rank: the event's counts"


@pytest.mark.req("KVX-13")
def test_a_binding_that_comes_late_clears_what_the_publisher_told() -> None:
    script = one_worker(ranks=2)
    script.batch(stored(1, "a", "b"))
    script.bind(70, 1, 1)
    assert script.clears() == [("binding", 1, 0, 2)] and script.device("a") == {}
    script.batch(stored(7, "c"))
    assert script.results() == {"applied": 1}, "its cursors went too"
    assert script.device("c") == {(1, 1): 1}
    script.bind(70, 1, 1)
    assert script.clears() == [] and script.device("c") == {(1, 1): 1}


@pytest.mark.req("KVX-13")
def test_a_binding_counts_from_the_card_that_declares_several_ranks() -> None:
    script = one_worker()
    script.bind(70, 1, 1)
    script.batch(stored(1, "a"))
    assert script.device("a") == {(1, 0): 1}
    script.worker(1, **ranks_card(2))
    assert script.clears() == [("binding", 1, 0, 1)]
    script.batch(stored(2, "a"))
    assert script.device("a") == {(1, 1): 1}


@pytest.mark.req("KVX-13")
def test_a_card_that_comes_after_the_binding_and_before_any_block_counts_too() -> None:
    script = one_worker()
    script.bind(70, 1, 1)
    script.batch(stored(1, "a", worker=9))
    script.worker(1, **ranks_card(2))
    script.batch(stored(2, "a"))
    assert script.device("a") == {(1, 1): 1}


@pytest.mark.req("KVX-13")
def test_a_publisher_is_bound_anew_by_the_card_of_a_worker_that_it_never_spoke_of() -> None:
    script = one_worker()
    script.worker(2)
    script.bind(70, 2, 1)
    script.batch(stored(1, "a"))
    script.worker(2, **ranks_card(2))
    assert script.clears() == [("binding", 1, 0, 1)]


@pytest.mark.req("KVX-14")
@pytest.mark.field("B-067")
def test_an_event_that_was_seen_is_skipped() -> None:
    script = one_worker()
    script.batch(stored(1, "a", "b"), removed(2, "a", "b", above=1))
    script.batch(stored(1, "a", "b"), removed(2, "a", "b", above=1))
    assert script.results() == {"replay": 2} and script.device("a", "b") == {(1, 0): 1}


@pytest.mark.req("KVX-14")
@pytest.mark.field("B-066")
def test_a_new_publisher_of_a_rank_starts_afresh_at_one() -> None:
    script = one_worker()
    script.batch(stored(1, "a"), stored(2, "b"))
    script.batch(stored(1, "c"), publisher_id=71)
    assert script.results() == {"applied": 1} and script.clears() == [("new_publisher", 1, 0, 2)]
    assert script.device("a") == {} and script.device("c") == {(1, 0): 1}


@pytest.mark.req("KVX-14", "DYN-23")
def test_of_two_publishers_of_a_tier_the_newer_one_counts_until_it_is_down() -> None:
    script = one_worker()
    script.batch(stored(1, "a"))
    script.batch(stored(1, "b"), publisher_id=71)
    script.batch(stored(2, "c"))
    assert script.results() == {"displaced": 1} and script.device("c") == {}
    script.kv_subscription(SubscriptionState.BACKOFF, publisher_id=71)
    script.batch(stored(3, "d"))
    assert script.results() == {"applied": 1}
    assert script.device("b") == {} and script.device("d") == {(1, 0): 1}


@pytest.mark.req("KVX-15", "KVX-16")
def test_a_jump_clears_the_rank_and_leaves_the_others_of_its_publisher() -> None:
    script = one_worker(ranks=2)
    script.batch(stored(1, "a", "b"), stored(1, "a", rank=1))
    script.batch(stored(3, "a", "b", "c", below=2), stored(2, "b", rank=1))
    assert script.results() == {"applied": 1, "gap": 1, "orphan": 1}
    assert script.clears() == [("gap", 1, 0, 2)]
    assert script.device("a", "b") == {(1, 1): 1}
    script.batch(stored(4, "a", "b"))
    assert script.device("a", "b") == {(1, 0): 2, (1, 1): 1}, "root chains fill it again"


@pytest.mark.req("KVX-15")
def test_a_clear_is_a_barrier_across_a_jump() -> None:
    script = one_worker()
    script.batch(stored(1, "a"))
    script.batch(cleared(9), stored(10, "b"))
    assert script.results() == {"applied": 2}
    assert script.device("a") == {} and script.device("b") == {(1, 0): 1}


@pytest.mark.req("KVX-06", "KVX-14")
def test_an_event_without_blocks_moves_the_cursor() -> None:
    script = one_worker()
    script.batch(stored(1), removed(2), stored(3, "a"))
    assert script.results() == {"applied": 3}
    script.batch(stored(4, "b"))
    assert script.results() == {"applied": 1}


@pytest.mark.req("KVX-07")
@pytest.mark.field("B-047")
def test_other_tiers_are_counted_and_change_nothing() -> None:
    script = one_worker()
    script.batch(*(stored(n, "a", tier=tier) for n, tier in enumerate((HOST, DISK, EXTERNAL), 1)))
    assert script.results() == {"other_tier": 3} and script.prefixes("a") == {}
    script.batch(stored(4, "a"))
    assert script.results() == {"applied": 1}, "their ids count"
    script.batch(cleared(5, tier=HOST))
    assert script.device("a") == {(1, 0): 1}


@pytest.mark.req("DYN-02")
def test_lower_tiers_extend_the_prefix_on_the_device() -> None:
    script = one_worker(KV_INDEX, LOWER_TIERS)
    script.batch(
        stored(1, "a", "b"),
        stored(2, "a", "b", "c", tier=HOST),
        stored(3, "a", "b", "c", "d", tier=DISK),
        stored(4, "a", "b", "c", "d", "e", below=4, tier=EXTERNAL),
    )
    assert script.results() == {"applied": 4}
    assert script.prefixes("a", "b", "c", "d", "e", "f") == {(1, 0): (2, 1, 2, 0)}
    script.batch(removed(5, "a", "b", "c", tier=HOST))
    assert script.prefixes("a", "b", "c", "d", "e") == {(1, 0): (2, 0, 3, 0)}
    script.batch(removed(6, "a", "b"))
    assert script.prefixes("a", "b", "c", "d", "e") == {(1, 0): (0, 0, 5, 0)}
    script.batch(cleared(7, tier=DISK))
    assert script.prefixes("a", "b", "c", "d", "e") == {}


@pytest.mark.req("DYN-02", "KVX-15")
def test_a_gap_clears_every_tier_that_the_publisher_feeds() -> None:
    script = one_worker(KV_INDEX, LOWER_TIERS)
    script.batch(stored(1, "a"), stored(2, "a", "b", tier=HOST))
    script.batch(stored(1, "a", "b", "c", tier=DISK), publisher_id=71)
    script.batch(stored(9, "z"))
    assert script.clears() == [("gap", 1, 0, 1), ("gap", 1, 0, 2)]
    assert script.prefixes("a", "b", "c") == {(1, 0): (0, 0, 3, 0)}


@pytest.mark.req("DYN-23", "DYN-24")
def test_an_offloader_may_tell_of_host_memory_beside_the_engine() -> None:
    script = one_worker(KV_INDEX, LOWER_TIERS)
    script.batch(stored(1, "a"))
    script.batch(stored(1, "a", "b", tier=HOST), publisher_id=71)
    script.batch(stored(2, "a", "c", below=1))
    script.batch(stored(2, "a", "b", "d", below=2, tier=HOST), publisher_id=71)
    assert script.results() == {"applied": 1}
    assert script.prefixes("a", "b", "d") == {(1, 0): (1, 2, 0, 0)}
    script.batch(removed(3, "a"))
    assert script.prefixes("a", "b", "d") == {(1, 0): (0, 3, 0, 0)}, "a tier is held apart"


@pytest.mark.field("B-061")
def test_a_removal_of_an_unknown_block_is_counted_apart() -> None:
    script = one_worker()
    script.batch(stored(1, "a"), removed(2, "x", "y"), removed(3, "a", "x"))
    assert script.results() == {"applied": 2, "unknown_removed": 1} and script.blocks() == 0


@pytest.mark.req("KVX-19")
@pytest.mark.field("B-048")
def test_a_batch_that_contradicts_itself_is_malformed_from_there_on() -> None:
    script = one_worker()
    good, bad = stored(1, "a"), stored(2, "b")
    script.say(KvBatchReceived(NS, 70, 1, 0, 0, good.head + bad.head, good.columns + bad.columns[:-1], 0))
    assert script.results() == {"applied": 1, "malformed": 1}
    script.say(KvBatchReceived(NS, 70, 1, 1, 1, stored(2, "b").head[:-1], b"", 0))
    assert script.results() == {"malformed": 1}
    script.say(KvBatchReceived(NS, 70, 1, 2, 2, b"", b"x" * 8, 0))
    assert script.results() == {"malformed": 1}
    script.batch(Event(7, 2, 1, 0, 1), stored(3, "c"))  # type: ignore[arg-type]
    assert script.results() == {"malformed": 1}
    script.batch(Event(2, 2, 1, 0, 77), stored(3, "c"))  # type: ignore[arg-type]
    assert script.results() == {"applied": 1, "malformed": 1}


@pytest.mark.req("KVX-19")
def test_random_bytes_never_raise() -> None:
    draw = random.Random(5)
    script = one_worker(KV_INDEX, LOWER_TIERS, ranks=2)
    whole = [stored(1, "a", "b"), removed(2, "a"), cleared(3), stored(4, "c", tier=HOST)]
    heads, hashes = b"".join(e.head for e in whole), b"".join(e.columns for e in whole)
    for number in range(3_000):
        some = bytearray(heads if draw.random() < 0.7 else draw.randbytes(draw.randrange(120)))
        for _ in range(draw.randrange(4)):
            if some:
                some[draw.randrange(len(some))] = draw.randrange(256)
        columns = hashes[: draw.randrange(len(hashes) + 1)] if draw.random() < 0.5 else hashes
        script.say(KvBatchReceived(NS, 70 + number % 3, 1, number, number, bytes(some), columns, 0))
        script.prefixes("a", "b", "c")
    assert script.fold.stopped is None and script.fold.mark.offset == len(script.records) - 1


def test_refused_frames_are_told_by_their_results() -> None:
    script = one_worker()
    for result, label in ((FrameResult.OVERSIZED, "oversized"), (FrameResult.DUPLICATE, "replay")):
        script.say(FrameRefused(int(Family.KV), NS, 70, 1, int(result), 3))
        assert script.results() == {label: 3}


@pytest.mark.req("KVX-20", "KVX-01")
def test_without_the_fold_mode_nothing_is_taken() -> None:
    script = one_worker()
    script.batch(stored(1, "a"))
    script.say(FoldModeAdopted(()))
    assert script.clears() == [("switched_off", 1, 0, 1)]
    script.batch(stored(2, "b"))
    assert script.notices == [] and script.prefixes("a") == {}
    assert [name for name, _ in script.fold.digests()] == ["intake", "ledger", "load", "registry", "status"]
    script.say(FoldModeAdopted((KV_INDEX,)))
    script.batch(stored(9, "a"))
    assert script.device("a") == {(1, 0): 1}


def test_a_head_has_27_bytes() -> None:
    assert KV_EVENT_HEAD.size == 27 and len(packed(1, 2)) == 16


@pytest.mark.req("KVX-10")
@pytest.mark.field("B-035")
@pytest.mark.parametrize("named", [0, 1])
def test_a_chain_whose_parent_is_one_of_its_own_blocks_stops_nothing(named: int) -> None:
    script = one_worker()
    tokens, names = chain("a", "b")
    parent = names[named * 8 : named * 8 + 8]
    script.batch(Event(KvOperation.STORED, 1, 1, 0, DEVICE, parent, tokens + names, 2))
    assert script.results() == {"orphan": 1} and script.device("a", "b") == {}
    script.batch(stored(2, "a", "b"))
    assert script.results() == {"applied": 1} and script.device("a", "b") == {(1, 0): 2}
    script.batch(Event(KvOperation.STORED, 3, 1, 0, DEVICE, parent, tokens + names, 2))
    assert script.device("b") == {} and script.results() == ({"self_parent": 1}, {"applied": 1})[named]
    script.batch(cleared(4), stored(5, "a", "b"))
    assert script.device("a", "b") == {(1, 0): 2} and script.fold.stopped is None


@pytest.mark.req("KVX-06")
@pytest.mark.field("B-036")
def test_a_hash_that_comes_twice_in_an_event_costs_no_other_block() -> None:
    script = one_worker()
    tokens, names = chain("a", "b", "c")
    script.batch(stored(1, "x", "y"))
    twice = names[:16] + names[8:16]
    script.batch(Event(KvOperation.STORED, 2, 1, 0, DEVICE, None, tokens + twice, 3), stored(3, "z"))
    assert script.clears() == [] and "gap" not in script.results()
    assert script.device("x", "y") == {(1, 0): 2} and script.device("z") == {(1, 0): 1}


@pytest.mark.req("KVX-14", "KVX-15")
@pytest.mark.field("B-037")
def test_a_gap_is_counted_once_and_ids_from_before_it_are_skipped() -> None:
    script = one_worker()
    script.batch(*(stored(number, f"old {number}") for number in range(1, 11)))
    script.batch(stored(15, "a"))
    assert script.results() == {"applied": 1, "gap": 1} and script.clears() == [("gap", 1, 0, 10)]
    script.batch(*(stored(number, f"late {number}") for number in range(11, 15)))
    assert script.results() == {"replay": 4} and script.device("late 11") == {}
    script.batch(stored(16, "a", "b", below=1), stored(17, "a", "b", "c", below=2))
    assert script.results() == {"applied": 2} and script.clears() == []
    assert script.device("a", "b", "c") == {(1, 0): 3}


@pytest.mark.req("KVX-10")
@pytest.mark.field("B-038")
def test_chains_below_blocks_from_before_our_start_wait_for_one_from_the_root() -> None:
    script = one_worker()
    script.batch(stored(5, "a", "b", below=1), stored(6, "a", "b", "c", below=2), stored(7, "x"))
    assert script.results() == {"applied": 1, "orphan": 2}
    assert script.blocks() == 1 and script.device("b") == {} and script.device("a", "b") == {}
    script.batch(stored(8, "a", "b", "c"), stored(9, "a", "b", "c", "d", below=3))
    assert script.results() == {"applied": 2} and script.device("a", "b", "c", "d") == {(1, 0): 4}


@pytest.mark.req("KVX-09", "KVX-10", "KVX-13", "KVX-14", "KVX-15", "BRS-11")
@pytest.mark.parametrize("seed", range(20))
def test_any_story_leaves_what_the_plain_rules_leave(seed: int) -> None:
    draw = random.Random(seed)
    fold, plain = Fold(), PlainRules()
    words = [struct.unpack(">Q", chain(word)[0])[0] for word in range(3)]
    for offset, data in enumerate(kv_story(1_000 + seed, 250)):
        fact = fold.apply(offset, data, [])
        if fact is not None:
            plain.take(decode_record(offset, data), fold.state.registry)
        elif isinstance(decode_record(offset, data).fact, KvBatchReceived):
            plain.stamp = fold.state.intake.stamp  # an owner's word, of which nothing was taken
        held = {row.rank[1:]: row.blocks[0] for row in index_at(fold).ranks if row.blocks[0]}
        assert held == {rank: len({*names.values()}) for rank, names in plain.held.items() if names}, offset
        path = [draw.randrange(3) for _ in range(draw.randrange(1, 6))]
        tokens = packed(*(words[one] for one in path))
        at = fold.state.intake.stamp + draw.choice((0, 1, 30, 59, 60, 61)) * S
        known = BlockHashes(16, len(path), 0, tokens)
        question = KvScript().question(model="tiny")._replace(asked_at=at, hashes=(known,))
        found = {
            key[1:]: prefix.device
            for key, prefix in fold.view(Overlay()).prefixes(question, KV).items()
            if prefix.device
        }
        numbers = tuple(words[one] for one in path)
        served = {worker.key.instance_id for worker in fold.state.registry.fleet.workers_of("tiny")}
        depths = {rank: plain.depth(rank, numbers, at) for rank in plain.held if rank[0] in served}
        assert found == {rank: depth for rank, depth in depths.items() if depth}, offset
