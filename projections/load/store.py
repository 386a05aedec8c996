"""The latest sample of every rank, and the time at which each worker was last heard.

A sample's receipt time is the log time of its record. Samples go when they may be out of
date: the publisher connected (again), frames of it were missed, its subscription ended, or
the worker left the fleet. When a worker was last heard is kept apart and goes with the
worker alone: it answers dispatches (decision 18), whatever becomes of the samples.

Continuity was judged on the wire: `covers_from..sequence` of a sample runs over frames
that were coalesced, refused or skipped on purpose, so only a `covers_from` beyond the
last sequence plus one is a gap (decision 17).

Several publishers that report one rank: the newest record wins, whatever its sequence
(LOAD-20). That is how a restarted publisher takes over. Two that take turns are told apart
from a restart by the displaced one coming back; it is named once per connection (B-025).

Source: specification, "Staleness and the best-effort contract", "Dedup and ordering".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import xxhash

from projections.bounds import SAMPLES_MAX, SUBSCRIPTIONS_MAX
from projections.events.codec import encode_value
from projections.events.envelope import Record
from projections.events.held import PublisherHeld, SampleHeld, WorkerHeld
from projections.events.signals import (
    Family,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionContinued,
    SubscriptionState,
)
from projections.identity import U64_MAX, WorkerKey
from projections.load.held_samples import HeldSample, PublisherSamples, WorkerSamples, word_of
from projections.load.live_ranks import LiveRanks
from projections.notices import FrameResult, Notice, SampleNotice, StatusNotice

PUBLISHERS_KNOWN_MAX = 4 * SUBSCRIPTIONS_MAX  # remembered sequences; live subscriptions are a quarter
KEEPS_SAMPLES = "transport"  # an end for this reason is followed by a connect, which drops (STORE-17)

__all__ = ["HeldSample", "LoadStore", "WorkerSamples"]

_new: Any = tuple.__new__  # a named tuple's own constructor costs twice as much
_xxh3 = xxhash.xxh3_64_intdigest


class LoadStore:
    """Reducer of samples and connects. At most SAMPLES_MAX ranks, PUBLISHERS_KNOWN_MAX publishers."""

    def __init__(self) -> None:
        self.workers: dict[tuple[str, int], WorkerSamples] = {}  # others only read it
        self._publishers: dict[tuple[str, int], PublisherSamples] = {}
        self._count = 0
        self._changed: list[WorkerSamples] = []
        self._digest = 0

    # Reducers

    def apply_sample(self, record: Record, fleet: LiveRanks) -> tuple[Notice, ...]:
        """Take over one SampleReceived; says what became of it.

        fleet: live ranks at this record. A sample for a rank that no live worker declares is
        IDENTITY_MISMATCH; its sequence counts for continuity all the same.
        """
        (
            namespace,
            publisher_id,
            connection,
            covers_from,
            sequence,
            worker_id,
            dp_rank,
            decode_blocks,
            prefill_tokens,
            used_blocks,
            _published_at_ms,
            _raw_digest,
        ) = record.fact
        publisher = self._publishers.get((namespace, publisher_id))
        if publisher is None or publisher.connection != connection:
            publisher = self._connected(namespace, publisher_id, connection)
        notices: tuple[Notice, ...] = publisher.applied
        last = publisher.last_sequence
        if last is None:
            publisher.last_sequence = sequence
        else:
            if covers_from > last + 1:
                self._drop(publisher)
                notices = (SampleNotice(FrameResult.GAP, namespace, publisher_id), *notices)
            if sequence > last:
                publisher.last_sequence = sequence
        worker = self.workers.get((namespace, worker_id))
        if worker is None or worker.generation != fleet.generation or dp_rank not in worker.live:
            if not fleet.is_live(namespace, worker_id, dp_rank):
                return _refused(notices, FrameResult.IDENTITY_MISMATCH, publisher)
            worker = self._admitted(namespace, worker_id, dp_rank, fleet.generation)
        held = worker.samples.get(dp_rank)
        if held is None or held[0] != publisher_id:
            if held is None and self._count >= SAMPLES_MAX:
                self._heard(worker, record.time)
                return _refused(notices, FrameResult.OVER_CAPACITY, publisher)
            notices = self._take_over(publisher, worker, dp_rank, held, notices)
        elif sequence <= held[1]:
            return _refused(notices, FrameResult.DUPLICATE, publisher)
        time = record.time
        sample = (publisher_id, sequence, time, decode_blocks, prefill_tokens, used_blocks)
        worker.samples[dp_rank] = _new(HeldSample, sample)
        worker.last_sample_at = time
        if not worker.changed:
            worker.changed = True
            self._changed.append(worker)
        return notices

    def apply_subscription(self, record: Record) -> None:
        """A connect drops what is held of the publisher; so does an end, but for a transport switch.

        An ended subscription hears no change any more: samples that say "busy" would keep
        their workers out for ever (B-027). Where another owner continues, nothing was missed:
        the connection has another number, and that is all.
        """
        fact = record.fact
        assert isinstance(fact, SubscriptionChanged | SubscriptionContinued)
        if fact.family != Family.LOAD:
            return
        key = (fact.namespace, fact.publisher_id)
        if isinstance(fact, SubscriptionContinued):
            self._publisher(*key).connection = fact.connection
        elif fact.state == SubscriptionState.CONNECTED:
            self._connected(*key, fact.connection)
        elif fact.state == SubscriptionState.ENDED and fact.reason != KEEPS_SAMPLES:
            publisher = self._publishers.pop(key, None)
            if publisher is not None:
                self._drop(publisher)

    def evict(self, workers: Iterable[tuple[str, int]]) -> None:
        """Workers left the fleet: their samples and the time they were last heard go."""
        for key in workers:
            worker = self.workers.pop((key[0], key[1]), None)
            if worker is None:
                continue
            for dp_rank, sample in worker.samples.items():
                self._release(sample.publisher_id, (*worker.key, dp_rank))
            self._count -= len(worker.samples)
            worker.samples.clear()
            worker.last_sample_at = None
            self._change(worker)

    # Queries

    def __len__(self) -> int:
        """Held (worker, rank) entries."""
        return self._count

    def worker(self, namespace: str, instance_id: int) -> WorkerSamples | None:
        """All that is held of a worker, to read only; None before its first sample."""
        return self.workers.get((namespace, instance_id))

    def sample(self, namespace: str, instance_id: int, dp_rank: int) -> HeldSample | None:
        """The latest sample of a rank, of any age."""
        worker = self.workers.get((namespace, instance_id))
        return None if worker is None else worker.samples.get(dp_rank)

    def fresh(
        self, namespace: str, instance_id: int, dp_rank: int, age_us_max: int, at: int
    ) -> HeldSample | None:
        """The latest sample if it is at most age_us_max old at log time `at` (STORE-01)."""
        sample = self.sample(namespace, instance_id, dp_rank)
        return sample if sample is not None and at - sample.received_at <= age_us_max else None

    def last_sample_at(self, namespace: str, instance_id: int) -> int | None:
        """Log time of the last sample of any rank of a worker since it joined, dropped ones included."""
        worker = self.workers.get((namespace, instance_id))
        return None if worker is None else worker.last_sample_at

    def publishers(self) -> list[tuple[str, int]]:
        """Publishers whose connection is known, in order: what PublisherHeld must carry."""
        return sorted(key for key, publisher in self._publishers.items() if publisher.connection)

    def last_sequence(self, namespace: str, publisher_id: int) -> int | None:
        """The highest sequence known of a publisher's present connection."""
        publisher = self._publishers.get((namespace, publisher_id))
        return None if publisher is None else publisher.last_sequence

    def connection(self, namespace: str, publisher_id: int) -> int:
        """The connection that `last_sequence` speaks of, 0 where none is known."""
        publisher = self._publishers.get((namespace, publisher_id))
        return 0 if publisher is None else publisher.connection

    # Checkpoint and digest

    def held(self) -> Iterator[SampleHeld]:
        """Held samples in rank order. Workers' last times and publishers' sequences ride in
        WorkerHeld and PublisherHeld, see `last_sample_at`, `connection` and `last_sequence`."""
        for key in sorted(self.workers):
            samples = self.workers[key].samples
            for dp_rank in sorted(samples):
                sample = samples[dp_rank]
                yield SampleHeld(key[0], key[1], dp_rank, sample[0], sample[1], sample[2], *sample[3:])

    def restore(self, fact: SampleHeld | WorkerHeld | PublisherHeld) -> None:
        """Take over one held fact; the order of facts does not matter.

        Of a PublisherHeld, `connection` and `last_sequence` must be this store's.
        """
        if isinstance(fact, SampleHeld):
            worker = self._worker(fact.namespace, fact.instance_id)
            if fact.dp_rank not in worker.samples:
                self._count += 1
            worker.samples[fact.dp_rank] = HeldSample(*fact[3:])
            publisher = self._publisher(fact.namespace, fact.publisher_id)
            publisher.ranks[(fact.namespace, fact.instance_id, fact.dp_rank)] = None
            self._change(worker)
        elif isinstance(fact, WorkerHeld):
            if fact.last_sample_at is not None:
                self._heard(self._worker(fact.namespace, fact.instance_id), fact.last_sample_at)
        elif fact.family == Family.LOAD and fact.connection:
            publisher = self._publisher(fact.namespace, fact.publisher_id)
            publisher.connection = fact.connection
            publisher.last_sequence = fact.last_sequence

    @property
    def digest(self) -> int:
        """Sum modulo 2^64 of xxh3-64 of every sample, last time and sequence held.

        Workers' part is brought up to date here, for those that changed since the last call.
        """
        total = self._digest
        for worker in self._changed:
            total -= worker.word
            worker.word = word_of(worker)
            worker.changed = False
            total += worker.word
        self._changed.clear()
        self._digest = total & U64_MAX
        for publisher in self._publishers.values():
            if publisher.last_sequence is not None:
                total += _xxh3(encode_value(("publisher", *publisher.key, publisher.last_sequence)))
        return total & U64_MAX

    # Parts of the reducers

    def _worker(self, namespace: str, worker_id: int) -> WorkerSamples:
        worker = self.workers.get((namespace, worker_id))
        if worker is None:
            worker = self.workers[(namespace, worker_id)] = WorkerSamples(WorkerKey(namespace, worker_id))
        return worker

    def _admitted(self, namespace: str, worker_id: int, dp_rank: int, generation: int) -> WorkerSamples:
        """Remember that a rank is declared, until the generation differs."""
        worker = self._worker(namespace, worker_id)
        if worker.generation != generation:
            worker.generation = generation
            worker.live.clear()
        worker.live[dp_rank] = None
        return worker

    def _publisher(self, namespace: str, publisher_id: int) -> PublisherSamples:
        key = (namespace, publisher_id)
        publisher = self._publishers.get(key)
        if publisher is None:
            if len(self._publishers) >= PUBLISHERS_KNOWN_MAX:
                self._forget_one_publisher()
            publisher = self._publishers[key] = PublisherSamples(key)
        return publisher

    def _connected(self, namespace: str, publisher_id: int, connection: int) -> PublisherSamples:
        """A connection begins: nothing held of the publisher can be trusted (STORE-13)."""
        publisher = self._publisher(namespace, publisher_id)
        self._drop(publisher)
        publisher.connection = connection
        publisher.last_sequence = None
        publisher.displaced = publisher.took_turns = False
        return publisher

    def _forget_one_publisher(self) -> None:
        """Make room: the lowest id that has no samples goes, else the lowest id with its samples."""
        idle = [key for key, publisher in self._publishers.items() if not publisher.ranks]
        self._drop(self._publishers.pop(min(idle or self._publishers)))

    def _drop(self, publisher: PublisherSamples) -> None:
        """Drop all samples held from a publisher; when its workers were last heard stays."""
        for namespace, worker_id, dp_rank in publisher.ranks:
            worker = self.workers[(namespace, worker_id)]
            del worker.samples[dp_rank]
            self._change(worker)
        self._count -= len(publisher.ranks)
        publisher.ranks.clear()

    def _take_over(
        self,
        publisher: PublisherSamples,
        worker: WorkerSamples,
        dp_rank: int,
        held: HeldSample | None,
        notices: tuple[Notice, ...],
    ) -> tuple[Notice, ...]:
        """Make `publisher` the one that reports this rank; two that take turns are named once."""
        rank = (*worker.key, dp_rank)
        publisher.ranks[rank] = None
        if held is None:
            self._count += 1
            return notices
        other = self._release(held.publisher_id, rank)
        if other is not None:
            other.displaced = True
        if not publisher.displaced or publisher.took_turns:
            return notices
        publisher.took_turns = True
        detail = f"worker {worker.key.to_text()}, publishers {publisher.key[1]:x} and {held.publisher_id:x}"
        return (*notices, StatusNotice("several publishers report one worker", detail, "warning"))

    def _release(self, publisher_id: int, rank: tuple[str, int, int]) -> PublisherSamples | None:
        publisher = self._publishers.get((rank[0], publisher_id))
        if publisher is not None:
            publisher.ranks.pop(rank, None)
        return publisher

    def _heard(self, worker: WorkerSamples, time: int) -> None:
        worker.last_sample_at = time
        self._change(worker)

    def _change(self, worker: WorkerSamples) -> None:
        if not worker.changed:
            worker.changed = True
            self._changed.append(worker)


def _refused(
    notices: tuple[Notice, ...], result: FrameResult, publisher: PublisherSamples
) -> tuple[Notice, ...]:
    """The same notices with `result` in the place of APPLIED, which stands last."""
    return (*notices[:-1], SampleNotice(result, *publisher.key))


assert len(SampleReceived._fields) == 12, "apply_sample unpacks every field"
