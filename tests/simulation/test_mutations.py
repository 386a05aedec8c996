"""The simulator must be able to fail: each of these breaks one rule of the product, and seeds notice.

Whoever changes the simulator so that a mutant survives has blinded it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import projections.kv.state
import projections.load.ledger
import projections.load.ledger_lines
import projections.view
from app.pick_log import ReplicaLog
from ingest.log.appender import Appender
from ingest.log.claim import Claim
from projections.events.picks import LostPick
from projections.intake import Intake
from projections.kv.prefixes import PrefixReading
from projections.kv.side_index import SideIndex
from projections.kv.state import KvState
from projections.load.ledger import Ledger
from projections.load.store import LoadStore
from projections.view import Overlay
from replay.own_facts import OwnFacts
from router.picker import kv_aware, prefix_costs
from router.picker.softmax import softmax_index
from router.pinning import Pinning
from tests.simulation.invariants import check_all
from tests.simulation.simulator import Simulator

SEEDS = 40  # at most so many are tried for one mutant; most die at once

FIRST = {  # where a rule is rarely met: try this seed first
    "_charges_expire_a_second_early": 19,
    "_departed_ranks_keep_their_blocks": 64,
}

Mutate = Callable[[pytest.MonkeyPatch], None]


def _overlay_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Overlay, "add_pick", lambda self, fact: None)


def _own_ends_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Overlay, "add_end", lambda self, fact: None)


def _overlay_keeps_what_is_folded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Overlay, "folded", lambda self, own_seq: None)


def _charges_expire_a_second_early(patch: pytest.MonkeyPatch) -> None:
    for module in (projections.load.ledger, projections.load.ledger_lines):
        if hasattr(module, "DISPATCH_AGE_US_MAX"):
            patch.setattr(module, "DISPATCH_AGE_US_MAX", 29_000_000)


def _stalls_are_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(projections.view, "is_stall", lambda *_: False)


def _suspicion_lasts_longer(patch: pytest.MonkeyPatch) -> None:
    for module in (projections.load.ledger, projections.load.ledger_lines):
        if hasattr(module, "SUSPECT_US"):
            patch.setattr(module, "SUSPECT_US", 12_000_000)


def _gaps_drop_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LoadStore, "_drop", lambda self, publisher: None)


def _departed_workers_keep_their_lines(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "evict", lambda self, workers: None)


def _superseded_owners_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Intake, "is_owner", lambda self, record: True)


def _records_count_twice(patch: pytest.MonkeyPatch) -> None:
    honest = Intake.is_repeated
    patch.setattr(Intake, "is_repeated", lambda self, record: honest(self, record) and False)


def _log_time_goes_back(patch: pytest.MonkeyPatch) -> None:
    honest = ReplicaLog.log_time

    def log_time(self: ReplicaLog) -> tuple[int, int]:
        now, lag = honest(self)
        return now - (5_000_000 if now % 7 == 0 else 0), lag

    patch.setattr(ReplicaLog, "log_time", log_time)


def _owners_do_not_check_after_a_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Claim, "on_tick", lambda self, now_us: [])


def _lag_is_not_charged(patch: pytest.MonkeyPatch) -> None:
    """The question says one time of dispatch and the fold uses another."""
    honest = Ledger.apply_pick

    def apply_pick(self: Ledger, record: Any, fleet: Any) -> None:
        question = record.fact.question
        moved = question._replace(dispatched_at=question.asked_at)
        honest(self, record._replace(fact=record.fact._replace(question=moved)), fleet)

    patch.setattr(Ledger, "apply_pick", apply_pick)


def _an_unclear_append_is_taken_for_written(patch: pytest.MonkeyPatch) -> None:
    honest = Appender.on_found

    def on_found(self: Appender, now_us: int, writer: bytes, found: Any) -> Any:
        return honest(self, now_us, writer, {entry.sequence: 0 for entry in self._flight})

    patch.setattr(Appender, "on_found", on_found)


def _output_opens_at_once(patch: pytest.MonkeyPatch) -> None:
    honest = Pinning._picked

    def picked(self: Pinning, event: Any, at: Any) -> Any:
        effects = honest(self, event, at)
        self._outage = True
        return effects

    patch.setattr(Pinning, "_picked", picked)


def _a_client_that_leaves_ends_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pinning, "has_ended", property(lambda self: False))


def _own_numbers_are_reused(patch: pytest.MonkeyPatch) -> None:
    honest = ReplicaLog.next_own_seq

    def next_own_seq(self: ReplicaLog) -> int:
        if self._own_seq == 9:
            return 9
        return honest(self)

    patch.setattr(ReplicaLog, "next_own_seq", next_own_seq)


def _lines_follow_later_picks(patch: pytest.MonkeyPatch) -> None:
    """As it was: ledger lines went to the end of the queue."""
    honest = Appender._tell_lost

    def tell_lost(self: Appender, now_us: int) -> Any:
        lines = [entry for entry in self._pending if type(entry.fact) is LostPick]
        others = [entry for entry in self._pending if type(entry.fact) is not LostPick]
        self._pending.clear()
        self._pending.extend([*others, *lines])
        return honest(self, now_us)

    patch.setattr(Appender, "_tell_lost", tell_lost)


def _replay_has_no_overlay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OwnFacts, "overlay", lambda self, pick, folded_seq: Overlay())


def _gaps_clear_no_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KvState, "clear_feed", lambda *_: None)


def _own_predictions_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Overlay, "predictions", lambda self: SideIndex())


def _predictions_outlive_their_events(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SideIndex, "stored", lambda *_: None)


def _departed_ranks_keep_their_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KvState, "_mask", lambda *_: None)


def _bindings_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(projections.kv.state, "_binding", lambda *_: None)


def _overlap_counts_once(patch: pytest.MonkeyPatch) -> None:
    """New blocks of a prompt are counted as if none of it were held."""
    honest = prefix_costs.price

    def price(asked: Any, leg: Any, table: Any, *rest: Any) -> Any:
        costs = honest(asked, leg, table, *rest)
        return [
            None if cost is None else cost + overlap
            for cost, overlap in zip(costs, table.overlaps, strict=True)
        ]

    patch.setattr(prefix_costs, "price", price)


def _draws_are_swapped(patch: pytest.MonkeyPatch) -> None:
    honest = softmax_index
    patch.setattr(
        prefix_costs, "softmax_index", lambda costs, t, draw: honest(costs, t, (1 << 53) - 1 - draw)
    )


def _unanswered_tokens_do_not_weigh_on_prefixes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prefix_costs, "_add_dispatches", lambda *_: None)


def _what_is_in_flight_is_no_work_at_all(patch: pytest.MonkeyPatch) -> None:
    """Dispatches that share a beginning with the prompt do not weigh by their other blocks either."""

    def leave_out(in_flight: Any, table: Any) -> None:
        for key in in_flight:
            place = table.roster.place_of.get(key)
            if place is not None:
                table.unanswered_tokens[place] = table.unanswered_blocks[place] = 0

    patch.setattr(prefix_costs, "leave_out", leave_out)


def _answered_dispatches_are_in_flight(patch: pytest.MonkeyPatch) -> None:
    honest = PrefixReading.in_flight

    def in_flight(self: PrefixReading, question: Any, kv: Any, held: Any, answered: Any) -> Any:
        return honest(self, question, kv, held, lambda rank: 0)

    patch.setattr(PrefixReading, "in_flight", in_flight)


def _bypasses_have_no_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kv_aware, "may_bypass", lambda *_: True)


MUTANTS: list[Mutate] = [
    _gaps_clear_no_blocks,
    _own_predictions_are_ignored,
    _predictions_outlive_their_events,
    _departed_ranks_keep_their_blocks,
    _bindings_are_ignored,
    _overlap_counts_once,
    _draws_are_swapped,
    _unanswered_tokens_do_not_weigh_on_prefixes,
    _what_is_in_flight_is_no_work_at_all,
    _answered_dispatches_are_in_flight,
    _bypasses_have_no_limit,
    _overlay_is_ignored,
    _own_ends_are_ignored,
    _overlay_keeps_what_is_folded,
    _charges_expire_a_second_early,
    _stalls_are_not_seen,
    _suspicion_lasts_longer,
    _gaps_drop_nothing,
    _departed_workers_keep_their_lines,
    _superseded_owners_are_believed,
    _records_count_twice,
    _log_time_goes_back,
    _owners_do_not_check_after_a_pause,
    _lag_is_not_charged,
    _an_unclear_append_is_taken_for_written,
    _output_opens_at_once,
    _a_client_that_leaves_ends_twice,
    _own_numbers_are_reused,
    _lines_follow_later_picks,
    _replay_has_no_overlay,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__.lstrip("_"))
def test_seeds_notice_a_broken_rule(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    for seed in (FIRST.get(mutate.__name__, 0), *range(1, SEEDS)):
        try:
            sim = Simulator(seed)
            sim.run()
            check_all(sim)
        except Exception as noticed:
            print(f"seed {seed}: {type(noticed).__name__}: {noticed}"[:200])
            return
    pytest.fail(f"{SEEDS} seeds saw nothing wrong with {mutate.__name__}")
