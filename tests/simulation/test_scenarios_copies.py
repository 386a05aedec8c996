"""Records that land once more when what told their copies apart is gone; all invariants hold behind it.

A copy under the same writer id is told by its number. These come under another one, or after their
writer was forgotten. From the fold mode COUNTED_ONCE on they count no more; as long as a live process
is of a release without it, all count as that release does.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ingest.log.appends import Send
from projections.bounds import REPLICA_GONE_US, SECOND_US
from projections.events.codec import decode_record
from projections.events.control import ClockTicked, FoldModeAdopted, Pinged
from projections.events.picks import PickMade
from projections.fold import Fold
from projections.fold_modes import COUNTED_ONCE, FOLD_MODES
from projections.identity import RankKey
from projections.intake import Intake
from tests.simulation.invariants import check_all
from tests.simulation.scenario import MS, Quiet, quiet
from tests.simulation.simulator import SETTLE_US
from tests.simulation.world_owner import OwnerProcess
from tests.simulation.world_process import Follower, Process, Replica, Writer

RANK = RankKey("alpha", 1, 0)


class OldReplica(Replica):
    """Of a release without COUNTED_ONCE."""

    fold_modes = tuple(sorted(FOLD_MODES - {COUNTED_ONCE}))


class NewReplica(Replica):
    """Of this release, whatever its id says."""

    fold_modes = tuple(sorted(FOLD_MODES))


def keep_sends(sim: Quiet, process: Process, commits: int) -> list[Send]:
    """What the next commits of a process send, so that it can land again."""
    kept: list[Send] = []

    def land(writer: Writer, send: Send) -> None:
        kept.append(send)
        sim.land(writer, send, 0)

    sim.meets(process, *[land] * commits)
    return kept


def keep_unclear(sim: Quiet, process: Process) -> list[Send]:
    """The next commit gets no clear answer, and lands when the scenario says so."""
    kept: list[Send] = []

    def vanish(writer: Writer, send: Send) -> None:
        kept.append(send)
        sim.unclear(writer, send, 2 * MS, "never")

    sim.meets(process, vanish)
    return kept


def holds(send: Send, kind: type) -> bool:
    return any(isinstance(decode_record(0, data).fact, kind) for data in send.records)


def in_force(sim: Quiet) -> bool:
    adopted = [record.fact.flags for record in sim.said(FoldModeAdopted)]  # type: ignore[attr-defined]
    return bool(adopted) and COUNTED_ONCE in adopted[-1]


def a_pick_lands_again_after_its_worker_came_back(sim: Quiet) -> int:
    """Blocks that the worker is charged with then. The copy is the first one's, under the writer of then."""
    replica, worker = sim.replica, sim.workers[1]
    sim.settle_writer(replica)
    kept = keep_unclear(sim, replica)
    made = sim.pick_of(replica, last_us=15 * SECOND_US)
    sim.wait(SECOND_US)
    assert len(kept) == 1 and holds(kept[0], PickMade)

    def charged() -> int:
        ledger = replica.reading.tail.fold.state.ledger
        return ledger.unanswered_blocks(RANK, None, made.question.asked_at + 6 * SECOND_US)

    assert charged() == 7, "sent again under another writer"
    for key, _ in worker.records():
        sim.store.delete(key)
    sim.wait(2 * SECOND_US)
    assert charged() == 0
    for key, value in worker.records():
        sim.store.put(key, value)
    sim.wait(2 * SECOND_US)
    sim._append_again(kept[0])
    sim.wait(SECOND_US)
    assert [r.fact for r in sim.said(PickMade)].count(made) == 2
    blocks = charged()
    sim.pick_of(replica)  # and the naive model is asked what weighs
    return blocks


def blocks_of_a_copy() -> int:
    """Charged to a worker that left and came back."""
    with quiet(workers=1, seed=1) as sim:
        assert in_force(sim)
        return a_pick_lands_again_after_its_worker_came_back(sim)


def early_pings_heard_again() -> int:
    """Copies that took effect of what was heard before the first owner."""
    sim = Quiet(3)
    with sim.patched():
        sim.add_worker()
        sim.replica = sim.start(NewReplica, "replica")
        kept = keep_sends(sim, sim.replica, 3)
        sim.wait(1500 * MS)
        early = [send for send in kept if holds(send, Pinged)]
        assert early and not sim.said(ClockTicked)
        sim.replica.die()  # whatever it says later would tell the copy from news
        sim.start(OwnerProcess, "owner")
        sim.wait(3 * SECOND_US)
        adopted, first_tick = sim.said(FoldModeAdopted)[0], sim.said(ClockTicked)[0]
        assert in_force(sim) and adopted.offset < first_tick.offset
        copies_from = sim.log.end
        for send in early:
            sim._append_again(send)
        fold = Fold()
        took = [o for o, data in sim.log.records() if fold.apply(o, data, []) is not None]
        assert fold.mark.offset > copies_from
        sim.heal()
        sim.wait(SETTLE_US)
    check_all(sim)
    return sum(offset >= copies_from for offset in took)  # a count


@pytest.mark.req("EVS-15")
def test_a_copy_of_a_pick_charges_no_worker_that_left_and_came_back() -> None:
    assert blocks_of_a_copy() == 0


@pytest.mark.req("EVS-15")
def test_a_copy_of_a_ping_of_before_the_first_owner_is_dropped() -> None:
    assert early_pings_heard_again() == 0


@pytest.mark.req("EVS-15", "KVX-20")
def test_copies_count_as_the_oldest_running_release_counts_them() -> None:
    sim = Quiet(2)
    with sim.patched():
        sim.add_worker()
        old = sim.start(OldReplica, "old")
        sim.wait(500 * MS)
        sim.start(OwnerProcess, "owner")
        sim.start(Follower, "follower")
        sim.replica = sim.start(NewReplica, "replica")
        sim.wait(4 * SECOND_US)
        assert not in_force(sim)
        assert a_pick_lands_again_after_its_worker_came_back(sim) > 0
        old.die()
        sim.wait(REPLICA_GONE_US + 3 * SECOND_US)
        assert in_force(sim), "once nobody lacks it"
        assert a_pick_lands_again_after_its_worker_came_back(sim) == 0
        sim.heal()
        sim.wait(SETTLE_US)
    check_all(sim)


def _copies_of_picks_are_news(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fold, "_told", lambda self, replica: 0)


def _the_newest_pick_has_no_copies(patch: pytest.MonkeyPatch) -> None:
    honest = Fold._told
    patch.setattr(Fold, "_told", lambda self, replica: max(0, honest(self, replica) - 1))


def _who_was_heard_before_log_time_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Intake, "adopt", lambda self, flags: setattr(self, "fold_mode", flags))


@pytest.mark.parametrize(
    ("mutate", "scenario"),
    [
        (_copies_of_picks_are_news, blocks_of_a_copy),
        (_the_newest_pick_has_no_copies, blocks_of_a_copy),
        (_who_was_heard_before_log_time_is_forgotten, early_pings_heard_again),
    ],
    ids=lambda one: one.__name__.strip("_"),
)
def test_a_broken_rule_of_copies_is_noticed(
    mutate: Callable[[pytest.MonkeyPatch], None],
    scenario: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        assert scenario() == 0
