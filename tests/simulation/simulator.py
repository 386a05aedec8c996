"""One seeded run: processes, a log, a fleet and requests, in one thread and one virtual time.

Everything that happens is an event in one heap, ordered by time and then by when it was
planned; all chance comes from one `random.Random(seed)`. So a seed is a whole history, and
the same seed is the same history. Faults are drawn first as a plan, then everything heals
and the run waits until nothing is under way: what is true then is checked by `invariants`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import app.pick_log
import ingest.log.outage
import ingest.log.ownership
import router.service
from app.tail import ProposeCondemned, Restart, Tail
from ingest.discovery.source import EndReason
from ingest.log.appends import Receipt, Send, Status
from ingest.wire.publisher_frames import Sample
from projections.bounds import SECOND_US
from projections.events.control import PickSettings
from projections.events.picks import PickMade
from tests.simulation.world_fleet import NAMESPACES, SimWorker, Store
from tests.simulation.world_log import Checkpoints, SimLog
from tests.simulation.world_owner import OwnerProcess, SimLine
from tests.simulation.world_process import Follower, Process, Replica, Writer
from tests.simulation.world_router import Request, SimRouter

P = TypeVar("P", bound=Process)
SETTLE_US = 40 * SECOND_US  # after the faults: dispatches end, buffers drain


class Chances(NamedTuple):
    """How likely faults are; a scenario sets most of them to nothing."""

    unclear: float = 0.01
    twice: float = 0.01
    refused: float = 0.01
    broken: float = 0.001
    slow: float = 0.05
    seconds: int = 50
    faults: int = 12
    mute: float = 0.1
    replicas: int = 2
    workers: int = 6


class Simulator:
    """The world and its clock. now: true time, microseconds."""

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.chances = chances if chances is not None else self._draw_chances()
        self.now = 0
        self.log = SimLog()
        self.checkpoints = Checkpoints()
        self.store = Store()
        self.workers: dict[int, SimWorker] = {}
        self.processes: list[Process] = []
        self.requests: list[Request] = []
        self.routers_gone: list[SimRouter] = []
        self.routers: list[SimRouter] = []
        self.receipts: list[tuple[Any, Receipt]] = []
        self.digests: list[tuple[str, int, tuple[tuple[str, int], ...]]] = []
        self.restarts: list[tuple[str, Restart]] = []
        self.stops: list[tuple[str, int]] = []
        self.counts: Counter[str] = Counter()
        self.may_stop: Container[int] = ()
        self.may_disagree = False
        self.forgotten: set[bytes] = set()  # picks that a scenario spoiled
        self.checkpoint_every_us = self.rng.choice((3, 7, 20)) * SECOND_US
        self.buffered_max = self.rng.choice((3, 12))
        self.settings = self._draw_settings()
        self._heap: list[tuple[int, int, Callable[[], None], Process | None]] = []
        self._planned = 0
        self.running: Process | None = None
        self.delivered: set[tuple[str, int, int, int]] = set()  # namespace, publisher, connection, sequence
        self.script: dict[str, list[Callable[[Writer, Send], None]]] = {}  # what the next commits meet
        self._asked_at: dict[bytes, int] = {}

    def _draw_chances(self) -> Chances:
        rng = self.rng
        calm = rng.random() < 0.3
        return Chances(
            unclear=0 if calm else rng.choice((0, 0.005, 0.03)),
            twice=0 if calm else rng.choice((0, 0.02)),
            refused=rng.choice((0, 0.02)),
            broken=0 if calm else rng.choice((0, 0, 0.002)),
            slow=rng.choice((0, 0.05, 0.2)),
            seconds=rng.choice((12, 30, 65)),
            faults=rng.randint(0, 20),
            mute=rng.choice((0, 0.1, 0.6)),
            replicas=rng.randint(0, 2),
            workers=rng.randint(1, 8),
        )

    def _draw_settings(self) -> PickSettings:
        rng = self.rng
        spaces = NAMESPACES if rng.random() < 0.7 else NAMESPACES[:1]
        model_map = (("nick", "tiny"),) if rng.random() < 0.7 else ()
        staleness = rng.choice((500_000, 1_000_000, 3_000_000, 8_000_000))
        return PickSettings("load_based", "etcd", spaces, model_map, staleness, rng.random() < 0.95)

    # -- time ------------------------------------------------------------------------

    def later(self, delay_us: int, do: Callable[[], None], process: Process | None = None) -> None:
        """Plan an event."""
        self._planned += 1
        heapq.heappush(self._heap, (self.now + max(0, delay_us), self._planned, do, process))

    def run_until(self, at: int) -> None:
        """Let events happen up to `at`."""
        while self._heap and self._heap[0][0] <= at:
            due, number, do, process = heapq.heappop(self._heap)
            self.now = max(self.now, due)
            if process is None:
                do()
                continue
            if not process.is_alive:
                continue
            if process.paused_until > self.now:
                heapq.heappush(self._heap, (process.paused_until, number, do, process))
                continue
            self.running = process
            if isinstance(process, OwnerProcess):
                process.loop_woke()
            do()
            self.running = None
        self.now = at

    def clock(self) -> int:
        """Monotonic time of the process whose event this is."""
        assert self.running is not None
        return self.running.clock()

    # -- processes ---------------------------------------------------------------------

    @property
    def owner(self) -> OwnerProcess | None:
        """The newest living owner or claimant."""
        living = [one for one in self.processes if isinstance(one, OwnerProcess) and one.is_alive]
        return living[-1] if living else None

    def start(self, kind: type[P], name: str) -> P:
        """A process starts; its first steps are events of its own."""
        made = kind(self, name)
        self.processes.append(made)
        return made

    def new_router(self, process: Replica) -> SimRouter:
        """The router of a process."""
        made = SimRouter(process)
        self.routers.append(made)
        return made

    # -- the log -----------------------------------------------------------------------

    def commit(self, writer: Writer, send: Send) -> None:
        """A process commits a batch: some of what can happen happens."""
        if self.script.get(writer.process.name):
            self.script[writer.process.name].pop(0)(writer, send)
            return
        rng, chances, process = self.rng, self.chances, writer.process
        latency = rng.choice((300, 2_000, 8_000))
        if rng.random() < chances.slow:
            latency = rng.choice((50_000, 400_000, 1_500_000))
        wait = process.cut_until - self.now
        if wait > 0 and rng.random() < 0.5:
            process.later(latency, lambda: writer.failed(send.number, False))
            return
        if wait > 0:  # sent, and no answer before the cut ends
            self.unclear(writer, send, wait + latency)
            return
        if self.log.is_full and not send.critical:
            process.later(latency, lambda: writer.failed(send.number, True))
            return
        draw = rng.random()
        if draw < chances.unclear:
            self.unclear(writer, send, latency)
        elif draw < chances.unclear + chances.refused:
            process.later(latency, lambda: writer.failed(send.number, False))
        elif draw < chances.unclear + chances.refused + chances.broken and isinstance(process, OwnerProcess):
            self.count("sync failed")
            self.torn(send)
            process.later(latency, writer.broken)
        else:
            self.later(latency, lambda: self.land(writer, send, rng.choice((0, 200, 5_000))))

    def land(self, writer: Writer, send: Send, answer_us: int) -> None:
        """The batch reaches the log, if its process lives; what a dying process left is torn."""
        process = writer.process
        if not process.is_alive:
            self.torn(send)
            return
        first = self._append(send.records)
        if self.rng.random() < self.chances.twice:  # a retry below us that arrived as well
            self.count("landed twice")
            self.later(self.rng.choice((0, 3_000, 900_000)), lambda: self._append_again(send))
        process.later(answer_us, lambda: writer.committed(send.number, first, len(send.records)))

    def unclear(self, writer: Writer, send: Send, answer_us: int, lands: str = "") -> None:
        """No clear answer. lands: never, before or after the writer looks, or in part."""
        self.count("unclear")
        lands = lands or self.rng.choice(("never", "before", "after", "part"))
        if lands == "before":
            self.later(self.rng.randint(0, answer_us), lambda: self._append_again(send))
        elif lands == "after":
            self.later(answer_us + self.rng.choice((100, 5_000, 2_000_000)), lambda: self._append_again(send))
        elif lands == "part":
            part = send.records[: self.rng.randint(0, len(send.records))]
            self.later(self.rng.randint(0, answer_us), lambda: self._append_again(send._replace(records=part)))
        writer.process.later(answer_us, lambda: writer.unclear(send.number))

    def _append_again(self, send: Send) -> None:
        if send.records:
            self._append(send.records)

    def torn(self, send: Send, kind: str = "") -> None:
        """A crash in the middle of a write: a prefix survives, or it is cut with an offset jump."""
        survives = self.rng.randint(0, len(send.records))
        kind = kind or self.rng.choice(("clean", "prefix", "cut", "whole"))
        self.count(f"crash {kind}")
        if kind == "prefix" and survives:
            self._append(send.records[:survives])
        elif kind == "whole":
            self._append(send.records)
        elif kind == "cut":
            self.log.cut()

    def _append(self, records: list[bytes]) -> int:
        first = self.log.commit(records)
        for process in self.processes:
            if process.is_alive and hasattr(process, "eye"):
                self._show(process, self.log.end)
        return first

    def _show(self, process: Any, end: int) -> None:
        delay = self.rng.choice((0, 500, 3_000))
        if self.rng.random() < self.chances.slow:
            delay = self.rng.choice((80_000, 1_200_000))
        at = max(self.now + delay, process.cut_until)

        def seen() -> None:
            if self.now < process.cut_until:
                self.later(process.cut_until - self.now, seen)
            elif process.eye.see(end) and process.is_alive:
                process.later(0, process.reading.plan)

        self.later(at - self.now, seen)

    # -- what processes report -----------------------------------------------------------

    def count(self, what: str) -> None:
        """Something that is worth seeing happened."""
        self.counts[what] += 1

    def settled(self, receipt: Receipt) -> None:
        """A writer told somebody."""
        self.counts[f"receipt {receipt.status.name}"] += 1

    def receipt(self, fact: Any, receipt: Receipt) -> None:
        """What became of a replica's own record."""
        self.receipts.append((fact, receipt))

    def picked(self, request: Request) -> None:
        """A pick was made; log time never goes back at a replica."""
        self.requests.append(request)
        made = request.made
        assert made is not None
        before = self._asked_at.get(made.replica, 0)
        assert made.question.asked_at >= before, f"asked_at went back by {before - made.question.asked_at}"
        self._asked_at[made.replica] = made.question.asked_at

    def folded(self, process: Process, tail: Tail) -> None:
        """A slice was folded; now and then its digests are kept."""
        if self.rng.random() < 0.1:
            self.digests.append((process.name, tail.fold.mark.offset, tail.fold.digests()))

    def stopped(self, process: Process, effect: ProposeCondemned) -> None:
        """A fold stopped."""
        self.stops.append((process.name, effect.offset))
        assert effect.offset in self.may_stop, f"{process.name} stopped at {effect.offset}: {effect.detail}"

    def restarted(self, process: Process, effect: Restart) -> None:
        """A fold starts anew."""
        self.restarts.append((process.name, effect))
        self.count(f"restart {effect.reason}")
        detail = process.reading.newest.stopped_detail  # type: ignore[attr-defined]
        assert effect.reason == "condemned" or self.may_disagree, f"{process.name} disagreed: {detail}"

    # -- the fleet -----------------------------------------------------------------------

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
            process.later(200, lambda l=line: l.frame(l.connection, sample, sequence))  # type: ignore[misc]

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
            self.later(place * self.rng.choice((0, 20_000)), lambda k=key, v=value: self.store.put(k, v))

    def leave_worker(self, worker: SimWorker) -> None:
        """A worker goes; its keys follow, at once or when its lease ends."""
        worker.is_alive = False
        lease = self.rng.choice((0, 10_000, 3_000_000))
        for key, _ in worker.records():
            self.later(lease, lambda k=key: self.store.delete(k))
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
                process.later(
                    200, lambda l=line, c=line.connection, h=heard: l.frame(c, h, sequence)  # type: ignore[misc]
                )

    # -- the run -------------------------------------------------------------------------

    def run(self) -> None:
        """The whole history of the seed."""
        with self.patched():
            self.begin()
            self.plan_faults()
            self.plan_requests()
            self.run_until(self.chances.seconds * SECOND_US)
            self.heal()
            self.run_until(self.now + SETTLE_US)

    def begin(self) -> None:
        """The first processes and workers."""
        for _ in range(self.chances.workers):
            self.join_worker()
        self.start(OwnerProcess, "owner1")
        self.start(Follower, "follower")
        for number in range(self.chances.replicas):
            self.start(Replica, f"replica{number}")

    def plan_requests(self) -> None:
        """Requests come in bursts."""
        rng = self.rng
        at = 500_000
        while at < self.chances.seconds * SECOND_US:
            for _ in range(rng.choice((1, 1, 1, 2, 9))):
                self.later(at, self._ask)
            at += rng.choice((50_000, 400_000, 2_500_000))

    def _ask(self) -> None:
        living = [one for one in self.processes if isinstance(one, Replica) and one.is_alive]
        if living:
            process = self.rng.choice(living)
            process.later(0, lambda: process.router.ask())

    def plan_faults(self) -> None:
        """What goes wrong, and when."""
        for _ in range(self.chances.faults):
            self.later(self.rng.randint(0, self.chances.seconds * SECOND_US), self.fault)

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
            self.later(rng.randint(1, 5) * SECOND_US, lambda: self._restore(backup))
        elif kind == "compact":
            store.compact()
        if kind != "restore" and owner is not None and owner.discovery is not None:
            owner.discovery.end(EndReason.STREAM)

    def _restore(self, backup: Any) -> None:
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
                    process.later(number * 40_000, lambda p=process: p.router.ask())  # type: ignore[misc]
        self.count("cut off")

    def _fault_full(self) -> None:
        self.log.is_full = True
        self.later(self.rng.choice((500_000, 6_000_000)), lambda: setattr(self.log, "is_full", False))
        self.count("disk full")

    def _fault_publisher(self) -> None:
        rng = self.rng
        worker = rng.choice(list(self.workers.values()))
        if rng.random() < 0.5:
            worker.is_silent_until = self.now + rng.choice((2, 6, 35)) * SECOND_US
            return
        worker.sequence = 0
        owner = self.owner
        if owner is not None and owner.subscriptions is not None:
            line = owner.subscriptions.lines.get((worker.namespace, worker.publisher))
            if line is not None:
                owner.later(0, lambda: line.cut("closed"))

    def _fault_settings(self) -> None:
        self.settings = self._draw_settings()
        owner = self.owner
        if owner is not None:
            owner.later(0, lambda: owner.adopt(self.settings))

    def _fault_clock(self) -> None:
        process = self.rng.choice(self.processes)
        process.wall_offset += self.rng.choice((-3_600, -5, 5, 86_400)) * SECOND_US

    def heal(self) -> None:
        """Everything works again; one owner, all replicas that were alive."""
        self.chances = self.chances._replace(unclear=0, twice=0, refused=0, broken=0, slow=0)
        self.log.is_full = False
        for process in self.processes:
            process.cut_until = min(process.cut_until, self.now)
            process.paused_until = min(process.paused_until, self.now)
        self.later(5 * SECOND_US, self._ensure_owner)
        self.later(8 * SECOND_US, self._ensure_owner)

    def _ensure_owner(self) -> None:
        if self.owner is None:
            self.start(OwnerProcess, "owner-last")

    @contextmanager
    def patched(self) -> Iterator[None]:
        """The few places where product modules reach for clock and chance themselves."""
        silent = SimpleNamespace(warning=lambda *a, **k: None, error=lambda *a, **k: None)
        loop = SimpleNamespace(time=lambda: self.now / 1e6)
        places: list[tuple[Any, str, Any]] = [
            (app.pick_log, "monotonic_us", self.clock),
            (router.service, "asyncio", SimpleNamespace(get_running_loop=lambda: loop)),
            (router.service, "os", SimpleNamespace(urandom=self.rng.randbytes)),
            (ingest.log.ownership, "log", silent),
            (ingest.log.outage, "PICKS_BUFFERED_MAX", self.buffered_max),
        ]
        before = [getattr(module, name) for module, name, _ in places]
        for module, name, value in places:
            setattr(module, name, value)
        try:
            yield
        finally:
            for (module, name, _), value in zip(places, before, strict=True):
                setattr(module, name, value)


def acknowledged(receipts: list[tuple[Any, Receipt]]) -> Iterator[tuple[Any, int]]:
    """Facts that were said to be durable, with the offsets that were named."""
    for fact, receipt in receipts:
        if receipt.status is Status.ACKNOWLEDGED:
            assert receipt.offset is not None
            yield fact, receipt.offset
