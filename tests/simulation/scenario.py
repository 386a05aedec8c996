"""A quiet world for one race at a time: nothing goes wrong but what the scenario says.

with quiet(workers=2) as sim:
    owner, replica = sim.started
    ...
(at the end everything heals, the run settles, and all invariants are checked)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ingest.log.appends import Send
from projections.bounds import SECOND_US
from projections.events.codec import decode_record
from projections.events.control import PickSettings
from projections.events.envelope import Record
from projections.events.picks import PickMade
from tests.simulation.invariants import check_all
from tests.simulation.simulator import SETTLE_US, Simulator
from tests.simulation.world import Chances
from tests.simulation.world_owner import OwnerProcess
from tests.simulation.world_process import Follower, Process, Replica, Writer
from tests.simulation.world_router import Request, Wish

QUIET = Chances(0, 0, 0, 0, 0, seconds=5, faults=0, replicas=0, workers=0)
SETTINGS = PickSettings("load_based", "etcd", ("alpha", "beta"), (), 3_000_000)
MS = 1_000


class Quiet(Simulator):
    """A simulator without chance in what matters."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, QUIET)
        self.settings = SETTINGS
        self.buffered_max = 12
        self.checkpoint_every_us = 5 * SECOND_US
        self.owner_process: OwnerProcess
        self.replica: Replica

    def wait(self, us: int) -> None:
        """Let time go on."""
        self.run_until(self.now + us)

    def act(self, process: Process, do: Callable[[], Any]) -> None:
        """Do this in that process, now."""
        process.later(0, do)
        self.wait(0)

    def ask(self, process: Replica, **wish: Any) -> Request:
        """A request at that process; picked at once unless its wish says otherwise."""
        made: list[Request | None] = []
        self.act(process, lambda: made.append(process.router.ask(Wish(**wish))))
        self.wait(0)
        assert made and made[0] is not None, "nothing is served yet"
        return made[0]

    def pick_of(self, process: Replica, **wish: Any) -> PickMade:
        """The pick of such a request."""
        made = self.ask(process, **wish).made
        assert made is not None
        return made

    def settle_writer(self, process: Replica) -> None:
        """Wait until nothing of it is under way, so that its next commit is the scenario's."""
        while not process.appender.is_idle:
            self.wait(MS)

    def meets(self, process: Process, *fates: Callable[[Writer, Send], None]) -> None:
        """What the next commits of a process meet."""
        self.script.setdefault(process.name, []).extend(fates)

    def unclear_commit(self, lands: str, answer_us: int = 2_000) -> Callable[[Writer, Send], None]:
        """A commit without a clear answer."""
        return lambda writer, send: self.unclear(writer, send, answer_us, lands)

    def said(self, kind: type | tuple[type, ...]) -> list[Record]:
        """Records of that kind in the log, in order."""
        records = (decode_record(offset, data) for offset, data in self.log.records())
        return [record for record in records if isinstance(record.fact, kind)]


@contextmanager
def quiet(workers: int = 2, role: str = "aggregated", seed: int = 1) -> Iterator[Quiet]:
    """An owner, a follower, one replica and plain workers that were seen; afterwards all is checked."""
    sim = Quiet(seed)
    with sim.patched():
        for _ in range(workers):
            sim.add_worker(role)
        sim.owner_process = sim.start(OwnerProcess, "owner")
        sim.start(Follower, "follower")
        sim.replica = sim.start(Replica, "replica")
        sim.wait(3 * SECOND_US)
        yield sim
        sim.heal()
        sim.wait(SETTLE_US)
    check_all(sim)
