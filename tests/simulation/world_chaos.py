"""What goes wrong: one drawn fault after another, at drawn times."""

from __future__ import annotations

from functools import partial
from typing import Any

from ingest.discovery.source import EndReason
from projections.bounds import SECOND_US
from tests.simulation.world_owner import OwnerProcess
from tests.simulation.world_process import Process, Replica
from tests.simulation.world_workers import Workers


class Chaos(Workers):
    """The faults of a world."""

    def fault(self) -> None:
        """One of the things that go wrong."""
        kinds = (
            self._fault_worker, self._fault_worker, self._fault_worker, self._fault_store,
            self._fault_process, self._fault_process, self._fault_cut, self._fault_full,
            self._fault_publisher, self._fault_settings, self._fault_clock,
        )  # fmt: skip
        self.rng.choice(kinds)()

    def _fault_worker(self) -> None:
        rng = self.rng
        living = [worker for worker in self.workers.values() if worker.is_alive]
        kind = rng.choice(("join", "leave", "leave", "change", "copy"))
        if kind == "join" or not living:
            self.join_worker()
            return
        worker = rng.choice(living)
        if kind == "leave":
            self.leave_worker(worker)
        elif kind == "change":
            worker.change(rng)
            key, value = worker.records()[1]
            self.store.put(key, value)
        else:
            key, value = worker.copy_of_instance()
            self.store.put(key, value)
            self.later(rng.choice((10_000, 3_000_000)), lambda: self.store.delete(key))

    def _fault_store(self) -> None:
        rng, store = self.rng, self.store
        owner = self.owner
        kind = rng.choice(("disconnect", "compact", "restore", "restore"))
        if kind == "restore":
            backup = store.backup()
            self.later(rng.randint(1, 5) * SECOND_US, lambda: self.restore_store(backup))
        elif kind == "compact":
            store.compact()
        if kind != "restore" and owner is not None and owner.discovery is not None:
            owner.discovery.end(EndReason.STREAM)

    def restore_store(self, backup: Any) -> None:
        self.count("store restored")
        self.store.restore(backup)
        for process in self.processes:
            if isinstance(process, OwnerProcess) and process.is_alive and process.discovery is not None:
                process.discovery.end(EndReason.STREAM)

    def _fault_process(self) -> None:
        rng = self.rng
        living = [one for one in self.processes if one.is_alive]
        if not living:
            return
        process = rng.choice(living)
        if rng.random() < 0.5:
            us = rng.choice((300_000, 1_200_000, 4_000_000, 9_000_000))
            process.pause(us)
            self.count("paused")
            if isinstance(process, OwnerProcess) and us > 2 * SECOND_US and rng.random() < 0.5:
                self.later(us // 2, self._take_over)
            return
        process.die()
        self.count("killed")
        kind = type(process)
        self.later(rng.choice((10_000, 1_000_000, 4_000_000)), lambda: self._replace(kind, process.name))

    def _take_over(self) -> None:
        owner = self.owner
        if owner is not None and owner.paused_until <= self.now:
            return  # what keeps claimants away from a living owner is the log's lock, not this machine
        self.count("taken over")
        self.start(OwnerProcess, f"owner{len(self.processes)}")

    def _replace(self, kind: type[Process], name: str) -> None:
        if kind is OwnerProcess and self.owner is not None:
            return
        self.start(kind, f"{name}+")

    def _fault_cut(self) -> None:
        rng = self.rng
        us = rng.choice((100_000, 1_500_000, 5_000_000, 34_000_000))
        living = [one for one in self.processes if one.is_alive]
        for process in living if rng.random() < 0.5 else living[-1:]:
            process.cut_until = max(process.cut_until, self.now + us)
            if isinstance(process, Replica) and rng.random() < 0.5:  # more than the buffer holds
                for number in range(rng.randint(5, 30)):
                    process.later(number * 40_000, process.router.ask)
        self.count("cut off")

    def _fault_full(self) -> None:
        self.log.is_full = True
        self.later(self.rng.choice((500_000, 6_000_000)), lambda: setattr(self.log, "is_full", False))
        self.count("disk full")

    def expire(self, newest: int) -> None:
        """Retention goes on to one of the newest checkpoints. newest: which, from 1."""
        kept = self.checkpoints.list()[-newest:]
        if kept:
            self.log.forget(kept[0].offset)
            self.count("retention")

    def _fault_publisher(self) -> None:
        rng = self.rng
        worker = rng.choice(list(self.workers.values()))
        if rng.random() < 0.5:
            worker.is_silent_until = self.now + rng.choice((2, 6, 35)) * SECOND_US
            return
        worker.sequence = 0
        for line, process in self._lines(worker):
            process.later(0, partial(line.cut, "closed"))

    def _fault_settings(self) -> None:
        self.settings = self._draw_settings()
        owner = self.owner
        if owner is not None:
            owner.later(0, lambda: owner.adopt(self.settings))

    def _fault_clock(self) -> None:
        process = self.rng.choice(self.processes)
        process.wall_offset += self.rng.choice((-3_600, -5, 5, 86_400)) * SECOND_US
