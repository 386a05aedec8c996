"""Costs taken apart again: the last term is the cost, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.events.control import ConditionalSettings
from projections.events.picks import Phase
from projections.load.store import LoadStore
from projections.registry.fleet import Role
from router.picker.cost_terms import CostTerms, leg_of, terms_of
from router.picker.pick import candidate_table, pick
from router.picker.prefix_costs import Leg
from tests.router.picker.builders import (
    NOW,
    S,
    a_fleet,
    a_kv_question,
    a_prefix_view,
    a_record,
    a_sample,
    a_worker,
    kv_settings,
    some_settings,
)

A, D, P = Role.AGGREGATED, Role.DECODE, Role.PREFILL
NEVER = ConditionalSettings("isl_bounding", 0, 0.0, None, None)
MAYBE = st.none() | st.integers(0, 900)
WORKER = st.tuples(
    MAYBE, MAYBE, st.integers(0, 8), st.sampled_from([16, 64]), st.tuples(*[st.integers(0, 9)] * 4)
)


def apart(workers: list[Any], roles: tuple[Role, ...], kv: Any, isl: int) -> list[tuple[Any, Any]]:
    """(cost, terms) of every candidate of both phases."""
    load = LoadStore()
    made = [a_worker(n, roles[n % len(roles)], block_size=one[3]) for n, one in enumerate(workers, 1)]
    fleet = a_fleet(*made)
    for number, (blocks, tokens, age, _, _) in enumerate(workers, 1):
        load.apply_sample(a_record(a_sample(number, 1, blocks=blocks, tokens=tokens), NOW - age * S), fleet)
    held = {(number, 0): one[4] for number, one in enumerate(workers, 1) if any(one[4])}
    view, settings, question = a_prefix_view(fleet, held, load), some_settings(kv=kv), a_kv_question(isl)
    outcome = pick(view, question, settings)
    found = []
    for phase, table in candidate_table(view, question, settings).items():
        sizes = [workers[row.instance_id - 1][3] for row in table]
        terms = terms_of(leg_of(phase, outcome), table, sizes, question, settings)
        found += [(row, part) for row, part in zip(table, terms, strict=True)]
    return found


@given(
    st.lists(WORKER, min_size=1, max_size=6),
    st.sampled_from([(A,), (P, D), (D, P), (A, P)]),
    st.sampled_from([0.0, 0.6, 2.0]),
    st.sampled_from([0.0, 1.5]),
    st.sampled_from([None, NEVER]),
    st.integers(0, 2_000),
)
def test_terms_add_up_to_the_cost(
    workers: list[Any], roles: tuple[Role, ...], credit: float, decay: float, conditional: Any, isl: int
) -> None:
    kv = kv_settings(
        overlap_credit=credit, credit_decay=decay, host_credit=0.75, disk_credit=0.25, conditional=conditional
    )
    for row, terms in apart(workers, roles, kv, isl):
        if row.credit is None or row.cost is None:
            assert terms is None
            continue
        assert terms.cost == row.cost
        lower = 0.75 * row.host_blocks + 0.25 * row.disk_blocks
        assert row.credit == pytest.approx(credit * terms.decay * row.overlap_blocks + lower, abs=1e-9)


def test_terms_of_the_worked_example() -> None:
    rows = apart([(80, 320, 0, 16, (20, 8, 0, 0))], (A,), kv_settings(host_credit=0.75), 640)
    assert rows[0][1] == CostTerms(60.0, 1.0, 34.0, 100, 134.0)


def test_phase_scored_by_load_has_no_terms() -> None:
    workers = [(0, 0, 0, 16, (1, 0, 0, 0)), (0, 0, 0, 16, (0, 0, 0, 0))]
    found = apart(workers, (P, D), kv_settings(), 160)
    assert [terms is None for row, terms in found] == [row.credit is None for row, _ in found]
    assert any(terms is None for _, terms in found) and any(terms is not None for _, terms in found)


def test_leg_follows_from_phase_and_outcome() -> None:
    fleet = a_fleet(a_worker(1, A))
    outcome = pick(a_prefix_view(fleet, {}), a_kv_question(), some_settings(kv=kv_settings()))
    assert leg_of(Phase.DECODE, outcome) is Leg.AGGREGATED
    assert leg_of(Phase.PREFILL, outcome) is Leg.PREFILL
    pair = a_fleet(a_worker(1, P), a_worker(2, D))
    outcome = pick(a_prefix_view(pair, {}), a_kv_question(), some_settings(kv=kv_settings(conditional=NEVER)))
    assert leg_of(Phase.DECODE, outcome) is Leg.DECODE
