"""The frame of a simulated world: one heap of events, its processes, and what they report.

Everything that happens is an event, ordered by time and then by when it was planned; all
chance comes from one `random.Random(seed)`. So a seed is a whole history.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Container, Iterator
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from app.tail import ProposeCondemned, Restart, Tail
from ingest.log.appends import Receipt, Send, Status
from projections.bounds import SECOND_US
from projections.events.control import PickSettings
from tests.simulation.world_blocks import kv_settings
from tests.simulation.world_fleet import NAMESPACES, SimWorker, Store
from tests.simulation.world_log import Checkpoints, SimLog
from tests.simulation.world_owner import OwnerProcess
from tests.simulation.world_process import Process, Replica, Writer
from tests.simulation.world_router import Request, SimRouter

if TYPE_CHECKING:
    from tests.simulation.simulator import Simulator

P = TypeVar("P", bound=Process)


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


class World:
    """See the module's text. now: true time, microseconds."""

    def __init__(self, seed: int, chances: Chances | None = None) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.kv_rng = Random(f"blocks of {seed}")
        self.has_blocks = chances is None and seed % 2 == 0
        self.is_healed = False
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
        self.checkpoint_every_us = self.rng.choice((3, 7, 20)) * SECOND_US
        self.buffered_max = self.rng.choice((3, 12))
        self.settings = self._draw_settings()
        self._heap: list[tuple[int, int, Callable[[], object], Process | None]] = []
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
        kv = kv_settings(self.kv_rng) if self.has_blocks and self.kv_rng.random() < 0.85 else None
        return PickSettings("load_based", "etcd", spaces, model_map, staleness, rng.random() < 0.95, kv)

    def later(self, delay_us: int, do: Callable[[], object], process: Process | None = None) -> None:
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
            process.woke()
            do()
            self.running = None
        self.now = at

    def clock(self) -> int:
        """Monotonic time of the process whose event this is."""
        assert self.running is not None
        return self.running.clock()

    @property
    def owner(self) -> OwnerProcess | None:
        """The newest living owner or claimant; not a standby."""
        living = [
            one
            for one in self.processes
            if isinstance(one, OwnerProcess) and one.is_alive and (one.speaks or not one.stands_by)
        ]
        return living[-1] if living else None

    def start(self, kind: type[P], name: str) -> P:
        """A process starts; its first steps are events of its own."""
        made = kind(cast("Simulator", self), name)
        self.processes.append(made)
        return made

    def new_router(self, process: Replica) -> SimRouter:
        """The router of a process."""
        made = SimRouter(process)
        self.routers.append(made)
        return made

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
        assert effect.reason in ("condemned", "overtaken") or self.may_disagree, (
            f"{process.name} disagreed: {detail}"
        )


def acknowledged(receipts: list[tuple[Any, Receipt]]) -> Iterator[tuple[Any, int]]:
    """Facts that were said to be durable, with the offsets that were named."""
    for fact, receipt in receipts:
        if receipt.status is Status.ACKNOWLEDGED:
            assert receipt.offset is not None
            yield fact, receipt.offset
