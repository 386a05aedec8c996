"""State of a fold to ordinary records and back.

A checkpoint is a sequence of held facts between `CheckpointOpened` and `CheckpointClosed`,
written in a fixed order: the fleet, passes, keys, workers, samples, publishers, blocks that
ranks hold, lines of the ledger, writers, settings, replicas, owner, each in key order. So
equal states give equal bytes. Two facts carry what several projections know of one thing: WorkerHeld the
times of registry, load and ledger; PublisherHeld a subscription and its continuity.

The closing record has the number of facts and the digests of all projections; a restored
state that differs in any of them is refused, so a checkpoint is either the state or an
error.

Sources: decisions 9, 10; requirement rows EVS-13, EVS-14.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from projections.events.codec import RecordRefused, decode_record, encode_record
from projections.events.envelope import REPLICA_EPOCH, WRITER_BYTES, Mark
from projections.events.held import (
    CheckpointClosed,
    CheckpointOpened,
    FleetHeld,
    KeyHeld,
    KvPublisherHeld,
    KvRankHeld,
    KvTierHeld,
    LedgerLine,
    OwnerHeld,
    PassHeld,
    PredictionHeld,
    PublisherHeld,
    ReplicaHeld,
    RunHeld,
    SampleHeld,
    SettingsHeld,
    WorkerHeld,
    WriterSeen,
)
from projections.events.signals import Family, Transport
from projections.fold import Fold
from projections.fold_state import State
from projections.identity import WorkerKey
from projections.kv.held_state import KvRestore, held_facts

_NO_WRITER = bytes(WRITER_BYTES)
UNSAID_STATE = 0  # of a publisher whose samples came without any word of its subscription


class CheckpointRefused(ValueError):
    """Records that are no whole checkpoint of a state, with what is wrong and where."""


def checkpoint_records(fold: Fold, log_id: bytes) -> Iterator[bytes]:
    """Record bytes of the fold's state at its mark. The fold must not go on before the last one."""
    mark = fold.mark
    sequence = 0
    opened = CheckpointOpened(mark.offset, mark.check, mark.time, log_id)
    for sequence, fact in enumerate(_told(opened, fold), start=1):
        yield encode_record(mark.time, _NO_WRITER, REPLICA_EPOCH, sequence, fact)
    closed = CheckpointClosed(sequence - 1, fold.digests())
    yield encode_record(mark.time, _NO_WRITER, REPLICA_EPOCH, sequence + 1, closed)


def fold_from_checkpoint(records: Iterable[bytes], condemned: frozenset[int] = frozenset()) -> Fold:
    """The fold that a checkpoint is of. Raises CheckpointRefused for anything else.

    condemned: as for Fold. Offsets that the log had condemned by then are in the checkpoint.
    """
    facts = checkpoint_facts(records)
    opened = next(facts, None)
    if not isinstance(opened, CheckpointOpened):
        raise CheckpointRefused("the first record opens no checkpoint")
    restore = _Restore()
    state, count = restore.state, 0
    for fact in facts:
        if isinstance(fact, CheckpointClosed):
            _settle(restore, fact, count)
            if next(facts, None) is not None:
                raise CheckpointRefused("records follow the one that closes the checkpoint")
            mark = Mark(opened.offset, opened.time, opened.check)
            return Fold(condemned | frozenset(state.intake.condemned), mark, state)
        restore.take(fact)
        count += 1
    raise CheckpointRefused(f"it ends after {count} facts without being closed: write it again")


def checkpoint_facts(records: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
    """The facts of record bytes, the opening and the closing one among them. Raises CheckpointRefused."""
    for index, data in enumerate(records):
        try:
            yield decode_record(index, data).fact
        except RecordRefused as refusal:
            raise CheckpointRefused(f"record {index} of the checkpoint: {refusal}") from refusal


def closing_of(facts: Iterable[tuple[Any, ...]]) -> CheckpointClosed:
    """What closes a checkpoint of these held facts, for whoever rewrites one."""
    restore = _Restore()
    count = 0
    for fact in facts:
        if not isinstance(fact, CheckpointOpened | CheckpointClosed):
            restore.take(fact)
            count += 1
    restore.finish()
    return CheckpointClosed(count, restore.state.digests())


def _told(opened: CheckpointOpened, fold: Fold) -> Iterator[tuple[Any, ...]]:
    state = fold.state
    yield opened
    yield from state.registry.held()
    yield from _workers(state)
    yield from state.load.held()
    yield from _publishers(state)
    yield from held_facts(state.kv)
    yield from state.ledger.held()
    yield from state.intake.held()
    yield from state.status.held()
    intake, status = state.intake, state.status
    yield OwnerHeld(
        intake.owner_writer,
        intake.owner_epoch,
        intake.stamp,
        intake.fold_mode,
        intake.condemned,
        status.tick_offset,
        status.tick_records,
        status.tick_check_sum,
    )


def _workers(state: State) -> Iterator[WorkerHeld]:
    """Workers known to registry, load or ledger, in canonical order."""
    for key, first_seen, last_updated in state.registry.seen():
        yield WorkerHeld(
            key.namespace,
            key.instance_id,
            first_seen,
            last_updated,
            state.load.last_sample_at(*key),
            state.ledger.suspect_from(*key),
        )


def _publishers(state: State) -> Iterator[PublisherHeld]:
    """Subscriptions, and publishers of which only the continuity is known, in key order."""
    subscriptions = state.status.subscriptions
    load = int(Family.LOAD)
    continuing = {(load, *key) for key in state.load.publishers()}
    for key in sorted(continuing.union(subscriptions)):
        _, namespace, publisher_id = key
        held = subscriptions.get(key)
        if held is None:
            held = PublisherHeld(*key, "", UNSAID_STATE, 0, int(Transport.DIRECT), "", None, 0)
        if key in continuing:
            last = state.load.last_sequence(namespace, publisher_id)
            connection = state.load.connection(namespace, publisher_id)
            held = held._replace(last_sequence=last, sampled_connection=connection)
        yield held


class _Restore:
    """Hands held facts to the projections that they speak of."""

    def __init__(self) -> None:
        self.state = State()
        self._kv = KvRestore(self.state.kv)

    def take(self, fact: tuple[Any, ...]) -> None:
        """One fact. Raises CheckpointRefused for one that stands in no checkpoint."""
        state = self.state
        match fact:
            case FleetHeld() | PassHeld() | KeyHeld():
                state.registry.restore(fact)
            case WorkerHeld():
                key = WorkerKey(fact.namespace, fact.instance_id)
                state.registry.restore_seen(key, fact.first_seen, fact.last_updated)
                state.load.restore(fact)
                state.ledger.restore(fact)
            case SampleHeld():
                state.load.restore(fact)
            case PublisherHeld():
                state.load.restore(fact._replace(connection=fact.sampled_connection))
                if fact.state != UNSAID_STATE:
                    state.status.restore(fact)
            case LedgerLine():
                state.ledger.restore(fact)
            case WriterSeen():
                state.intake.restore(fact)
            case SettingsHeld() | ReplicaHeld():
                state.status.restore(fact)
            case OwnerHeld():
                state.intake.restore(fact)
                state.status.restore(fact)
            case KvRankHeld() | KvPublisherHeld() | KvTierHeld() | RunHeld() | PredictionHeld():
                self._kv.take(fact)
            case _:
                raise CheckpointRefused(f"{type(fact).__name__} is no fact of a checkpoint")

    def finish(self) -> None:
        """All facts were taken."""
        self.state.registry.settle()
        try:
            intake = self.state.intake
            self._kv.finish(intake.fold_mode, intake.stamp, self.state.registry)
        except ValueError as problem:
            raise CheckpointRefused(f"the blocks that ranks hold are no whole: {problem}") from problem


def _settle(restore: _Restore, closed: CheckpointClosed, count: int) -> None:
    """End the restore and compare it with what the writer knew."""
    if closed.facts != count:
        raise CheckpointRefused(f"{count} facts where {closed.facts} were written: write it again")
    restore.finish()
    restored = restore.state.digests()
    if restored != closed.digests:
        ours, theirs = dict(restored), dict(closed.digests)
        differing = [name for name in sorted({**ours, **theirs}) if ours.get(name) != theirs.get(name)]
        raise CheckpointRefused(f"the restored state differs in {', '.join(differing) or 'its projections'}")
