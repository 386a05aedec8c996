"""From records to rows: a fold of its own, and what the audit says of each record.

A record has rows only if the fold lets it take effect, so repeated and fenced records leave
none. Of workers a new version is a row of its own; the identities that a record of
discovery concerns are looked up before and after it, so that a change costs the same
whatever the size of the fleet.

Samples and news of subscriptions are passed by: the audit says nothing of them, and nothing it
says depends on load. That makes following a busy log cheap, and catching up with it fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.audit_candidates import Candidates
from app.audit_rows import AuditRows
from projections.audit.rows import (
    PicksSuspected,
    ReplicaHeard,
    ReplicaLeft,
    WorkerBegan,
    WorkerEnded,
    WorkerVersion,
)
from projections.audit.translation import (
    DECODE,
    PREFILL,
    candidate_rows,
    config_row,
    end_row,
    pick_row,
    replica_row,
    whole,
    worker_version,
)
from projections.events.codec import check_word, peek_kind
from projections.events.control import ClockTicked, ConfigAdopted, ReplicaGone, ReplicaStarted
from projections.events.discovery import KeyDeleted, KeyPut, KeysDropped, Keyspace
from projections.events.held import SettingsHeld
from projections.events.kinds import Kind
from projections.events.picks import DispatchEnded, Phase, PickMade, PicksDistrusted
from projections.fold import Fold
from projections.identity import WorkerKey
from projections.notices import Notice
from projections.registry.claims import identity_of
from replay.log_walk import record_at

PASSED_BY = frozenset(
    int(kind)
    for kind in (
        Kind.SAMPLE_RECEIVED,
        Kind.KV_BATCH_RECEIVED,
        Kind.FRAME_REFUSED,
        Kind.SUBSCRIPTION_CHANGED,
        Kind.SUBSCRIPTION_CONTINUED,
    )
)
_DISCOVERY = frozenset((int(Kind.KEY_PUT), int(Kind.KEY_DELETED), int(Kind.KEYS_DROPPED)))
_CLAIMING = frozenset((int(Keyspace.INSTANCES), int(Keyspace.CARDS)))


class AuditProjector:
    """Folds records in order and says their rows.

    written: offset up to which rows are in the database; records up to it are folded and say
    nothing. limit: candidate rows a phase, None for all that there are.
    """

    def __init__(self, fold: Fold, written: int, limit: int | None, candidates: Candidates) -> None:
        self.fold = fold
        self.position = fold.mark.offset
        self._written = written
        self._limit = limit
        self._candidates = candidates
        self._notices: list[Notice] = []
        self._versions: dict[WorkerKey, WorkerVersion] = {
            key: worker_version(worker) for key, worker in fold.state.registry.fleet.workers.items()
        }
        self._gone = {held.replica for held in fold.state.status.replicas() if held.gone_at is not None}

    def begin(self, rows: AuditRows) -> None:
        """Say what was in force already where this fold began, for a database that knows nothing of it."""
        mark = self.fold.mark
        if mark.offset < 0:
            return
        rows.at = mark.time
        for key, worker in self.fold.state.registry.fleet.workers.items():
            began = WorkerBegan(self._versions[key], mark.offset, worker.last_updated)
            rows.changes.append((mark.offset, began))
        for held in self.fold.state.status.held():
            if isinstance(held, SettingsHeld):
                fact = ConfigAdopted(
                    held.version, held.proposed_by, held.digest, held.settings, held.pick, held.enabled
                )
                rows.changes.append((mark.offset, config_row(held.offset, held.adopted_at, fact)))

    def apply(self, offset: int, data: bytes, rows: AuditRows) -> None:
        """Fold one record and add what it says. Raises FoldStopped, as the fold does."""
        self.position = offset
        kind = peek_kind(data)
        if kind in PASSED_BY:
            rows.last = (offset, check_word(data))
            return
        said = rows if offset > self._written else AuditRows()
        if kind in _DISCOVERY:
            self._discovery(offset, data, said)
        else:
            known = self._replica_before(kind, offset, data)
            fact = self.fold.apply(offset, data, self._notices)
            if fact is not None:
                self._say(offset, fact, known, said)
        self._notices.clear()
        rows.last = (offset, check_word(data))
        rows.at = self.fold.state.intake.stamp

    def _say(self, offset: int, fact: tuple[Any, ...], was_present: bool, rows: AuditRows) -> None:
        if isinstance(fact, PickMade):
            self._pick(offset, fact, rows)
        elif isinstance(fact, DispatchEnded):
            rows.ends.append(end_row(offset, fact))
        elif isinstance(fact, ReplicaGone):
            if was_present:
                self._gone.add(fact.replica)
                left = ReplicaLeft(fact.replica.hex(), offset, self.fold.state.intake.stamp)
                rows.changes.append((offset, left))
            return
        elif isinstance(fact, PicksDistrusted):  # of whoever is gone it says nothing: no state knows it
            suspected = PicksSuspected(fact.replica.hex(), whole(fact.after), whole(fact.upto), offset)
            rows.changes.append((offset, suspected))
            return
        elif isinstance(fact, ClockTicked) and self._gone:  # whoever was forgotten comes back as a stranger
            status = self.fold.state.status
            self._gone = {replica for replica in self._gone if status.replica(replica) is not None}
        elif isinstance(fact, ConfigAdopted):
            rows.changes.append((offset, config_row(offset, self.fold.state.intake.stamp, fact)))
        elif isinstance(fact, ReplicaStarted):
            rows.changes.append((offset, replica_row(offset, self.fold.state.intake.stamp, fact)))
            self._gone.discard(fact.replica)
        replica = getattr(fact, "replica", None)
        if replica is not None and replica in self._gone:
            self._gone.discard(replica)
            rows.changes.append((offset, ReplicaHeard(replica.hex(), offset)))

    def _replica_before(self, kind: int, offset: int, data: bytes) -> bool:
        """Whether a ReplicaGone names a replica that is known and present; False for any other record."""
        if kind != Kind.REPLICA_GONE:
            return False
        record = record_at(offset, data)
        if record is None or not isinstance(record.fact, ReplicaGone):
            return False
        held = self.fold.state.status.replica(record.fact.replica)
        return held is not None and held.gone_at is None

    # -- picks -------------------------------------------------------------------------

    def _pick(self, offset: int, fact: PickMade, rows: AuditRows) -> None:
        settings = self.fold.settings(fact.config_version)
        chosen, namespace = fact.outcome.decode.chosen, fact.outcome.namespace
        block_size = None
        if chosen is not None and namespace is not None:
            worker = self.fold.state.registry.worker(WorkerKey(namespace, chosen.instance_id))
            block_size = None if worker is None else worker.block_size
        rows.picks.append(
            pick_row(offset, fact, None if settings is None else settings.pick.picker, block_size)
        )
        if self._limit == 0:
            return
        tables = self._candidates.of(offset, fact)
        for phase, label, outcome in (
            (Phase.DECODE, DECODE, fact.outcome.decode),
            (Phase.PREFILL, PREFILL, fact.outcome.prefill),
        ):
            rows.candidates += candidate_rows(offset, fact, label, outcome, tables[phase], self._limit)

    # -- workers -----------------------------------------------------------------------

    def _discovery(self, offset: int, data: bytes, rows: AuditRows) -> None:
        record = record_at(offset, data)
        fact = None if record is None else record.fact
        if isinstance(fact, KeysDropped):
            touched: Iterable[WorkerKey] = tuple(self._versions)
        else:
            touched = self._claimed(fact)
        self.fold.apply(offset, data, self._notices)
        keys = sorted({*touched, *self._claimed(fact)})
        for key in keys:
            self._follow(key, offset, _cause(fact), rows)

    def _claimed(self, fact: tuple[Any, ...] | None) -> list[WorkerKey]:
        """The worker that a key's held record speaks of, as the registry stands."""
        if not isinstance(fact, KeyPut | KeyDeleted) or fact.keyspace not in _CLAIMING:
            return []
        held = self.fold.state.registry.keyspaces.get((fact.keyspace, fact.namespace, fact.key))
        identity = None if held is None else identity_of(fact.keyspace, fact.namespace, held.record)
        if identity is None:
            return []
        _, namespace, parts = identity
        instance = parts[0] if fact.keyspace == Keyspace.INSTANCES else parts[2]
        return [WorkerKey(namespace, int(instance))]

    def _follow(self, key: WorkerKey, offset: int, cause: str, rows: AuditRows) -> None:
        """A row ends and another begins where what is said of a worker changed."""
        worker = self.fold.state.registry.worker(key)
        before = self._versions.get(key)
        after = None if worker is None else worker_version(worker)
        if before == after:
            return
        stamp = self.fold.state.intake.stamp
        if before is not None:
            ended = cause if after is None else "changed"
            rows.changes.append((offset, WorkerEnded(before.namespace, before.worker, offset, stamp, ended)))
        if after is not None:
            rows.changes.append((offset, WorkerBegan(after, offset, stamp)))
            self._versions[key] = after
        else:
            del self._versions[key]


def _cause(fact: tuple[Any, ...] | None) -> str:
    if isinstance(fact, KeyDeleted):
        return "deleted"
    return "dropped" if isinstance(fact, KeysDropped) else "conflict"
