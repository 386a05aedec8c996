"""One seeded run: processes, a log, a fleet and requests, in one thread and one virtual time.

The same seed is the same history. Faults are drawn first as a plan, then everything heals
and the run waits until nothing is under way: what is true then is checked by `invariants`.
What runs are the product's own step machines and its picking step; see ADR 0010.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

import app.pick_log
import ingest.log.outage
import ingest.log.ownership
import router.service
from projections.bounds import SECOND_US
from tests.simulation.world_chaos import Chaos
from tests.simulation.world_owner import OwnerProcess
from tests.simulation.world_process import Follower, Replica

SETTLE_US = 40 * SECOND_US  # after the faults: dispatches end, buffers drain


class Simulator(Chaos):
    """A world that can be run from its begin to its end."""

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
        rng = Random(f"retention of {self.seed}")  # its own, so that it moves no other chance
        for _ in range(rng.choice((0, 1, 4))):
            self.later(
                rng.randint(0, self.chances.seconds * SECOND_US), partial(self.expire, rng.choice((1, 2, 3)))
            )

    def heal(self) -> None:
        """Everything works again; one owner, all replicas that were alive."""
        self.chances = self.chances._replace(unclear=0, twice=0, refused=0, broken=0, slow=0)
        self.log.is_full = False
        self.is_healed = True
        for process in self.processes:
            process.cut_until = min(process.cut_until, self.now)
            process.paused_until = min(process.paused_until, self.now)
        for seconds in range(2, 20, 2):
            self.later(seconds * SECOND_US, self._ensure_owner)

    def _ensure_owner(self) -> None:
        if self.owner is None:
            self.start(OwnerProcess, f"owner{len(self.processes)}")

    @contextmanager
    def patched(self) -> Iterator[None]:
        """The few places where product modules reach for clock and chance themselves."""
        silent = SimpleNamespace(**dict.fromkeys(("info", "warning", "error"), lambda *a, **k: None))
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
