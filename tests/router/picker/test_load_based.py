"""The rule that compares backlogs, one table row at a time."""

from __future__ import annotations

from typing import Any

import pytest

from projections.events.picks import (
    ExcludedReason,
    Fault,
    Outcome,
    Phase,
    PickReason,
    Question,
    Verdict,
)
from projections.load.ledger import Ledger
from projections.load.store import LoadStore
from projections.registry.fleet import Fleet, Role
from projections.view import Overlay, View
from router.picker.load_based import rotation_prefill
from router.picker.pick import candidate_table, pick
from router.picker.rows import CandidateRow
from tests.router.picker.builders import (
    NOW,
    S,
    a_fleet,
    a_question,
    a_record,
    a_sample,
    a_view,
    a_worker,
    an_end,
    made,
    some_settings,
)

P, D, A = Role.PREFILL, Role.DECODE, Role.AGGREGATED


def sampled(
    fleet: Fleet, *samples: tuple[int, int | None, int | None], age: int = 0, rank: int = 0
) -> LoadStore:
    """(worker, decode blocks, prefill tokens), received `age` before NOW."""
    load = LoadStore()
    for worker, blocks, tokens in samples:
        sample = a_sample(worker, 1, rank=rank, blocks=blocks, tokens=tokens)
        load.apply_sample(a_record(sample, NOW - age), fleet)
    return load


def rows_of(
    view: View, phase: Phase = Phase.DECODE, question: Question | None = None
) -> dict[int, CandidateRow]:
    table = candidate_table(view, question or a_question(), some_settings())[phase]
    return {row.instance_id: row for row in table}


def asked(view: View, question: Question | None = None, **settings: Any) -> Outcome:
    return pick(view, question or a_question(), some_settings(**settings))


def winner(outcome: Outcome, phase: str = "decode") -> int | None:
    chosen = getattr(outcome, phase).chosen
    return None if chosen is None else chosen.instance_id


@pytest.mark.req("PICK-01")
@pytest.mark.parametrize(
    ("tokens", "batch", "cost"),
    [(0, 8_192, 0.0), (4_096, 8_192, 0.5), (100, 3, 100 / 3), (9_000, 8_192, 9_000 / 8_192)],
)
def test_prefill_cost(tokens: int, batch: int, cost: float) -> None:
    fleet = a_fleet(a_worker(1, P, max_num_batched_tokens=batch), a_worker(2, D))
    assert rows_of(a_view(fleet, sampled(fleet, (1, None, tokens))), Phase.PREFILL)[1].cost == cost


@pytest.mark.req("PICK-02")
@pytest.mark.field("B-022")
@pytest.mark.parametrize(
    ("blocks", "prompt", "size", "total", "cost"),
    [
        (0, 160, 16, 1_000, 0.01),
        (90, 160, 16, 1_000, 0.1),
        (0, 161, 16, 1_000, 0.011),
        (0, 1, 16, 1_000, 0.001),
        (7, 100, 3, 333, 41 / 333),
        (2_000, 16, 16, 1_000, 2.001),
    ],
)
def test_decode_cost(blocks: int, prompt: int, size: int, total: int, cost: float) -> None:
    fleet = a_fleet(a_worker(1, block_size=size, total_kv_blocks=total))
    view = a_view(fleet, sampled(fleet, (1, blocks, None)))
    assert rows_of(view, question=a_question(estimated_tokens=prompt))[1].cost == cost


@pytest.mark.req("PICK-04")
def test_blocks_in_use_stand_in_for_active_blocks() -> None:
    fleet, load = a_fleet(a_worker(1), a_worker(2)), LoadStore()
    load.apply_sample(a_record(a_sample(1, 1, used=500)), fleet)
    load.apply_sample(a_record(a_sample(2, 1, blocks=90, used=900)), fleet)
    rows = rows_of(a_view(fleet, load))
    assert (rows[1].cost, rows[1].active_decode_blocks) == (0.51, 500)
    assert (rows[2].cost, rows[2].active_decode_blocks) == (0.1, 90)


@pytest.mark.req("PICK-05")
@pytest.mark.field("B-020", "B-021")
def test_each_declared_rank_is_a_candidate_with_its_own_load() -> None:
    fleet = a_fleet(a_worker(1, dp_size=2, dp_start_rank=8, dp_declared=True))
    outcome = asked(a_view(fleet, sampled(fleet, (1, 500, None), rank=8)))
    assert outcome.decode.candidates == 2
    assert outcome.decode.chosen is not None
    assert (outcome.decode.chosen.dp_rank, outcome.decode.chosen.pin_rank) == (9, True)


@pytest.mark.req("PICK-06", "PICK-08")
@pytest.mark.field("B-023")
@pytest.mark.parametrize(
    "missing", [{"total_kv_blocks": None}, {"block_size": None}, {"total_kv_blocks": 0}, {"block_size": 0}]
)
def test_worker_without_capacity_has_no_cost_and_is_not_chosen(missing: dict[str, Any]) -> None:
    fleet = a_fleet(a_worker(1, **missing), a_worker(2))
    view = a_view(fleet, sampled(fleet, (1, 0, None), (2, 900, None)))
    assert rows_of(view)[1].cost is None
    outcome = asked(view)
    assert (winner(outcome), outcome.decode.reason) == (2, PickReason.LOAD)


@pytest.mark.req("PICK-06")
def test_prefill_worker_without_a_batch_size_has_no_cost() -> None:
    fleet = a_fleet(a_worker(1, P, max_num_batched_tokens=None), a_worker(2, P), a_worker(3, D))
    outcome = asked(a_view(fleet, sampled(fleet, (1, None, 0), (2, None, 9_000))))
    assert (winner(outcome, "prefill"), outcome.prefill.reason) == (2, PickReason.LOAD)


@pytest.mark.req("PICK-07", "PICK-10")
def test_pool_whose_samples_lack_the_field_takes_turns() -> None:
    fleet = a_fleet(a_worker(1, P), a_worker(2, P), a_worker(3, D))
    view = a_view(fleet, sampled(fleet, (1, None, None), (2, 5, None), (3, 5, None)))
    turns = []
    rotation = 0
    for _ in range(4):
        outcome = asked(view, a_question(rotation_prefill=rotation))
        assert outcome.prefill.reason == PickReason.ROUND_ROBIN_STALE
        assert outcome.decode.reason == PickReason.LOAD
        turns.append(winner(outcome, "prefill"))
        rotation = outcome.rotation_prefill
    assert turns == [1, 2, 1, 2]
    assert {row.cost for row in rows_of(view, Phase.PREFILL).values()} == {None}


@pytest.mark.req("PICK-07", "PICK-08")
def test_fresh_sample_without_the_field_has_no_cost_beside_one_that_has_it() -> None:
    fleet = a_fleet(a_worker(1, P), a_worker(2, P), a_worker(3, D))
    outcome = asked(a_view(fleet, sampled(fleet, (1, None, None), (2, None, 8_000))))
    assert (winner(outcome, "prefill"), outcome.prefill.reason) == (2, PickReason.LOAD)
    assert outcome.prefill.margin is None


@pytest.mark.req("PICK-08")
@pytest.mark.field("B-033", "B-080")
def test_lowest_cost_wins_and_the_margin_is_told() -> None:
    fleet = a_fleet(a_worker(1), a_worker(2), a_worker(3))
    outcome = asked(a_view(fleet, sampled(fleet, (1, 500, None), (2, 250, None), (3, 750, None))))
    assert (winner(outcome), outcome.decode.reason, outcome.decode.margin) == (
        2,
        PickReason.LOAD,
        0.51 - 0.26,
    )
    assert outcome.rotation_decode == 2


@pytest.mark.req("PICK-09")
@pytest.mark.field("B-081")
def test_equal_workers_take_turns_and_each_model_has_its_own() -> None:
    fleet = a_fleet(*(a_worker(place, A) for place in (1, 2, 3)))
    view = a_view(fleet, sampled(fleet, (1, 5, None), (2, 5, None), (3, 5, None)))
    turns, rotation = [], 0
    for _ in range(4):
        outcome = asked(view, a_question(rotation_decode=rotation))
        turns.append(winner(outcome))
        rotation = outcome.rotation_decode
    assert turns == [1, 2, 3, 1]
    assert winner(asked(view, a_question())) == 1


@pytest.mark.req("PICK-10", "STORE-05")
@pytest.mark.field("B-034")
def test_without_any_fresh_sample_all_candidates_take_turns() -> None:
    fleet = a_fleet(a_worker(1), a_worker(2), a_worker(3, total_kv_blocks=None))
    view = a_view(fleet, sampled(fleet, (1, 500, None), age=4 * S))
    turns, rotation = [], 0
    for _ in range(6):
        outcome = asked(view, a_question(rotation_decode=rotation))
        assert outcome.decode.reason == PickReason.ROUND_ROBIN_STALE
        turns.append(winner(outcome))
        rotation = outcome.rotation_decode
    assert turns == [1, 2, 3, 1, 2, 3]


@pytest.mark.req("PICK-10")
def test_costs_that_are_all_undefined_say_round_robin_though_samples_are_fresh() -> None:
    fleet = a_fleet(a_worker(1, total_kv_blocks=None), a_worker(2, total_kv_blocks=None))
    outcome = asked(a_view(fleet, sampled(fleet, (1, 5, None), (2, 5, None))), a_question(rotation_decode=1))
    assert (winner(outcome), outcome.decode.reason) == (2, PickReason.ROUND_ROBIN_STALE)


@pytest.mark.req("STORE-02")
def test_staleness_is_that_of_the_settings() -> None:
    fleet = a_fleet(a_worker(1))
    view = a_view(fleet, sampled(fleet, (1, 5, None), age=S))
    assert asked(view).decode.reason == PickReason.LOAD
    assert asked(view, max_staleness_us=S).decode.reason == PickReason.LOAD
    assert asked(view, max_staleness_us=S // 10).decode.reason == PickReason.ROUND_ROBIN_STALE


@pytest.mark.req("STORE-03")
@pytest.mark.field("B-027")
@pytest.mark.parametrize("said", [[], [(1, 0, None)]])
def test_quiet_worker_competes_as_idle(said: list[tuple[int, int | None, int | None]]) -> None:
    fleet = a_fleet(a_worker(1), a_worker(2))
    load = sampled(fleet, *said, age=60 * S)
    load.apply_sample(a_record(a_sample(2, 1, blocks=10)), fleet)
    view = a_view(fleet, load)
    assert rows_of(view)[1].verdict is Verdict.QUIET
    assert rows_of(view)[1].cost == 0.01
    assert winner(asked(view)) == 1


@pytest.mark.req("STORE-04")
def test_silent_worker_is_not_chosen_while_another_has_a_cost() -> None:
    fleet = a_fleet(a_worker(1), a_worker(2))
    load = sampled(fleet, (1, 1, None), age=4 * S)
    load.apply_sample(a_record(a_sample(2, 1, blocks=999)), fleet)
    view = a_view(fleet, load)
    assert (rows_of(view)[1].verdict, rows_of(view)[1].cost) == (Verdict.SILENT, None)
    assert winner(asked(view)) == 2


def dispatched(fleet: Fleet, worker: int, at: int, number: int = 1, ledger: Ledger | None = None) -> Ledger:
    """A ledger with a pick of `worker` at `at`, 10 blocks."""
    ledger = ledger or Ledger()
    alone = a_fleet(*(one for key, one in fleet.workers.items() if key.instance_id == worker))
    question = a_question(asked_at=at)
    outcome = asked(a_view(alone), question)
    ledger.apply_pick(a_record(made(question, outcome, number)), fleet)
    return ledger


@pytest.mark.req("STORE-08")
@pytest.mark.field("B-085")
def test_stalled_worker_is_not_chosen_while_another_has_a_cost() -> None:
    fleet = a_fleet(a_worker(1), a_worker(2))
    view = a_view(fleet, sampled(fleet, (2, 999, None)), dispatched(fleet, 1, NOW - 5 * S))
    assert (rows_of(view)[1].verdict, rows_of(view)[1].cost) == (Verdict.STALLED, None)
    assert winner(asked(view)) == 2
    assert winner(asked(view, ledger=False)) == 1


@pytest.mark.req("STORE-12")
def test_stalls_do_not_count_in_a_silent_fleet() -> None:
    fleet = a_fleet(a_worker(1), a_worker(2))
    view = a_view(fleet, ledger=dispatched(fleet, 1, NOW - 6 * S))
    assert winner(asked(view)) == 1
    assert asked(view).decode.reason == PickReason.ROUND_ROBIN_STALE


@pytest.mark.req("DYN-14")
@pytest.mark.field("B-005")
def test_suspect_worker_is_left_out_unless_all_are() -> None:
    fleet = a_fleet(a_worker(1), a_worker(2))
    load = sampled(fleet, (1, 5, None), (2, 900, None), age=2 * S)
    ledger = dispatched(fleet, 1, NOW - S)
    ledger.apply_end(a_record(an_end((1).to_bytes(16, "big"), NOW, fault=Fault.FAULT)))
    view = a_view(fleet, load, ledger)
    row = rows_of(view)[1]
    assert (row.verdict, row.excluded, row.cost) == (Verdict.EXCLUDED, ExcludedReason.SUSPECT, None)
    outcome = asked(view)
    assert winner(outcome) == 2 and outcome.decode.candidates == 2
    dispatched(fleet, 2, NOW - S, 3, ledger)
    ledger.apply_end(a_record(an_end((3).to_bytes(16, "big"), NOW, fault=Fault.FAULT, number=4)))
    assert winner(asked(view)) == 1
    assert {row.excluded for row in rows_of(view).values()} == {ExcludedReason.NONE}


def test_fresh_sample_of_a_suspect_worker_does_not_make_the_others_compete() -> None:
    fleet = a_fleet(a_worker(1), a_worker(2))
    ledger = dispatched(fleet, 1, NOW - S)
    ledger.apply_end(a_record(an_end((1).to_bytes(16, "big"), NOW, fault=Fault.FAULT)))
    outcome = asked(a_view(fleet, sampled(fleet, (1, 5, None), age=S), ledger))
    assert (winner(outcome), outcome.decode.reason) == (2, PickReason.ROUND_ROBIN_STALE)


@pytest.mark.req("DYN-14")
def test_suspect_worker_is_left_out_of_a_rotation_too() -> None:
    fleet = a_fleet(a_worker(1), a_worker(2), a_worker(3))
    ledger = dispatched(fleet, 2, NOW - S)
    ledger.apply_end(a_record(an_end((1).to_bytes(16, "big"), NOW, fault=Fault.FAULT)))
    turns, rotation = [], 0
    for _ in range(4):
        outcome = asked(a_view(fleet, ledger=ledger), a_question(rotation_decode=rotation))
        turns.append(winner(outcome))
        rotation = outcome.rotation_decode
    assert turns == [1, 3, 1, 3]


@pytest.mark.req("STORE-06")
@pytest.mark.field("B-077", "B-083")
def test_burst_between_two_samples_spreads() -> None:
    fleet = a_fleet(*(a_worker(place, A) for place in range(1, 6)))
    view = a_view(fleet, sampled(fleet, *((place, 100, None) for place in range(1, 6))), overlay=Overlay())
    counts: dict[int | None, int] = {}
    rotation = 0
    for number in range(1, 11):
        question = a_question(asked_at=NOW + number, rotation_decode=rotation)
        outcome = asked(view, question)
        view.overlay.add_pick(made(question, outcome, number))
        rotation = outcome.rotation_decode
        counts[winner(outcome)] = counts.get(winner(outcome), 0) + 1
    assert counts == dict.fromkeys(range(1, 6), 2)


@pytest.mark.req("STORE-06")
@pytest.mark.field("B-083")
def test_prefill_burst_spreads_by_prompt_tokens() -> None:
    fleet = a_fleet(a_worker(1, P), a_worker(2, P), a_worker(3, D))
    view = a_view(fleet, sampled(fleet, (1, None, 0), (2, None, 480)), overlay=Overlay())
    turns = []
    for number in range(1, 6):
        question = a_question(asked_at=NOW + number)
        outcome = asked(view, question)
        view.overlay.add_pick(made(question, outcome, number))
        turns.append(winner(outcome, "prefill"))
    assert turns[:3] == [1, 1, 1] and {*turns[3:]} == {1, 2}


@pytest.mark.req("PICK-08")
@pytest.mark.field("B-031")
def test_workers_with_little_room_get_nothing_while_another_has_more() -> None:
    fleet = a_fleet(*(a_worker(place, A) for place in (1, 2, 3, 4)))
    view = a_view(fleet, sampled(fleet, (1, 950, None), (2, 930, None), (3, 100, None), (4, 910, None)))
    rotation = 0
    for number in range(1, 13):
        question = a_question(asked_at=NOW + number, rotation_decode=rotation)
        outcome = asked(view, question)
        view.overlay.add_pick(made(question, outcome, number))
        rotation = outcome.rotation_decode
        assert winner(outcome) == 3


@pytest.mark.req("PICK-09")
@pytest.mark.field("B-028", "B-081")
def test_workers_that_always_report_nought_share_requests_that_follow_each_other() -> None:
    fleet = a_fleet(*(a_worker(place, A) for place in (1, 2, 3, 4)))
    load, overlay, rotation, turns = LoadStore(), Overlay(), 0, []
    for number in range(1, 9):
        now = NOW + number * S
        for place in (1, 2, 3, 4):  # stamped after the dispatch before it, which it answers
            load.apply_sample(a_record(a_sample(place, number, blocks=0, tokens=0, used=0), now), fleet)
        question = a_question(asked_at=now, rotation_decode=rotation)
        outcome = asked(a_view(fleet, load, overlay=overlay), question)
        overlay.add_pick(made(question, outcome, number))
        rotation = outcome.rotation_decode
        turns.append(winner(outcome))
    assert turns == [1, 2, 3, 4] * 2


@pytest.mark.req("STORE-06")
@pytest.mark.field("B-028")
def test_burst_to_workers_that_report_nought_is_shared_by_what_was_sent() -> None:
    fleet = a_fleet(*(a_worker(place, A) for place in (1, 2, 3, 4)))
    view = a_view(fleet, sampled(fleet, *((place, 0, None) for place in (1, 2, 3, 4))))
    turns = []
    for number in range(1, 9):
        question = a_question(asked_at=NOW + number)  # no rotation: the charges alone part them
        outcome = asked(view, question)
        view.overlay.add_pick(made(question, outcome, number))
        turns.append(winner(outcome))
    assert {*turns[:4]} == {*turns[4:]} == {1, 2, 3, 4}


@pytest.mark.req("PICK-02")
@pytest.mark.field("B-084")
def test_prompt_shorter_than_a_block_is_paired_by_load_like_any_other() -> None:
    fleet = a_fleet(a_worker(1, P), a_worker(2, P), a_worker(3, D), a_worker(4, D))
    load = sampled(fleet, (1, None, 900), (2, None, 100), (3, 50, None), (4, 900, None))
    outcome = asked(a_view(fleet, load), a_question(estimated_tokens=10))
    assert (winner(outcome, "prefill"), winner(outcome)) == (2, 3)
    assert (outcome.prefill.reason, outcome.decode.reason) == (PickReason.LOAD, PickReason.LOAD)


@pytest.mark.req("STORE-07")
@pytest.mark.field("B-085")
def test_mute_worker_fills_only_to_its_peers_load() -> None:
    fleet = a_fleet(a_worker(1), a_worker(2), a_worker(3))
    view = a_view(fleet, sampled(fleet, (2, 50, None), (3, 50, None)), overlay=Overlay())
    turns = []
    for number in range(1, 9):
        question = a_question(asked_at=NOW + number)
        outcome = asked(view, question)
        view.overlay.add_pick(made(question, outcome, number))
        turns.append(winner(outcome))
    assert turns[:5] == [1] * 5
    assert sorted(turn for turn in turns[5:] if turn) == [1, 2, 3]


@pytest.mark.req("MIX-04")
def test_aggregated_winner_has_no_prefill_pick() -> None:
    fleet = a_fleet(a_worker(1, P), a_worker(2, A))
    outcome = asked(a_view(fleet), a_question(rotation_prefill=5))
    assert (winner(outcome), winner(outcome, "prefill")) == (2, None)
    assert (outcome.prefill.reason, outcome.prefill.candidates) == (PickReason.NO_PREFILL_POOL, 0)
    assert outcome.rotation_prefill == 5
    assert outcome.decode.chosen is not None
    assert (outcome.decode.chosen.tokens, outcome.decode.chosen.blocks) == (160, 10)


@pytest.mark.req("MNS-04", "MNS-03")
def test_decode_is_compared_across_namespaces_and_prefill_chosen_inside_the_winners() -> None:
    fleet = a_fleet(
        a_worker(1, P),
        a_worker(2, D),
        a_worker(3, P, "other"),
        a_worker(4, P, "other"),
        a_worker(5, D, "other"),
    )
    load = LoadStore()
    for worker, namespace, blocks, tokens in (
        (1, "dynamo", None, 0),
        (2, "dynamo", 500, None),
        (3, "other", None, 900),
        (4, "other", None, 800),
        (5, "other", 400, None),
    ):
        sample = a_sample(worker, 1, blocks=blocks, tokens=tokens, namespace=namespace)
        load.apply_sample(a_record(sample), fleet)
    question = a_question(namespaces=("dynamo", "other"))
    outcome = pick(a_view(fleet, load), question, some_settings(namespaces=("dynamo", "other")))
    assert (outcome.namespace, winner(outcome), winner(outcome, "prefill")) == ("other", 5, 4)
    assert (outcome.decode.candidates, outcome.prefill.candidates) == (2, 2)


def test_prefill_pools_of_two_namespaces_have_turns_of_their_own() -> None:
    fleet = a_fleet(
        *(a_worker(place, P, name) for place in (1, 2) for name in ("a", "b")),
        a_worker(9, D, "a"),
        a_worker(9, D, "b"),
    )
    settings = some_settings(namespaces=("a", "b"))
    turns: dict[str, list[int | None]] = {"a": [], "b": []}
    decode, prefill = 0, {"a": 0, "b": 0}
    for _ in range(8):
        question = a_question(
            namespaces=("a", "b"), rotation_decode=decode, rotations_prefill=(prefill["a"], prefill["b"])
        )
        outcome = pick(a_view(fleet), question, settings)
        assert outcome.namespace is not None
        decode, prefill[outcome.namespace] = outcome.rotation_decode, outcome.rotation_prefill
        turns[outcome.namespace].append(winner(outcome, "prefill"))
    assert turns == {"a": [1, 2, 1, 2], "b": [1, 2, 1, 2]}
    assert rotation_prefill(a_question(rotation_prefill=7), "dynamo") == 7


def test_no_candidate_is_said_of_both_phases_and_leaves_the_rotations() -> None:
    outcome = asked(a_view(a_fleet(a_worker(1, P))), a_question(rotation_prefill=3, rotation_decode=4))
    assert outcome.namespace is None
    for phase in (outcome.prefill, outcome.decode):
        assert (phase.reason, phase.chosen, phase.candidates) == (PickReason.NO_CANDIDATE, None, 0)
        assert (phase.margin, phase.rows) == (None, b"")
    assert (outcome.rotation_prefill, outcome.rotation_decode) == (3, 4)


def test_single_candidate_wins_without_a_margin() -> None:
    fleet = a_fleet(a_worker(1, A))
    outcome = asked(a_view(fleet, sampled(fleet, (1, 999, None))))
    assert (winner(outcome), outcome.decode.reason, outcome.decode.margin) == (1, PickReason.LOAD, None)


def test_worker_without_a_block_size_is_charged_no_blocks() -> None:
    outcome = asked(a_view(a_fleet(a_worker(1, A, block_size=None))))
    assert outcome.decode.chosen is not None
    assert (outcome.decode.chosen.tokens, outcome.decode.chosen.blocks) == (160, None)
