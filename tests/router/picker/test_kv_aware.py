"""Which phases are scored by prefix, in which namespaces, and what is told of it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from projections.events.codec import encode_value
from projections.events.control import ConditionalSettings, KvPickSettings
from projections.events.picks import KvResult, Outcome, PickReason, Question
from projections.kv.block_hash import block_hashes, seed_of
from projections.load.store import LoadStore
from projections.registry.fleet import Fleet, Role
from projections.view import RankPrefix, View
from router.picker.kv_aware import WEIGHT_MAX
from router.picker.pick import pick
from router.picker.rows import CandidateRow, unpack_rows
from tests.replay.prefix_log import PrefixLog, tokens_hashes
from tests.replay.prefix_log import ask as pick_of_prompt
from tests.replay.prefix_log import ask_hashes as pick_of_hashes
from tests.replay.recorded_log import Replica
from tests.router.picker.builders import (
    NOW,
    a_fleet,
    a_kv_question,
    a_prefix_view,
    a_question,
    a_record,
    a_sample,
    a_view,
    a_worker,
    kv_settings,
    some_settings,
)

A, D, P = Role.AGGREGATED, Role.DECODE, Role.PREFILL
BOTH = ("a", "b")
SPEC = kv_settings()
ISL_BOUNDING = ConditionalSettings("isl_bounding", 2_048, 0.7, None, None)


def ask(
    view: View, question: Question | None = None, kv: KvPickSettings | None = SPEC, **fields: Any
) -> Outcome:
    return pick(view, question or a_kv_question(), some_settings(kv=kv, **fields))


def ids(outcome: Outcome) -> tuple[int | None, int | None]:
    """Instance ids of the prefill and the decode rank."""
    prefill, decode = outcome.prefill.chosen, outcome.decode.chosen
    return prefill.instance_id if prefill else None, decode.instance_id if decode else None


def reasons(outcome: Outcome) -> tuple[PickReason, PickReason]:
    return PickReason(outcome.prefill.reason), PickReason(outcome.decode.reason)


def loads(fleet: Fleet, *said: tuple[str, int, int]) -> LoadStore:
    """Fresh blocks in use of (namespace, worker)."""
    load = LoadStore()
    for namespace, worker, blocks in said:
        sample = a_sample(worker, 1, blocks=blocks, namespace=namespace)
        load.apply_sample(a_record(sample, NOW), fleet)
    return load


def pairs(*namespaces: str) -> Fleet:
    """In each namespace prefill workers 1, 2 and decode workers 3, 4."""
    return a_fleet(
        *(
            a_worker(place, P if place < 3 else D, namespace)
            for namespace in namespaces
            for place in (1, 2, 3, 4)
        )
    )


@pytest.mark.req("DYN-01", "KVP-10", "KVP-13")
@pytest.mark.field("B-076")
def test_rank_that_holds_the_prefix_wins_until_its_load_outweighs_it() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A))
    held = {(2, 0): (8, 0, 0, 0)}
    near = ask(a_prefix_view(fleet, held, loads(fleet, ("dynamo", 1, 10), ("dynamo", 2, 25))))
    assert ids(near) == (None, 2)
    assert reasons(near) == (PickReason.NO_PREFILL_POOL, PickReason.KV_AWARE)
    assert (near.kv_result, near.overlap_blocks, near.block_size) == (KvResult.OVERLAP, 8, 16)
    far = ask(a_prefix_view(fleet, held, loads(fleet, ("dynamo", 1, 10), ("dynamo", 2, 27))))
    assert ids(far) == (None, 1)
    assert (far.kv_result, far.overlap_blocks, far.block_size) == (KvResult.NO_OVERLAP, 0, 16)


@pytest.mark.req("KVP-09", "DYN-20", "KVP-13")
@pytest.mark.field("B-039")
def test_decode_leg_of_a_pair_is_chosen_by_load_alone() -> None:
    fleet = pairs("dynamo")
    load = loads(fleet, ("dynamo", 3, 10), ("dynamo", 4, 11))
    outcome = ask(a_prefix_view(fleet, {(2, 0): (8, 0, 0, 0), (4, 0): (9, 0, 0, 0)}, load))
    assert ids(outcome) == (2, 3)
    assert reasons(outcome) == (PickReason.KV_AWARE, PickReason.LOAD)
    assert (outcome.kv_result, outcome.overlap_blocks) == (KvResult.OVERLAP, 8)
    assert [row.credit for row in unpack_rows(outcome.decode.rows)] == [None, None]
    assert [row.credit for row in unpack_rows(outcome.prefill.rows)] == [8.0, 0.0]
    plain = pick(a_view(fleet, load), a_question(), some_settings())
    assert outcome.decode == plain.decode


@pytest.mark.req("KVP-11", "MNS-05", "MNS-03")
def test_prefill_is_scored_across_namespaces_and_decode_inside_the_winner() -> None:
    fleet = a_fleet(
        *pairs("a").workers.values(),
        a_worker(5, P, "b"),
        a_worker(6, D, "b"),
        a_worker(7, P, "c"),  # no decode worker: nobody to pair with
    )
    names = ("a", "b", "c")
    load = loads(fleet, ("a", 3, 0), ("b", 6, 900))
    view = a_prefix_view(fleet, {(1, 0): (3, 0, 0, 0), (5, 0): (8, 0, 0, 0), (7, 0): (10, 0, 0, 0)}, load)
    outcome = ask(view, a_kv_question(namespaces=names), namespaces=names)
    assert (outcome.namespace, ids(outcome)) == ("b", (5, 6))
    assert outcome.prefill.candidates == 3
    by_load = pick(view, a_question(namespaces=names), some_settings(namespaces=names))
    assert by_load.namespace == "a"


@pytest.mark.req("KVP-11", "MIX-01", "MIX-02")
def test_aggregated_workers_beside_pairs_get_nothing() -> None:
    fleet = a_fleet(*pairs("a").workers.values(), a_worker(5, A, "a"), a_worker(6, A, "b"))
    view = a_prefix_view(fleet, {(5, 0): (10, 0, 0, 0), (6, 0): (10, 0, 0, 0)})
    outcome = ask(view, a_kv_question(namespaces=BOTH), namespaces=BOTH)
    assert outcome.namespace == "a"
    assert ids(outcome) == (1, 3)


@pytest.mark.req("KVP-12", "MIX-04")
def test_prefill_workers_beside_aggregated_ones_leave_the_fleet_aggregated() -> None:
    fleet = a_fleet(a_worker(1, P), a_worker(2, A), a_worker(3, A))
    outcome = ask(a_prefix_view(fleet, {(1, 0): (10, 0, 0, 0), (3, 0): (4, 0, 0, 0)}))
    assert ids(outcome) == (None, 3)
    assert reasons(outcome) == (PickReason.NO_PREFILL_POOL, PickReason.KV_AWARE)


@pytest.mark.req("KVP-04")
@pytest.mark.field("B-079")
def test_equal_costs_take_turns_by_the_rotation_of_the_phase() -> None:
    fleet = a_fleet(*(a_worker(place, A) for place in (1, 2, 3)))
    view = a_prefix_view(fleet, {(1, 0): (4, 0, 0, 0), (3, 0): (4, 0, 0, 0)}, loads(fleet, ("dynamo", 2, 0)))
    turns, rotation = [], 0
    for _ in range(4):
        outcome = ask(view, a_kv_question(rotation_decode=rotation))
        assert outcome.decode.reason == PickReason.KV_AWARE
        turns.append(ids(outcome)[1])
        rotation = outcome.rotation_decode
    assert turns == [1, 3, 1, 3]


@pytest.mark.req("KVP-04", "MNS-05")
def test_ties_across_namespaces_reach_every_worker() -> None:
    fleet = pairs(*BOTH)
    view = a_prefix_view(fleet, {})
    seen: list[tuple[Any, ...]] = []
    newest, decode = 0, {"a": 0, "b": 0}
    for _ in range(8):
        question = a_kv_question(
            namespaces=BOTH,
            rotation_prefill=newest,
            rotations_prefill=(0, 0),
            rotations_decode=(decode["a"], decode["b"]),
        )
        outcome = ask(view, question, namespaces=BOTH)
        newest = outcome.rotation_prefill
        assert outcome.namespace is not None
        decode[outcome.namespace] = outcome.rotation_decode
        seen.append((outcome.namespace, *ids(outcome)))
    assert {row[:2] for row in seen[:4]} == {("a", 1), ("a", 2), ("b", 1), ("b", 2)}
    assert {(row[0], row[2]) for row in seen} == {("a", 3), ("a", 4), ("b", 3), ("b", 4)}


@pytest.mark.req("KVP-05", "KVP-06", "DYN-06")
@pytest.mark.parametrize(("draw", "expected"), [(0.0, 1), (0.60, 1), (0.70, 2), (0.92, 3)])
def test_draw_of_the_phase_decides_with_a_temperature(draw: float, expected: int) -> None:
    """Costs 20, 30, 40: as 10, 20, 30 after normalising."""
    fleet = a_fleet(*(a_worker(place, A) for place in (1, 2, 3)))
    load = loads(fleet, ("dynamo", 1, 0), ("dynamo", 2, 10), ("dynamo", 3, 20))
    question = a_kv_question(draws=(0, int(draw * 2**53)))
    outcome = ask(a_prefix_view(fleet, {}, load), question, kv_settings(temperature=0.5))
    assert (ids(outcome)[1], outcome.decode.reason) == (expected, PickReason.KV_AWARE)
    assert unpack_rows(outcome.decode.rows)[0].instance_id == expected


@pytest.mark.req("KVP-05", "KVP-06")
def test_first_draw_is_for_prefill() -> None:
    fleet = pairs("dynamo")
    view = a_prefix_view(fleet, {(1, 0): (4, 0, 0, 0)})
    kv = kv_settings(temperature=1.0)
    assert ids(ask(view, a_kv_question(draws=(2**53 - 1, 0)), kv))[0] == 2
    assert ids(ask(view, a_kv_question(draws=(0, 2**53 - 1)), kv))[0] == 1


@pytest.mark.req("KVP-05")
def test_equal_costs_are_drawn_and_told_as_a_tie_where_no_backlog_is_known() -> None:
    fleet = a_fleet(*(a_worker(place, A) for place in (1, 2, 3, 4)))
    kv = kv_settings(temperature=0.5)
    outcome = ask(a_prefix_view(fleet, {}), a_kv_question(draws=(0, int(0.6 * 2**53))), kv)
    assert (ids(outcome)[1], outcome.decode.reason) == (3, PickReason.ROUND_ROBIN_STALE)
    load = loads(fleet, *(("dynamo", place, 5) for place in (1, 2, 3, 4)))
    outcome = ask(a_prefix_view(fleet, {}, load), a_kv_question(draws=(0, int(0.6 * 2**53))), kv)
    assert (ids(outcome)[1], outcome.decode.reason) == (3, PickReason.KV_AWARE)


def test_missing_draw_takes_the_lowest_cost() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A))
    view = a_prefix_view(fleet, {(2, 0): (1, 0, 0, 0)})
    assert ids(ask(view, a_kv_question(draws=(5,)), kv_settings(temperature=9.0)))[1] == 2


# Conditional disaggregation


def bypass_view(load: LoadStore | None = None) -> View:
    return a_prefix_view(pairs("dynamo"), {(2, 0): (8, 0, 0, 0), (4, 0): (9, 0, 0, 0)}, load)


@pytest.mark.req("CDG-01")
def test_decode_ranks_are_scored_by_prefix_where_they_may_prefill() -> None:
    fleet = pairs("dynamo")
    load = loads(fleet, ("dynamo", 3, 10), ("dynamo", 4, 25))
    kv = kv_settings(conditional=ISL_BOUNDING._replace(eff_isl_tokens=0))
    outcome = ask(bypass_view(load), kv=kv)
    assert ids(outcome) == (2, 4)
    rows = {row.instance_id: row for row in unpack_rows(outcome.decode.rows)}
    assert rows[4].cost == 25 + (10 - 9) - 9  # the overlap counts twice, as in Dynamo (Q12)
    assert rows[3].cost == 10 + 10
    assert reasons(outcome) == (PickReason.KV_AWARE, PickReason.KV_AWARE)
    assert (outcome.kv_result, outcome.overlap_blocks) == (KvResult.OVERLAP, 8)


@pytest.mark.req("CDG-01", "CDG-06", "KVP-13")
def test_bypass_chooses_no_prefill_rank_and_charges_the_decode_rank_with_what_it_computes() -> None:
    outcome = ask(bypass_view(), a_kv_question(rotation_prefill=7), kv_settings(conditional=ISL_BOUNDING))
    assert ids(outcome) == (None, 4)
    assert reasons(outcome) == (PickReason.CONDITIONAL_BYPASS, PickReason.KV_AWARE)
    assert (outcome.kv_result, outcome.overlap_blocks, outcome.block_size) == (KvResult.BYPASS, 9, 16)
    assert outcome.decode.chosen is not None
    assert (outcome.decode.chosen.tokens, outcome.decode.chosen.blocks) == (160 - 9 * 16, 10)
    assert outcome.rotation_prefill == 7
    assert outcome.prefill.candidates == 2


@pytest.mark.req("CDG-01")
def test_without_the_setting_nothing_is_bypassed() -> None:
    assert ids(ask(bypass_view()))[0] == 2


@pytest.mark.req("CDG-04", "CDG-05")
def test_full_or_unknown_decode_rank_does_not_prefill() -> None:
    conditional = ISL_BOUNDING._replace(decode_busy=0.5)
    kv = kv_settings(conditional=conditional)
    fleet = pairs("dynamo")
    assert ids(ask(bypass_view(), kv=kv))[0] == 2  # never sampled
    for blocks, prefill in ((499, None), (500, 2)):  # one block is added, 500 of 1,000 may be in use
        load = loads(fleet, ("dynamo", 3, 900), ("dynamo", 4, blocks))
        assert ids(ask(bypass_view(load), kv=kv)) == (prefill, 4)


# Where there is no term


@pytest.mark.req("KVP-13", "KVP-14")
@pytest.mark.parametrize(
    "result",
    [
        KvResult.OFF,
        KvResult.TOKENIZER_UNAVAILABLE,
        KvResult.PROMPT_TOO_LARGE,
        KvResult.RENDER_UNAVAILABLE,
        KvResult.ARTIFACT_UNPINNED,
        KvResult.UNSUPPORTED,
        KvResult.MISMATCHED,
    ],
)
def test_prompt_that_could_not_be_read_is_picked_by_load(result: KvResult) -> None:
    fleet = pairs("dynamo")
    view = a_prefix_view(fleet, {(2, 0): (8, 0, 0, 0)}, loads(fleet, ("dynamo", 4, 1)))
    outcome = ask(view, a_question(prompt_result=int(result)))
    plain = pick(view, a_question(), some_settings())
    assert outcome == plain._replace(kv_result=int(result))


@pytest.mark.req("KVP-13")
def test_without_settings_of_the_term_the_outcome_has_the_bytes_of_before() -> None:
    fleet = pairs("dynamo")
    view = a_prefix_view(fleet, {(2, 0): (8, 0, 0, 0)})
    outcome, plain = ask(view, kv=None), pick(a_view(fleet), a_question(), some_settings())
    assert encode_value(outcome) == encode_value(plain)


@pytest.mark.req("DYN-16")
def test_round_robin_takes_no_notice_of_prefixes() -> None:
    fleet = pairs("dynamo")
    outcome = ask(a_prefix_view(fleet, {(2, 0): (8, 0, 0, 0)}), picker="round_robin")
    assert outcome == pick(a_view(fleet), a_question(), some_settings(picker="round_robin"))


def test_nobody_to_choose_is_told_as_such() -> None:
    outcome = ask(a_prefix_view(a_fleet(a_worker(1, P)), {}))
    assert reasons(outcome) == (PickReason.NO_CANDIDATE, PickReason.NO_CANDIDATE)
    assert outcome.kv_result == KvResult.NO_OVERLAP


class BrokenView(View):
    """A view whose prefixes cannot be had."""

    __slots__ = ("fault",)

    fault: Any

    def prefixes(self, question: Question, kv: KvPickSettings) -> Any:
        """Raise, or give what no view gives."""
        if isinstance(self.fault, Exception):
            raise self.fault
        return self.fault


@pytest.mark.req("KVP-14")
@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError("torn"),
        MemoryError(),
        OverflowError(),
        {("dynamo", 1, 0): None},
        {("dynamo", 1, 0): (1, 2)},
        {("dynamo", 1, 0): (10**400, 0, 0, 0)},
        7,
    ],
    ids=["bug", "memory", "overflow", "none", "short", "vast", "number"],
)
def test_any_failure_of_the_term_leaves_the_pick_to_loads(fault: Any) -> None:
    fleet = pairs("dynamo")
    plain = a_view(fleet)
    view = BrokenView(0, fleet, plain.load, plain.ledger, plain.overlay)
    view.fault = fault
    outcome = ask(view)
    assert outcome == pick(plain, a_question(), some_settings())._replace(kv_result=KvResult.UNSUPPORTED)


@pytest.mark.req("KVP-14")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, WEIGHT_MAX * 2])
@pytest.mark.parametrize("field", KvPickSettings._fields[:6])
def test_weights_that_no_configuration_allows_leave_the_pick_to_loads(field: str, value: float) -> None:
    view = a_prefix_view(pairs("dynamo"), {(2, 0): (8, 1, 1, 9)})
    assert ask(view, kv=kv_settings(**{field: value})).kv_result == KvResult.UNSUPPORTED


@pytest.mark.req("KVP-14")
def test_vast_numbers_are_picked_all_the_same() -> None:
    fleet = a_fleet(a_worker(1, A, block_size=1), a_worker(2, A, block_size=2**40))
    load = LoadStore()
    sample = a_sample(1, 1, blocks=2**64 - 1, tokens=2**64 - 1)
    load.apply_sample(a_record(sample, NOW), fleet)
    kv = kv_settings(overlap_credit=WEIGHT_MAX, prefill_scale=WEIGHT_MAX, credit_decay=WEIGHT_MAX)
    outcome = ask(a_prefix_view(fleet, {(1, 0): (2**40, 0, 0, 0)}, load), a_kv_question(2**63), kv)
    assert outcome.decode.reason == PickReason.KV_AWARE


@pytest.mark.field("B-084")
def test_prompt_shorter_than_a_block_has_no_overlap_and_is_picked() -> None:
    outcome = ask(a_prefix_view(pairs("dynamo"), {}), a_kv_question(3))
    assert outcome.kv_result == KvResult.NO_OVERLAP
    assert ids(outcome) == (1, 3)


def test_scored_phase_charges_the_counted_tokens() -> None:
    outcome = ask(a_prefix_view(pairs("dynamo"), {}), a_kv_question(330, estimated_tokens=100))
    assert outcome.prefill.chosen is not None and outcome.decode.chosen is not None
    assert (outcome.prefill.chosen.tokens, outcome.prefill.chosen.blocks) == (330, 21)
    assert (outcome.decode.chosen.tokens, outcome.decode.chosen.blocks) == (0, 7)


# What others met


@pytest.mark.req("DYN-01")
@pytest.mark.field("B-076")
def test_one_prefix_of_all_prompts_does_not_bind_them_to_the_worker_that_has_it() -> None:
    """128 of 160 blocks are in all of them; sixteen prompts run at any time."""
    fleet = a_fleet(*(a_worker(place, A) for place in range(1, 9)))
    held = {(1, 0): (128, 0, 0, 0)}
    chosen: list[int] = []
    for number in range(1, 65):
        running = chosen[-16:]
        load = loads(fleet, *(("dynamo", place, 160 * running.count(place)) for place in range(1, 9)))
        winner = ids(ask(a_prefix_view(fleet, held, load), a_kv_question(2_560, request_id=str(number))))[1]
        assert winner is not None
        chosen.append(winner)
        held[winner, 0] = (128, 0, 0, 0)
    assert {*chosen} == {*range(1, 9)}, "idle workers get warm"
    assert max(map(chosen.count, range(1, 9))) <= 16
    assert chosen[:2] == [1, 1], "and credit weighs, while the load allows it"


@pytest.mark.req("DYN-01", "KVP-10")
@pytest.mark.field("B-082")
def test_prefix_parts_workers_of_nearly_equal_load_though_loads_differ_widely() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A), a_worker(3, A))
    load = loads(fleet, ("dynamo", 1, 100), ("dynamo", 2, 30), ("dynamo", 3, 20))
    assert ids(ask(a_prefix_view(fleet, {(2, 0): (8, 0, 0, 0)}, load))) == (None, 2)
    assert ids(ask(a_prefix_view(fleet, {}, load))) == (None, 3)


@pytest.mark.req("DYN-01")
@pytest.mark.field("B-080")
def test_where_nobody_has_the_prompt_the_load_decides() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A))
    view = a_prefix_view(fleet, {}, loads(fleet, ("dynamo", 1, 40), ("dynamo", 2, 0)))
    outcome = ask(view)
    assert (ids(outcome), outcome.kv_result) == ((None, 2), KvResult.NO_OVERLAP)


class OfAnybody(View):
    """A view that says what it is told of ranks that no live worker has."""

    __slots__ = ()

    def prefixes(self, question: Question, kv: KvPickSettings) -> Any:
        """Ten blocks of a rank that has gone, and of one that was never declared."""
        return {("dynamo", 9, 0): RankPrefix(10, 0, 0, 0), ("dynamo", 1, 7): RankPrefix(10, 0, 0, 0)}


@pytest.mark.field("B-004")
def test_prefix_of_a_rank_that_is_not_in_the_fleet_makes_no_candidate() -> None:
    fleet = a_fleet(a_worker(1, A), a_worker(2, A))
    plain = a_view(fleet, loads(fleet, ("dynamo", 1, 5), ("dynamo", 2, 4)))
    outcome = ask(OfAnybody(0, fleet, plain.load, plain.ledger, plain.overlay))
    assert (ids(outcome), outcome.kv_result) == ((None, 2), KvResult.NO_OVERLAP)
    assert [row.instance_id for row in unpack_rows(outcome.decode.rows)] == [2, 1]


# On a log: events, predictions, salts


def ask_prompt(replica: Replica, request_id: str, name: str, blocks: int) -> Outcome:
    """The outcome of a pick that stands in the log."""
    return pick_of_prompt(replica, request_id, name, blocks).outcome


def ask_hashes(replica: Replica, request_id: str, hashes: bytes) -> Outcome:
    """The same of a prompt's packed hashes."""
    return pick_of_hashes(replica, request_id, hashes).outcome


BURST_BLOCKS = 40  # what 20 requests do not share, half a block each, is less than this


def burst(world: PrefixLog, count: int, step_us: int, name: str = "a") -> list[int | None]:
    """Decode ranks of prompts that follow each other, none of them answered; the log keeps up."""
    replica = world.replica()
    found = []
    for number in range(count):
        world.pass_time(step_us)
        replica.read()
        found.append(ids(ask_prompt(replica, f"r{number}", name, BURST_BLOCKS))[1])
    return found


def idle(world: PrefixLog) -> PrefixLog:
    """Every worker has a fresh sample of no load."""
    for worker in (1, 2, 3):
        world.sample(worker, 0)
    return world


PREDICTING = SPEC._replace(predicted_ttl_us=2_000_000, approximate_ttl_us=2_000_000)


@pytest.mark.req("DYN-04")
@pytest.mark.parametrize("ledger", [True, False], ids=["", "without a ledger"])
@pytest.mark.parametrize("has_samples", [True, False], ids=["samples", "no samples"])
def test_burst_of_one_prefix_lands_together_before_any_event_says_so(ledger: bool, has_samples: bool) -> None:
    def begun(kv: KvPickSettings) -> PrefixLog:
        world = PrefixLog(kv=kv, ledger=ledger)
        return idle(world) if has_samples else world

    found = burst(begun(PREDICTING), 20, 2_500)
    assert found == [found[0]] * 20
    assert set(burst(begun(SPEC), 20, 2_500)) == {1, 2, 3}


@pytest.mark.req("DYN-04")
def test_burst_moves_on_where_its_own_parts_outweigh_the_prefix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "BURST_BLOCKS", 10)
    found = burst(idle(PrefixLog(kv=PREDICTING)), 20, 2_500)
    # 1.5 blocks of cost a prompt, half of one to compute and one in use, against 21.5 on an idle rank
    assert found == [found[0]] * 14 + [found[14]] * 6 and found[14] != found[0]


@pytest.mark.req("DYN-04")
def test_replica_of_a_release_before_charges_a_burst_in_full() -> None:
    world = idle(PrefixLog(kv=PREDICTING))
    replica = world.replica(flags=())
    found = set()
    for number in range(6):
        world.pass_time(2_500)
        replica.read()
        found.add(ids(ask_prompt(replica, f"r{number}", "a", 10))[1])
    assert found == {1, 2, 3}


@pytest.mark.req("DYN-04", "STORE-06")
def test_what_is_under_way_weighs_by_what_it_does_not_share() -> None:
    world = idle(PrefixLog(kv=PREDICTING))
    replica = world.replica()
    common = tokens_hashes("a", 10)
    placed = []
    paths = common, common[: 8 * 8] + tokens_hashes("b", 2), tokens_hashes("c", 10)
    for number, path in enumerate(paths):
        world.pass_time(2_500)
        replica.read()
        placed.append(ids(ask_hashes(replica, f"r{number}", path))[1])
    replica.read()
    first, second, third = placed
    # two blocks beside eight shared ones are less than an idle rank would have to do
    assert first is not None and third is not None and first == second != third
    asked = ask_hashes(replica, "asked", common)
    rows = {row.instance_id: row for row in unpack_rows(asked.decode.rows)}
    # two prompts of 11 blocks that share ten and eight; 168 tokens, and 40 behind eight blocks
    assert (rows[first].unanswered_blocks, rows[first].unanswered_tokens) == (22 - 18, 168 + 40 - 160)
    assert (rows[third].unanswered_blocks, rows[third].unanswered_tokens) == (11, 168)
    assert ids(asked)[1] == first


@pytest.mark.req("DYN-04", "STORE-07")
def test_what_a_sample_answered_is_not_under_way() -> None:
    world = idle(PrefixLog(kv=PREDICTING))
    replica = world.replica()
    first = ids(ask_prompt(replica, "first", "a", 10))[1]
    assert first is not None

    def asked(request_id: str) -> CandidateRow:
        world.pass_time(10_000)
        replica.read()
        rows = unpack_rows(ask_prompt(replica, request_id, "a", 10).decode.rows)
        return next(row for row in rows if row.instance_id == first)

    world.pass_time(10_000)
    world.sample(first, 0)
    row = asked("later")
    assert (row.unanswered_blocks, row.unanswered_tokens, row.predicted_blocks) == (0, 0, 10)
    row = asked("last")
    # the later one is under way there: ten of its 11 blocks are shared, its 8 tokens are its own
    assert (row.unanswered_blocks, row.unanswered_tokens) == (1, 8)


@pytest.mark.req("DYN-04", "DYN-08")
def test_prediction_ends_with_its_time() -> None:
    kv = SPEC._replace(overlap_credit=3.0, approximate_ttl_us=2_000_000)
    world = idle(PrefixLog(kv=kv))
    replica = world.replica()
    first = ask_prompt(replica, "first", "a", 10)
    assert first.kv_result == KvResult.NO_OVERLAP
    replica.read()
    world.pass_time(1_999_999)
    second = ask_prompt(replica, "second", "a", 10)
    assert (second.kv_result, second.overlap_blocks) == (KvResult.OVERLAP, 10)
    world = idle(PrefixLog(kv=kv))
    replica = world.replica()
    ask_prompt(replica, "first", "a", 10)
    replica.read()
    world.pass_time(2_000_000)
    assert ask_prompt(replica, "late", "a", 10).kv_result == KvResult.NO_OVERLAP


@pytest.mark.req("DYN-01", "DYN-07", "RND-12")
def test_prompt_of_another_salt_has_no_overlap() -> None:
    world = idle(PrefixLog())
    tokens = b"".join(token.to_bytes(4, "little") for token in range(160))
    mine, other = (block_hashes(tokens, 16, seed_of(None, salt)) for salt in ("tenant a", "tenant b"))
    world.store_hashes(2, mine)
    replica = world.replica()
    assert ask_hashes(replica, "mine", mine).overlap_blocks == 10
    replica.read()
    assert ask_hashes(replica, "other", other).overlap_blocks == 0
