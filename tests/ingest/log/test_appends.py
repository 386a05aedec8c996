from __future__ import annotations

from ingest.log.appends import Entry, Importance, Receipt, Settled, Status
from projections.events.control import CheckpointDue, LaneOpened, Pinged
from tests.ingest.log.facts import pick, sample


def test_owner_kinds_are_told_from_what_anybody_writes() -> None:
    owned = [CheckpointDue("x"), sample(1)]
    others = [pick(1), Pinged(bytes(16), 1, -1), LaneOpened(1, 0, b"", "new")]
    assert all(Entry(fact, Importance.CONTROL, None, None, 0).is_owned for fact in owned)
    assert not any(Entry(fact, Importance.CONTROL, None, None, 0).is_owned for fact in others)


def test_only_senders_that_asked_are_told() -> None:
    entry = Entry(CheckpointDue("x"), Importance.CONTROL, None, "tag", 0)
    entry.sequence = 4
    assert entry.settled(Status.ACKNOWLEDGED, 9) == [Settled("tag", Receipt(Status.ACKNOWLEDGED, 9, 4))]
    entry.tag = None
    assert entry.settled(Status.SHED) == []


def test_what_is_critical_comes_after_all_that_may_be_shed() -> None:
    order = sorted(Importance)
    assert order[:3] == [Importance.RAW, Importance.SAMPLE, Importance.KV]
    assert all(importance >= Importance.CONTROL for importance in order[3:])
