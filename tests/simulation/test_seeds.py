"""Whole histories drawn from seeds; `invariants` says what must be true of each."""

from __future__ import annotations

import pytest

from tests.simulation.invariants import check_all
from tests.simulation.simulator import Simulator


@pytest.mark.req("EVS-03", "EVS-04", "EVS-06", "EVS-13", "EVS-15", "EVS-16", "EVS-17", "PICK-14")
def test_a_seeded_history_breaks_no_promise(seed: int) -> None:
    sim = Simulator(seed)
    try:
        sim.run()
        check_all(sim)
    except Exception as problem:
        again = f"python -m pytest tests/simulation/test_seeds.py --seed {seed} -x"
        pytest.fail(
            f"seed {seed}: {type(problem).__name__}: {problem}\nrepeat it: {again}\n{dict(sim.counts)}"
        )


@pytest.mark.req("EVS-06")
@pytest.mark.parametrize(
    "history",
    [
        pytest.param(20142, id="a pick is made on the record before its replica's name"),
        pytest.param(20204, id="a pick is made some records before its replica's name"),
    ],
)
def test_a_history_whose_picks_were_repeated_wrongly_once_breaks_no_promise(history: int) -> None:
    sim = Simulator(history)
    sim.run()
    check_all(sim)


def test_a_seed_is_one_history(seed: int) -> None:
    if seed % 10:
        pytest.skip("one seed in ten is run twice")
    first, second = Simulator(seed), Simulator(seed)
    first.run()
    second.run()
    assert list(first.log.records()) == list(second.log.records())
    assert first.counts == second.counts
