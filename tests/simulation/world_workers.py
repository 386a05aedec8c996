"""Workers that join, leave, come back and publish; a few say nothing, some say it twice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ingest.wire.publisher_frames import Sample
from projections.events.picks import PickMade
from tests.simulation.world_commits import Commits
from tests.simulation.world_fleet import NAMESPACES, SimWorker
from tests.simulation.world_owner import OwnerProcess, SimLine


class Workers(Commits):
    """The fleet of a world."""

    def is_listening(self, publisher: tuple[str, int]) -> bool:
        """Whether somebody answers at a publisher's address."""
        return any(
            (one.namespace, one.publisher) == publisher and one.is_alive for one in self.workers.values()
        )

    def is_dead_worker(self, made: PickMade | None) -> bool:
        """Whether a pick was sent to a worker that is gone."""
        assert made is not None
        chosen = made.outcome.decode.chosen
        if chosen is None:
            return False
        worker = self.workers.get(chosen.instance_id)
        return worker is None or not worker.is_alive

    def add_worker(self, role: str = "aggregated", space: str = NAMESPACES[0]) -> SimWorker:
        """A plain worker that says nothing by itself: see `say`."""
        number = len(self.workers) + 1
        worker = self.workers[number] = SimWorker(number, space, role, None)
        self._announce(worker)
        return worker

    def say(self, worker: SimWorker, decode_blocks: int | None, prefill_tokens: int | None = None) -> None:
        """A plain worker's sample reaches all that listen."""
        sequence, worker.sequence = worker.sequence, worker.sequence + 1
        sample = Sample(sequence, 0, worker.number, worker.first_rank, decode_blocks, prefill_tokens, None)
        for line, process in self._lines(worker):
            process.later(200, partial(line.frame, line.connection, sample, sequence))

    def _lines(self, worker: SimWorker) -> Iterator[tuple[SimLine, OwnerProcess]]:
        """Connected subscriptions to a worker's publisher."""
        for process in self.processes:
            if isinstance(process, OwnerProcess) and process.subscriptions is not None and process.is_alive:
                line = process.subscriptions.lines.get((worker.namespace, worker.publisher))
                if line is not None and line.is_connected:
                    yield line, process

    def join_worker(self) -> None:
        """A worker comes."""
        number = len(self.workers) + 1
        rng = self.rng
        role = rng.choice(("prefill", "decode", "decode", "aggregated", "aggregated"))
        space = NAMESPACES[0] if rng.random() < 0.6 else NAMESPACES[1]
        self.workers[number] = SimWorker(number, space, role, rng)
        if rng.random() < self.chances.mute:
            self.workers[number].is_silent_until = 1 << 60  # a mute one: it fills up to its peers' load
        self._announce(self.workers[number])
        self.later(rng.randint(0, 400_000), lambda: self._publish(number))

    def _announce(self, worker: SimWorker) -> None:
        for place, (key, value) in enumerate(worker.records()):
            self.later(place * self.rng.choice((0, 20_000)), partial(self.store.put, key, value))

    def leave_worker(self, worker: SimWorker) -> None:
        """A worker goes; its keys follow, at once or when its lease ends."""
        worker.is_alive = False
        lease = self.rng.choice((0, 10_000, 3_000_000))
        for key, _ in worker.records():
            self.later(lease, partial(self.store.delete, key))
        owner = self.owner
        if owner is not None and owner.subscriptions is not None:
            line = owner.subscriptions.lines.get((worker.namespace, worker.publisher))
            if line is not None:
                owner.later(self.rng.randint(0, 50_000), lambda: line.cut("closed"))
        if self.rng.random() < 0.6:
            self.later(lease + self.rng.choice((50_000, 2_000_000)), lambda: self._come_back(worker))

    def _come_back(self, worker: SimWorker) -> None:
        worker.is_alive = True
        if self.rng.random() < 0.5:
            for key, _ in worker.records()[2:]:
                self.store.delete(key)
            worker.publisher += 100
            worker.sequence = 0
        self._announce(worker)

    def _publish(self, number: int) -> None:
        worker, rng = self.workers[number], self.rng
        flood = rng.random() < 0.02
        for _ in range(rng.randint(5, 40) if flood else 1):
            if worker.is_alive and self.now >= worker.is_silent_until:
                self._send_sample(worker)
        self.later(rng.choice((100_000, 300_000, 900_000)), lambda: self._publish(number))

    def _send_sample(self, worker: SimWorker) -> None:
        rng = self.rng
        sequence, worker.sequence = worker.sequence, worker.sequence + 1
        rank = worker.first_rank + rng.randrange(worker.ranks)
        about = worker.number
        if rng.random() < 0.02:
            about = rng.randint(1, len(self.workers) + 1)  # of another worker, or of none
        load = [None if rng.random() < 0.3 else rng.choice((0, 0, 3, 40)) for _ in range(3)]
        sample = Sample(sequence, self.now // 1000, about, rank, *load)
        for line, process in self._lines(worker):
            if rng.random() < 0.02:
                continue
            heard = None if rng.random() < 0.02 else sample
            for _ in range(2 if rng.random() < 0.02 else 1):
                process.later(200, partial(line.frame, line.connection, heard, sequence))
