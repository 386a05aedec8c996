"""The verifier finds what cannot be reproduced; the shadow says what it would have picked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

import app.shadow
from app.follower_figures import ShadowResult, Verdict
from app.reasking import Reasking
from app.shadow import Rows, Shadow, ShadowSettings, Verifier
from projections.events.picks import PicksDistrusted
from replay.engine import Asked, Replay, Unverifiable
from replay.fold_cursor import cursor_at
from tests.replay.captured import busy_log
from tests.replay.recorded_log import SETTINGS, RecordedLog


class Told:
    """Figures that were told."""

    def __init__(self) -> None:
        self.verdicts: Counter[Verdict] = Counter()
        self.results: Counter[ShadowResult] = Counter()

    def verified(self, verdict: Verdict) -> None:
        self.verdicts[verdict] += 1

    def shadowed(self, result: ShadowResult) -> None:
        self.results[result] += 1


def picks(world: RecordedLog) -> Iterator[Asked]:
    return Replay(world.log, None).asked()


def machine_of(world: RecordedLog) -> Reasking:
    return Reasking(cursor_at(world.log, None, -1, frozenset()))


def forged(asked: Asked) -> Asked:
    outcome = asked.fact.outcome
    chosen = outcome.decode.chosen
    assert chosen is not None
    decode = outcome.decode._replace(chosen=chosen._replace(instance_id=77))
    return asked._replace(fact=asked.fact._replace(outcome=outcome._replace(decode=decode)))


def test_a_sample_is_repeated_by_log_time_and_equal() -> None:
    rows, told = Rows(), Told()
    verifier, machine = Verifier(rows, told), machine_of(RecordedLog())
    for asked in picks(busy_log(20)):  # two picks each 0.2 s
        verifier.ask(asked, machine)
    assert told.verdicts == {Verdict.EQUAL: 20}
    assert {row.verdict for row in rows.verifications} == {"equal"}


@pytest.mark.req("EVS-06")
def test_a_pick_that_differs_is_counted_written_and_told_with_the_command_that_shows_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows, told = Rows(), Told()
    asked = forged(next(iter(picks(busy_log(3)))))
    verifier, machine = Verifier(rows, told), machine_of(RecordedLog())
    verifier.ask(asked, machine)
    verifier.look_again(machine)
    assert told.verdicts == {}, "its replica may be about to say that it is suspect"
    verifier.look_again(machine, everything=True)
    assert told.verdicts == {Verdict.DIFFERENT: 1}
    (row,) = rows.verifications
    assert row.verdict == "different"
    assert row.first_difference is not None
    assert row.first_difference.startswith("outcome.decode.chosen.instance_id: recorded 77")
    assert f"picklog replay explain {asked.offset}" in capsys.readouterr().out


def test_what_cannot_be_asked_is_unverifiable_and_never_different() -> None:
    rows, told, machine = Rows(), Told(), machine_of(RecordedLog())
    asked = next(iter(picks(busy_log(1))))
    Verifier(rows, told).ask(asked._replace(view=None, unverifiable=Unverifiable.OVERLAY), machine)
    Verifier(rows, told).ask(asked._replace(view=None, unverifiable=Unverifiable.TOO_OLD), machine)
    assert told.verdicts == {Verdict.UNVERIFIABLE: 1}
    assert [row.first_difference for row in rows.verifications] == ["overlay"]


@pytest.mark.req("EVS-06")
@pytest.mark.parametrize("is_last", [True, False])
def test_a_pick_that_its_replica_names_a_moment_later_is_no_difference(is_last: bool) -> None:
    rows, told, machine = Rows(), Told(), machine_of(RecordedLog())
    asked = forged(next(iter(picks(busy_log(3)))))
    verifier = Verifier(rows, told)
    verifier.ask(asked, machine)
    named = PicksDistrusted(asked.fact.replica, asked.fact.as_of - 1, asked.fact.as_of)
    machine.distrusted.add(named)
    verifier.look_again(machine, everything=is_last)
    assert told.verdicts == {Verdict.UNVERIFIABLE: 1}
    assert [row.first_difference for row in rows.verifications] == ["suspect"]


@pytest.mark.req("DYN-12")
def test_a_shadow_with_the_same_settings_agrees_with_every_pick() -> None:
    rows, told = Rows(), Told()
    shadow = Shadow(ShadowSettings(SETTINGS, "d", "file"), rows, told)
    for asked in picks(busy_log(10)):
        shadow.ask(asked)
    assert told.results == {ShadowResult.SAME: 20}
    assert {row.shadow_config for row in rows.shadow} == {"d"}


@pytest.mark.req("DYN-12")
def test_a_shadow_with_other_settings_says_where_picks_would_have_gone() -> None:
    rows, told = Rows(), Told()
    other = SETTINGS._replace(max_staleness_us=1, ledger=False)
    shadow = Shadow(ShadowSettings(other, "e", "file"), rows, told)
    facts = {}
    for asked in picks(busy_log(10)):
        facts[asked.offset] = asked.fact
        shadow.ask(asked)
    assert told.results[ShadowResult.MOVED] > 2
    assert told.results.total() == 20
    for row in rows.shadow:
        chosen = facts[row.log_offset].outcome.decode.chosen
        assert chosen is not None
        assert row.moved == (row.decode_worker != str(chosen.instance_id))
        assert row.pick_id == facts[row.log_offset].pick_id.hex()


def test_rows_that_were_written_before_are_not_said_again() -> None:
    rows, told = Rows(), Told()
    asked = [*picks(busy_log(4))]
    done = sorted(one.offset for one in asked)[3]
    shadow = Shadow(ShadowSettings(SETTINGS, "d", "file"), rows, told, done)
    for one in picks(busy_log(4)):
        shadow.ask(one)
    assert min(row.log_offset for row in rows.shadow) > done
    assert len(rows.shadow) == 4


def test_what_cannot_be_asked_has_a_row_that_says_why() -> None:
    rows, told = Rows(), Told()
    shadow = Shadow(ShadowSettings(SETTINGS, "d", "file"), rows, told)
    asked = next(iter(picks(busy_log(1))))
    shadow.ask(asked._replace(view=None, unverifiable=Unverifiable.LAG))
    assert [(row.moved, row.unverifiable) for row in rows.shadow] == [(None, "lag")]
    assert told.results == {ShadowResult.UNVERIFIABLE: 1}


def test_a_picker_that_raises_costs_its_row_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, told = Rows(), Told()
    shadow = Shadow(ShadowSettings(SETTINGS._replace(picker="gone"), "d", "file"), rows, told)
    for asked in picks(busy_log(2)):
        shadow.ask(asked)
    assert {row.unverifiable for row in rows.shadow} == {"failed"}
    assert len(rows) == 4 <= app.shadow.ROWS_MAX
    assert "the shadow's picker failed" in capsys.readouterr().out
