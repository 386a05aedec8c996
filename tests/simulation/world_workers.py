"""Workers that join, leave, come back and publish; a few say nothing, some say it twice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ingest.wire.publisher_frames import Sample
from projections.events.picks import PickMade
from tests.simulation.world_blocks import Prompt, SimEngine, a_prompt, engines_of
from tests.simulation.world_commits import Commits
from tests.simulation.world_fleet import NAMESPACES, SimWorker
from tests.simulation.world_owner import OwnerProcess
from tests.simulation.world_subscriptions import SimLine


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
            process.later(200, partial(line.frame, line.session, sample, sequence))

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
        if self.has_blocks:
            self.workers[number].engines = engines_of(self.workers[number], self.kv_rng)
            self.later(self.kv_rng.randint(0, 400_000), lambda: self._publish_blocks(number))
        self._announce(self.workers[number])
        self.later(rng.randint(0, 400_000), lambda: self._publish(number))

    def _announce(self, worker: SimWorker) -> None:
        for place, (key, value) in enumerate(worker.records() + worker.block_records()):
            self.later(place * self.rng.choice((0, 20_000)), partial(self.store.put, key, value))

    def leave_worker(self, worker: SimWorker) -> None:
        """A worker goes; its keys follow, at once or when its lease ends."""
        worker.is_alive = False
        lease = self.rng.choice((0, 10_000, 3_000_000))
        for key, _ in worker.records() + worker.block_records():
            self.later(lease, partial(self.store.delete, key))
        for line, process in self._lines(worker):
            process.later(self.rng.randint(0, 50_000), partial(line.cut, "closed"))
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
                process.later(200, partial(line.frame, line.session, heard, sequence))

    def has_engine(self, publisher: tuple[str, int]) -> bool:
        """Whether somebody publishes block events under this name."""
        return any(
            engine.key == publisher for one in self.workers.values() if one.is_alive for engine in one.engines
        )

    def engines_store(self, made: PickMade, prompt: Prompt) -> None:
        """The rank that prefills a request has its blocks now."""
        chosen = made.outcome.prefill.chosen or made.outcome.decode.chosen
        worker = self.workers.get(chosen.instance_id) if chosen is not None else None
        if worker is None or chosen is None or not worker.is_alive:
            return
        for engine in worker.engines:
            if engine.rank == chosen.dp_rank:
                self._send_blocks(engine, engine.stores(prompt))

    def _publish_blocks(self, number: int) -> None:
        worker, rng = self.workers[number], self.kv_rng
        for engine in worker.engines if worker.is_alive else ():
            draw = rng.random()
            if draw < 0.02:
                if not self.is_healed:  # its keys would change until the end, faster than they are heard of
                    self._restart_engine(engine)
            elif draw < 0.3:
                self._send_blocks(engine, engine.forgets())
            elif draw < 0.9:
                self._send_blocks(
                    engine, [e for _ in range(rng.randint(1, 3)) for e in engine.stores(a_prompt(rng))]
                )
        self.later(rng.choice((200_000, 700_000, 2_000_000)), lambda: self._publish_blocks(number))

    def _restart_engine(self, engine: SimEngine) -> None:
        for key, _ in engine.records():
            self.later(self.kv_rng.choice((0, 3_000_000)), partial(self.store.delete, key))
        engine.restart()
        self.count("engine restarted")
        for key, value in engine.records():
            self.later(self.kv_rng.choice((0, 20_000)), partial(self.store.put, key, value))

    def _send_blocks(self, engine: SimEngine, events: list[tuple[bytes, bytes]]) -> None:
        """One frame; a few are lost, a few come twice."""
        if not events:
            return
        rng = self.kv_rng
        sequence, engine.sequence = engine.sequence, engine.sequence + 1
        for process in self.processes:
            if not isinstance(process, OwnerProcess) or process.blocks is None or not process.is_alive:
                continue
            line = process.blocks.lines.get(engine.key)
            if line is not None and rng.random() > 0.03:
                for _ in range(2 if rng.random() < 0.03 else 1):
                    process.later(200, partial(line.frame, line.session, sequence, events))
