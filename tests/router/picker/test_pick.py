"""Outcomes as a function of their arguments, and what they record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from projections.bounds import PICK_ROWS_MAX
from projections.events.codec import decode_record, encode_record, encode_value
from projections.events.picks import DispatchEnded, EndStatus, Fault, Outcome, Phase, PickReason, Verdict
from projections.load.ledger import Ledger
from projections.load.store import LoadStore
from projections.registry.fleet import Fleet, Role
from projections.view import Overlay, View
from router.picker.pick import DEFAULT_PICKER, PICKERS, UnknownPicker, candidate_table, pick
from router.picker.rows import pack_rows, unpack_rows
from tests.router.picker.builders import (
    MODEL,
    NOW,
    REPLICA,
    S,
    a_fleet,
    a_question,
    a_record,
    a_sample,
    a_view,
    a_worker,
    made,
    some_settings,
)

NAMES = ("a", "b", "c")
SETTINGS = some_settings(namespaces=NAMES)
ROOT = Path(__file__).parents[3]

MAYBE = st.none() | st.integers(0, 2_000)
WORKER = st.tuples(
    st.integers(1, 6),
    st.sampled_from([Role.PREFILL, Role.DECODE, Role.AGGREGATED, Role.UNKNOWN]),
    st.sampled_from(NAMES),
    st.integers(1, 3),
    st.sampled_from([MODEL, MODEL, "other"]),
    st.sampled_from([None, 0, 1, 16]),
    st.sampled_from([None, 0, 1_000]),
)
SAMPLE = st.tuples(
    st.sampled_from(NAMES), st.integers(1, 6), st.integers(0, 2), MAYBE, MAYBE, MAYBE, st.integers(0, 6)
)
ASKED = st.tuples(
    st.integers(0, 40),
    st.sets(st.sampled_from(NAMES)),
    st.integers(1, 500),
    st.booleans(),
    st.sampled_from(list(Fault)),
)


class World:
    """A fleet with samples, and picks made one after the other, ended or not."""

    def __init__(self, workers: list[Any], samples: list[Any], asked: list[Any]) -> None:
        made_workers = {
            (place, name): a_worker(
                place, role, name, dp_size=ranks, model=model, block_size=size, total_kv_blocks=total
            )
            for place, role, name, ranks, model, size, total in workers
        }
        self.fleet: Fleet = a_fleet(*made_workers.values())
        self.load, self.ledger, self.overlay = LoadStore(), Ledger(), Overlay()
        for sequence, (name, worker, rank, blocks, tokens, used, age) in enumerate(samples, 1):
            sample = a_sample(
                worker,
                sequence,
                rank=rank,
                blocks=blocks,
                tokens=tokens,
                used=used,
                publisher=1,
                namespace=name,
            )
            sample = sample._replace(covers_from=1)
            self.load.apply_sample(a_record(sample, NOW - age * S), self.fleet)
        self.outcomes: list[Outcome] = []
        self.questions: list[Any] = []
        rotation = (0, 0)
        at = NOW
        for number, (seconds, names, tokens, ends, fault) in enumerate(asked):
            at += seconds * S // 4
            question = a_question(
                asked_at=at,
                namespaces=tuple(sorted(names)),
                estimated_tokens=tokens,
                rotation_prefill=rotation[0],
                rotation_decode=rotation[1],
            )
            outcome = pick(self.view(), question, SETTINGS)
            rotation = (outcome.rotation_prefill, outcome.rotation_decode)
            self.questions.append(question)
            self.outcomes.append(outcome)
            self.remember(made(question, outcome, 2 * number + 1), ends, fault, at)

    def remember(self, fact: Any, ends: bool, fault: Fault, at: int) -> None:
        """Into the overlay, and every second one into the fold."""
        end = DispatchEnded(
            fact.pick_id, REPLICA, fact.own_seq + 2, at, EndStatus.FAILED, fault, 0, "", None, 0
        )
        if fact.own_seq % 4:
            self.ledger.apply_pick(a_record(fact), self.fleet)
        else:
            self.overlay.add_pick(fact)
        if ends:
            self.overlay.add_end(end)

    def view(self) -> View:
        return View(0, self.fleet, self.load, self.ledger, self.overlay)


def worlds() -> st.SearchStrategy[World]:
    return st.builds(
        World,
        st.lists(WORKER, max_size=10),
        st.lists(SAMPLE, max_size=12),
        st.lists(ASKED, min_size=1, max_size=8),
    )


@pytest.mark.req("MNS-03", "MIX-01", "MIX-02", "PICK-12", "PICK-13")
@pytest.mark.field("B-011")
@given(worlds())
def test_pairs_stay_in_one_namespace_and_never_hold_an_aggregated_worker(world: World) -> None:
    for question, outcome in zip(world.questions, world.outcomes, strict=True):
        prefill, decode = outcome.prefill.chosen, outcome.decode.chosen
        if decode is None:
            assert outcome.namespace is None and prefill is None
            continue
        assert outcome.namespace in question.namespaces
        workers = {
            worker.key.instance_id: worker
            for worker in world.fleet.workers_of(MODEL)
            if worker.key.namespace == outcome.namespace
        }
        roles = {worker.role for worker in workers.values()}
        assert workers[decode.instance_id].role in (Role.DECODE, Role.AGGREGATED)
        assert decode.dp_rank in workers[decode.instance_id].ranks()
        pair_pool = Role.PREFILL in roles and workers[decode.instance_id].role is Role.DECODE
        assert (prefill is not None) == pair_pool
        if prefill is not None:
            assert workers[prefill.instance_id].role is Role.PREFILL
            assert decode.tokens == 0
        if {Role.PREFILL, Role.DECODE} <= roles:
            assert workers[decode.instance_id].role is Role.DECODE


@given(worlds())
def test_silent_stalled_and_suspect_lose_to_any_cost(world: World) -> None:
    table = candidate_table(world.view(), world.questions[-1]._replace(namespaces=NAMES), SETTINGS)
    for rows in table.values():
        if any(row.cost is not None for row in rows):
            assert rows[0].cost == min(row.cost for row in rows if row.cost is not None)
            assert rows[0].verdict in (Verdict.FRESH, Verdict.QUIET)
        for row in rows:
            if row.verdict in (Verdict.SILENT, Verdict.STALLED, Verdict.EXCLUDED):
                assert row.cost is None
        if rows and rows[0].excluded:
            pytest.fail("a suspect won beside others")


@pytest.mark.req("PICK-14")
@pytest.mark.field("B-079")
@given(worlds())
def test_same_arguments_give_the_same_bytes(world: World) -> None:
    question = world.questions[-1]
    once, again = pick(world.view(), question, SETTINGS), pick(world.view(), question, SETTINGS)
    assert encode_value(once) == encode_value(again)


@given(worlds())
def test_recorded_pick_comes_back_from_its_bytes(world: World) -> None:
    for number, (question, outcome) in enumerate(zip(world.questions, world.outcomes, strict=True)):
        fact = made(question, outcome, number + 1)
        back = decode_record(0, encode_record(NOW, REPLICA, 0, 1, fact)).fact
        assert encode_value(back) == encode_value(fact)


@given(worlds())
def test_recorded_rows_are_the_head_of_the_table_and_the_digest_is_of_all(world: World) -> None:
    question = world.questions[-1]
    outcome = pick(world.view(), question, SETTINGS)
    table = candidate_table(world.view(), question, SETTINGS)
    digest = xxhash.xxh3_128()
    for phase, side in ((Phase.PREFILL, outcome.prefill), (Phase.DECODE, outcome.decode)):
        rows = table[phase]
        assert side.candidates == len(rows)
        assert unpack_rows(side.rows) == rows[:PICK_ROWS_MAX]
        if side.chosen is not None:
            assert (side.chosen.instance_id, side.chosen.dp_rank) == rows[0][1:3]
        digest.update(pack_rows(sorted(rows, key=lambda row: row[:3])))
    assert outcome.rows_digest == digest.digest()


PROGRAM = """
from tests.router.picker.builders import *
from projections.events.codec import encode_value
from projections.registry.fleet import Role
from router.picker.pick import pick
names = ("red", "green", "blue")
fleet = a_fleet(*(a_worker(i, role, name, dp_size=1 + i % 3, model=MODEL)
    for i, role in enumerate([Role.PREFILL, Role.DECODE] * 4) for name in names))
load, overlay = LoadStore(), Overlay()
for sequence, name in enumerate(names * 8, 1):
    load_of = {"blocks": sequence * 37 % 50, "tokens": sequence, "namespace": name, "publisher": 1}
    sample = a_sample(sequence % 8, sequence, **load_of)
    load.apply_sample(a_record(sample), fleet)
rotation, told = (0, 0), b""
for number in range(1, 40):
    question = a_question(asked_at=NOW + number * S // 3, namespaces=names, rotation_prefill=rotation[0],
        rotation_decode=rotation[1])
    outcome = pick(a_view(fleet, load, overlay=overlay), question, some_settings(namespaces=names))
    overlay.add_pick(made(question, outcome, number))
    rotation = (outcome.rotation_prefill, outcome.rotation_decode)
    told += encode_value(outcome)
print(told.hex())
"""


@pytest.mark.req("PICK-14")
def test_string_hash_seed_does_not_move_a_bit() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "4242")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 1_000


def test_winner_and_runner_up_come_first_and_those_without_a_cost_last() -> None:
    fleet = a_fleet(*(a_worker(place, Role.AGGREGATED) for place in range(1, 13)))
    load = LoadStore()
    for place in range(2, 13):
        blocks = 100 if place < 6 else 50 + place
        load.apply_sample(
            a_record(a_sample(place, 1, blocks=blocks), NOW - (9 * S if place == 12 else 0)), fleet
        )
    load.apply_sample(a_record(a_sample(1, 1)), fleet)
    question = a_question(rotation_decode=0)
    rows = candidate_table(a_view(fleet, load), question, some_settings())[Phase.DECODE]
    assert [row.instance_id for row in rows] == [6, 7, 8, 9, 10, 11, 2, 3, 4, 5, 1, 12]
    outcome = pick(a_view(fleet, load), question, some_settings())
    assert [row.instance_id for row in unpack_rows(outcome.decode.rows)] == [6, 7, 8, 9, 10, 11, 2, 3]
    assert outcome.decode.margin == rows[1].cost - rows[0].cost  # type: ignore[operator]


@pytest.mark.req("PICK-09")
@pytest.mark.field("B-079")
@pytest.mark.parametrize("count", [12, 60])
def test_equal_winner_late_in_the_order_stands_first_in_the_rows(count: int) -> None:
    fleet = a_fleet(*(a_worker(place, Role.AGGREGATED) for place in range(1, count + 1)))
    load = LoadStore()
    for place in range(1, count + 1):
        load.apply_sample(a_record(a_sample(place, 1, blocks=9)), fleet)
    outcome = pick(a_view(fleet, load), a_question(rotation_decode=count - 1), some_settings())
    rows = unpack_rows(outcome.decode.rows)
    assert [row.instance_id for row in rows] == [count, *range(1, PICK_ROWS_MAX)]
    assert (outcome.decode.reason, outcome.decode.margin) == (PickReason.LOAD, 0.0)


@pytest.mark.field("B-147")
def test_record_of_a_pick_does_not_grow_with_the_fleet() -> None:
    sizes = []
    for count in (PICK_ROWS_MAX, 100 * PICK_ROWS_MAX):
        fleet = a_fleet(*(a_worker(1_000 + place, Role.AGGREGATED) for place in range(count)))
        load = LoadStore()
        for place in range(count):
            load.apply_sample(a_record(a_sample(1_000 + place, 1, blocks=9)), fleet)
        outcome = pick(a_view(fleet, load), a_question(), some_settings())
        sizes.append(len(encode_record(NOW, REPLICA, 0, 1, made(a_question(), outcome))))
    assert sizes[1] - sizes[0] <= 2, "the number of candidates takes a byte or two more"


@pytest.mark.req("PICK-09", "PICK-10")
@pytest.mark.field("B-034", "B-077")
@pytest.mark.parametrize("sampled", [False, True])
def test_everybody_gets_the_same_share_of_whole_rounds(sampled: bool) -> None:
    fleet = a_fleet(*(a_worker(place, Role.AGGREGATED) for place in range(1, 8)))
    overlay, rotation, load = Overlay(), 0, LoadStore()
    for place in range(1, 8 if sampled else 1):
        load.apply_sample(a_record(a_sample(place, 1, blocks=9)), fleet)
    turns = dict.fromkeys(range(1, 8), 0)
    for number in range(1, 7 * 5 + 1):
        question = a_question(asked_at=NOW + number, rotation_decode=rotation)
        outcome = pick(a_view(fleet, load, overlay=overlay), question, some_settings())
        overlay.add_pick(made(question, outcome, number))
        rotation = outcome.rotation_decode
        assert outcome.decode.chosen is not None
        turns[outcome.decode.chosen.instance_id] += 1
    assert set(turns.values()) == {5}


def test_picker_is_named_by_the_settings() -> None:
    assert DEFAULT_PICKER in PICKERS
    with pytest.raises(UnknownPicker, match="no picker named 'best': it is one of load_based"):
        pick(a_view(a_fleet()), a_question(), some_settings(picker="best"))
