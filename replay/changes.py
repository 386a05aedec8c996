"""What changed between two marks: how the states differ, and what happened on the way.

The fold goes from the first mark to the second. What operators would name (workers that
came and went, settings, owners, replicas, subscriptions, dispatches) is taken down as it
happens, with its log time; loads and blocks are compared at both ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from projections.events.control import ConfigAdopted, LaneOpened, ReplicaGone, ReplicaStarted
from projections.events.held import SettingsHeld
from projections.events.picks import DispatchEnded, EndStatus, PickMade, PicksLost
from projections.events.ports import CheckpointStore, LogReader
from projections.events.signals import Family, SubscriptionChanged, SubscriptionContinued, SubscriptionState
from projections.identity import RankKey, WorkerKey
from projections.notices import ClearCause, FleetPublished, Notice, RankCleared
from projections.registry.fleet import Role, Worker
from replay.fold_cursor import FoldCursor, Watcher
from replay.log_walk import Progress
from replay.setting_words import settings_words
from replay.timeline import IndexReading, RankLoad, StateGone, index_at, load_at, state_at, unanswered_at

EVENTS_KEPT = 10_000
_FAMILIES = {int(Family.LOAD): "kv_metrics", int(Family.KV): "kv-events"}
_WORKER_FIELDS = tuple(
    name for name in Worker._fields if name not in ("key", "first_seen", "last_updated", "model")
)
_CLEARED = {
    ClearCause.ENGINE: "by a clear of its engine",
    ClearCause.GAP: "by a gap",
    ClearCause.NEW_PUBLISHER: "by a new publisher",
    ClearCause.BINDING: "by another binding of its publisher",
    ClearCause.AGED: "by 60 s without news of its publisher",
    ClearCause.ENDED: "by the end of its subscription",
    ClearCause.DEPARTED: "as it left the fleet",
    ClearCause.SWITCHED_OFF: "as the index was switched off",
}
_STATES = {int(state): state.label for state in SubscriptionState}


class Event(NamedTuple):
    """Something that happened to `subject`. at: log time.

    what: the rest of the sentence; several: the same for many subjects at once, "" where
    such events are told one by one. detail: what follows the time.
    """

    offset: int
    at: int
    kind: str
    subject: str
    what: str
    several: str = ""
    detail: str = ""


class WorkerChange(NamedTuple):
    """A worker that is at both marks and is another one. fields: (name, before, after)."""

    worker: Worker
    fields: tuple[tuple[str, Any, Any], ...]


class Changes(NamedTuple):
    """Between the marks (offset, log time) of `start` and `stop`.

    loads: ranks at both marks whose verdict or sample differs, (before, after). blocks: at both
    marks. settings: in force at both. picks, lost: made. ends: by status. events: in order, at
    most EVENTS_KEPT; dropped: further ones. unanswered: dispatches at both marks.
    """

    start: tuple[int, int]
    stop: tuple[int, int]
    added: tuple[Worker, ...]
    removed: tuple[Worker, ...]
    changed: tuple[WorkerChange, ...]
    loads: tuple[tuple[RankLoad, RankLoad], ...]
    blocks: tuple[IndexReading, IndexReading]
    settings: tuple[SettingsHeld | None, SettingsHeld | None]
    picks: int
    lost: int
    ends: dict[str, int]
    unanswered: tuple[int, int]
    events: tuple[Event, ...]
    dropped: int


def changes_between(
    reader: LogReader,
    checkpoints: CheckpointStore | None,
    start: int,
    stop: int,
    on_progress: Progress | None = None,
) -> Changes:
    """The changes behind offset `start` up to offset `stop`. Raises what `state_at` raises."""
    if stop >= reader.end_offset():
        raise StateGone(
            f"offset {stop} is beyond the end of the log, its newest is {reader.end_offset() - 1}"
        )
    diary = _Diary()
    cursor = state_at(reader, checkpoints, start, on_progress, diary.watch)
    diary.open(cursor)
    before = _Ends(cursor)
    cursor.walk(reader, stop, on_progress)
    if cursor.stopped is not None:
        raise StateGone(f"the fold does not reach offset {stop}: {cursor.stopped}")
    diary.close(cursor.fold.mark.offset)
    after = _Ends(cursor)
    return Changes(
        start=before.mark,
        stop=after.mark,
        added=tuple(after.workers[key] for key in sorted(after.workers.keys() - before.workers.keys())),
        removed=tuple(before.workers[key] for key in sorted(before.workers.keys() - after.workers.keys())),
        changed=tuple(_changed(before.workers, after.workers)),
        loads=tuple(_loads(before.load, after.load)),
        blocks=(before.blocks, after.blocks),
        settings=(before.settings, after.settings),
        picks=diary.counts["picks"],
        lost=diary.counts["lost"],
        ends=dict(sorted(diary.ends.items())),
        unanswered=(before.unanswered, after.unanswered),
        events=tuple(diary.events),
        dropped=diary.dropped,
    )


class _Ends:
    """What is compared of a state, taken out of a fold that goes on."""

    def __init__(self, cursor: FoldCursor) -> None:
        fold = cursor.fold
        self.mark = (fold.mark.offset, fold.mark.time)
        self.workers = dict(fold.state.registry.fleet.workers)
        self.load = load_at(fold)
        self.blocks = index_at(fold)
        self.settings = fold.settings_now
        self.unanswered = len({line.pick_id for line in unanswered_at(fold)})


class _Diary:
    """Takes down what happens while a cursor goes on."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.dropped = 0
        self.counts: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.watch: dict[type, Watcher] = {
            ConfigAdopted: self._adopted,
            LaneOpened: self._opened,
            ReplicaStarted: self._started,
            ReplicaGone: self._gone,
            SubscriptionChanged: self._subscription,
            SubscriptionContinued: self._continued,
            PickMade: self._pick,
            PicksLost: self._lost,
            DispatchEnded: self._end,
        }
        self._cursor: FoldCursor | None = None
        self._workers: dict[WorkerKey, Worker] = {}
        self._settings: SettingsHeld | None = None

    def open(self, cursor: FoldCursor) -> None:
        """What comes from here on counts."""
        self._cursor = cursor
        self._workers = dict(cursor.fold.state.registry.fleet.workers)
        self._settings = cursor.fold.settings_now
        self.counts.clear()
        self.ends.clear()
        cursor.seen_notices = self._noticed

    def _say(
        self, offset: int, kind: str, subject: str, what: str, several: str = "", detail: str = ""
    ) -> None:
        if self._cursor is None:
            return
        if len(self.events) >= EVENTS_KEPT:
            self.dropped += 1
            return
        self.events.append(Event(offset, self._cursor.fold.mark.time, kind, subject, what, several, detail))

    def _noticed(self, offset: int, notices: Sequence[Notice]) -> None:
        for notice in notices:
            if type(notice) is RankCleared:
                self._cleared(offset, notice)
        if any(type(notice) is FleetPublished for notice in notices):
            self._look(offset, wait_for_cards=True)

    def _cleared(self, offset: int, notice: RankCleared) -> None:
        rank = rank_name(RankKey(notice.namespace, notice.instance_id, notice.dp_rank))
        blocks = "1 block" if notice.blocks == 1 else f"{notice.blocks} blocks"
        why = _CLEARED[notice.cause]
        self._say(offset, "rank", rank, f"lost {blocks} {why}", f"ranks lost their blocks, each {why}")

    def close(self, offset: int) -> None:
        """Nothing more comes: tell of workers that joined and still have no card."""
        self._look(offset, wait_for_cards=False)

    def _look(self, offset: int, wait_for_cards: bool) -> None:
        """Tell who came and went. A worker's card follows its instance: it joins with both."""
        assert self._cursor is not None
        workers = self._cursor.fold.state.registry.fleet.workers
        known = self._workers
        for key in sorted(known.keys() - workers.keys()):
            self._say(offset, "worker", worker_name(known.pop(key)), "left", "workers left")
        for key in sorted(workers.keys() - known.keys()):
            if workers[key].role is not Role.UNKNOWN or not wait_for_cards:
                known[key] = workers[key]
                self._say(offset, "worker", worker_name(workers[key]), "joined", "workers joined")

    def _adopted(self, offset: int, fact: ConfigAdopted) -> None:
        if self._cursor is None:
            return
        before, self._settings = self._settings, self._cursor.fold.settings_now
        self._say(
            offset,
            "config",
            f"settings version {fact.version}",
            f"by {fact.proposed_by}",
            detail=settings_words(before, self._settings),
        )

    def _opened(self, offset: int, fact: LaneOpened) -> None:
        self._say(offset, "owner", "another process", f"became the log's owner ({fact.cause})")

    def _started(self, offset: int, fact: ReplicaStarted) -> None:
        name = fact.label or fact.replica.hex()
        self._say(offset, "replica", f"replica {name}", f"of release {fact.version} started to pick")

    def _gone(self, offset: int, fact: ReplicaGone) -> None:
        self._say(
            offset, "replica", f"replica {fact.replica.hex()}", "was silent for 30 s and counts as gone"
        )

    def _subscription(self, offset: int, fact: SubscriptionChanged) -> None:
        family = _FAMILIES.get(fact.family, "unknown")
        state = _STATES.get(fact.state, "unknown")
        why = f" ({fact.reason})" if fact.reason and fact.reason != state else ""
        self._say(
            offset,
            "subscription",
            f"{fact.namespace}/{fact.publisher_id}",
            f"{family} subscription: {state}{why}",
            f"{family} subscriptions: {state}{why}",
        )

    def _continued(self, offset: int, fact: SubscriptionContinued) -> None:
        family = _FAMILIES.get(fact.family, "unknown")
        self._say(
            offset,
            "subscription",
            f"{fact.namespace}/{fact.publisher_id}",
            f"{family} subscription: taken over without a gap",
            f"{family} subscriptions: taken over without a gap",
        )

    def _pick(self, offset: int, fact: PickMade) -> None:
        self.counts["picks"] += 1

    def _lost(self, offset: int, fact: PicksLost) -> None:
        self.counts["lost"] += len(fact.lines)

    def _end(self, offset: int, fact: DispatchEnded) -> None:
        self.ends[EndStatus(fact.status).label] += 1


def worker_name(worker: Worker) -> str:
    """`<namespace>/<decimal id>` with role and model, as sentences name a worker."""
    model = f", model {worker.model}" if worker.model else ""
    return f"{worker.key.to_text()} ({worker.role.label}{model})"


def rank_name(rank: RankKey) -> str:
    """`<namespace>/<decimal id>#<rank>`."""
    return f"{rank.worker.to_text()}#{rank.dp_rank}"


def _changed(before: dict[WorkerKey, Worker], after: dict[WorkerKey, Worker]) -> list[WorkerChange]:
    found = []
    for key in sorted(before.keys() & after.keys()):
        was, now = before[key], after[key]
        fields = tuple(
            (name, _field(was, name), _field(now, name))
            for name in ("model", *_WORKER_FIELDS)
            if _field(was, name) != _field(now, name)
        )
        if fields:
            found.append(WorkerChange(now, fields))
    return found


def _field(worker: Worker, name: str) -> Any:
    """A field as it is told: of files their checksums, no path, since paths name hosts."""
    return worker.artifacts.summary() if name == "artifacts" else getattr(worker, name)


def _loads(before: list[RankLoad], after: list[RankLoad]) -> list[tuple[RankLoad, RankLoad]]:
    known = {row.rank: row for row in before}
    return [(known[row.rank], row) for row in after if row.rank in known and known[row.rank] != row]
