"""A sample and its age, read as verdict and backlog."""

from __future__ import annotations

import pytest

from projections.events.picks import Phase, Verdict
from projections.load.backlog import phase_value, read_backlog
from projections.load.store import HeldSample
from tests.router.picker.builders import NOW, S

STALENESS = 3 * S


def sample(blocks: int | None, tokens: int | None, used: int | None = None, age: int = 0) -> HeldSample:
    return HeldSample(1, 1, NOW - age, blocks, tokens, used)


@pytest.mark.req("PICK-04")
@pytest.mark.parametrize(
    ("held", "phase", "value"),
    [
        (sample(3, 4, 5), Phase.DECODE, 3),
        (sample(0, 4, 5), Phase.DECODE, 0),
        (sample(None, 4, 5), Phase.DECODE, 5),
        (sample(None, 4), Phase.DECODE, None),
        (sample(3, 4, 5), Phase.PREFILL, 4),
        (sample(3, None, 5), Phase.PREFILL, None),
    ],
)
def test_value_of_a_phase(held: HeldSample, phase: Phase, value: int | None) -> None:
    assert phase_value(held, phase) == value


@pytest.mark.req("STORE-03", "STORE-04", "PICK-07")
@pytest.mark.parametrize(
    ("held", "verdict", "backlog"),
    [
        (None, Verdict.QUIET, 0),
        (sample(7, None, age=STALENESS), Verdict.FRESH, 7),
        (sample(None, None, age=0), Verdict.FRESH, None),
        (sample(0, None, age=STALENESS + 1), Verdict.QUIET, 0),
        (sample(7, None, age=STALENESS + 1), Verdict.SILENT, None),
        (sample(None, None, age=STALENESS + 1), Verdict.SILENT, None),
        (sample(None, None, 0, age=STALENESS + 1), Verdict.QUIET, 0),
    ],
)
def test_verdict_and_backlog(held: HeldSample | None, verdict: Verdict, backlog: int | None) -> None:
    assert read_backlog(held, Phase.DECODE, NOW, STALENESS) == (verdict, backlog)


@pytest.mark.req("STORE-03")
def test_quiet_is_judged_for_each_phase_apart() -> None:
    old = sample(0, 90, age=STALENESS + 1)
    assert read_backlog(old, Phase.DECODE, NOW, STALENESS)[0] is Verdict.QUIET
    assert read_backlog(old, Phase.PREFILL, NOW, STALENESS)[0] is Verdict.SILENT
