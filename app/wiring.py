"""A process that folds the log, put together: it picks, or may own the log, or both.

Names the concrete classes of every part but the logs, which `log_access` and its like name. Three
commands run it:

    serve    owns the embedded log and picks      `log_access.OwnedLog`
    ingest   owns the log, or waits for its turn  `OwnedLog`, or `kafka_access.KafkaAccess`
    router   picks, through another's log         `log_access.SharedLog`, or `KafkaAccess`

Order of a start:

    reach the log -> fold from a checkpoint -> open the door -> claim the log, or just write
    -> the owner folds up to its own claim, adopts the settings, begins discovery -> ready

The HTTP door opens before the tail of a long log is folded, so that `/health` answers
meanwhile; `/ready` says what is missing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import structlog

from app.answering import application_of
from app.collector import FREEZE_EVERY_S, freeze_again, freeze_collected
from app.config_load import LoadedConfig, installed_extras
from app.config_model import Config
from app.doors import DoorPlan, Doors
from app.folding import Folding
from app.follower_standing import ChildMetrics
from app.log_access import LogAccess, OwnedLog, StoreFigures
from app.log_tail import GATHER_IDLE_S, GATHER_S, monotonic_us
from app.lookups import Lookups
from app.observe import Observer
from app.own_records import OwnRecords
from app.owner_side import OwnerSide
from app.part_settings import prompt_settings, router_settings, writer_settings
from app.peer_checkpoints import PeerCheckpoints
from app.pick_log import ReplicaLog
from app.process_state import ProcessState
from app.processes import Child
from app.prompt_side import prompt_maker
from app.reloading import Reloading
from app.tail import Seen, Tail
from ingest.log.log_writer import LogWriter
from projections.bounds import SECOND_US
from projections.events.control import ConfigAdopted, ConfigProposed
from projections.events.discovery import PassSettled
from projections.events.ports import CheckpointStore, LogError, LogStore, RecordBatch
from projections.fold import Fold
from projections.notices import Notice
from router.ingress.http_server import Door
from router.picker.pick import pick
from router.service import RouterService

log = structlog.get_logger("picklog")

TICK_S = 0.25
WRITER_CLOSE_S = 6.0  # what a log that does not answer may cost at the end
WATCHED = frozenset((ConfigAdopted, ConfigProposed, PassSettled))
REPLICA_BYTES = 16


class Duties(NamedTuple):
    """What a process is for. owns: the log, as soon as nobody else does. picks: for clients."""

    name: str
    owns: bool
    picks: bool


class Role(Enum):
    """See the module's text."""

    SERVE = Duties("serve", owns=True, picks=True)
    INGEST = Duties("ingest", owns=True, picks=False)
    ROUTER = Duties("router", owns=False, picks=True)


class MainProcess:
    """One process of a role. Build it inside the loop, then `run`. It closes `access` at its end."""

    def __init__(
        self,
        loaded: LoadedConfig,
        access: LogAccess,
        role: Role = Role.SERVE,
        doors: DoorPlan | None = None,
        member: str | None = None,
    ) -> None:
        """member: its name in a group of processes that share a port."""
        config, data = loaded.config, access.data
        self.role = role
        self.member = member
        self.data = data
        self.access = access
        self.replica = os.urandom(REPLICA_BYTES)
        self.observer = Observer()
        self.own = OwnRecords(self.replica, self.observer, role.value.name)
        self.folding = Folding(
            access.reader,
            access.checkpoints,
            self.replica,
            WATCHED,
            self,
            before_start=partial(PeerCheckpoints.of(config, access.folder).fetch, access.reader),
            on_batches=self._read if self.stands_by else None,
            gather_s=GATHER_S if role.value.picks else GATHER_IDLE_S,
            data=data,
        )
        self.pick_log = ReplicaLog(self.replica, self.folding.tail, self.own.of_replica)
        self.service: RouterService | None = None
        if role.value.picks:
            self.service = RouterService(
                self.pick_log,
                pick,
                router_settings(config, prompt_settings(config, data, installed_extras())),
                self.observer,
                prompts=prompt_maker(self.observer),
            )
        self.reloading = Reloading(loaded, self)
        self.owning: OwnerSide | None = None
        self.follower: Child | None = None
        if role.value.owns:
            raw = access.raw_frames(config) if config.log.raw.enabled else None
            self.owning = OwnerSide(self, self.folding.tail, raw)
        if isinstance(access, OwnedLog):
            arguments = ["follower", "--data", str(data)]
            if loaded.path is not None:
                arguments += ["-c", str(loaded.path)]
            self.follower = Child("follower", arguments, ChildMetrics(self.observer.registry).take)
        self.observer.source = ProcessState(self)
        self.failure: str | None = None
        lookups = Lookups(data, access.checkpoints, access.open_reader)
        self._doors = Doors(Door(application_of(self, lookups), self.service), doors or DoorPlan())
        self._stopping = asyncio.Event()
        self._is_impatient = False
        self._has_started = False
        self._has_won = False
        self._has_given_up = False

    # -- life ----------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until stopped; the exit status. Raises OSError where an address is taken."""
        tasks: list[asyncio.Task[Any]] = []
        try:
            await self._doors.open(self.config.server.bind_address)
            if self.service is not None:
                await self.service.start()
            self._begin(tasks, self.folding.run(), "the fold")
            await self._open_writer()
            if self.writer is not None:
                if self.follower is not None:
                    self.follower.start()
                self._begin(tasks, self._tick(), "the ticks")
                self._begin(tasks, self.reloading.watch(), "the watch of the configuration")
            await self._stopping.wait()
        except LogError as problem:
            self._fail(str(problem))
        except OSError as problem:
            self.failure = str(problem)
            raise
        finally:
            await self._stop(tasks)
        return 0 if self.failure is None else 3

    def stop(self) -> None:
        """Ask to end; a second time ends without waiting for requests in flight."""
        if self._stopping.is_set():
            self._is_impatient = True
            self._doors.hurry()
        self._stopping.set()

    async def _open_writer(self) -> None:
        """Become a writer of the log, the owner where that is the role, or be told to stop first."""
        opening = asyncio.create_task(
            LogWriter.open(
                self.access.store,
                writer_settings(self.config),
                is_owner=self.owning is not None,
                stands_by=self.stands_by,
                replica=self.replica,
                spool=self.access.spool() if self.owning is not None else None,
                upkeep=self.access.upkeep if self.owning is not None else None,
                on_still=self.observer.stood_still,
            )
        )
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not opening.done():
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            return
        writer = self.own.writer = opening.result()
        writer.failure.add_done_callback(lambda done: self._fail(str(done.result())))
        if self.owning is not None:
            self.owning.claimed(writer)

    def _begin(self, tasks: list[asyncio.Task[Any]], running: Coroutine[Any, Any, Any], what: str) -> None:
        task = asyncio.create_task(running, name=what)
        task.add_done_callback(self._task_ended)
        tasks.append(task)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or self._stopping.is_set():
            return
        problem = task.exception()
        if isinstance(problem, LogError | OSError):
            self._fail(f"{task.get_name()} ended: {problem}")
        else:
            log.error("a task ended by a fault", task=task.get_name(), exc_info=problem)
            self._fail(f"{task.get_name()} ended by a fault")

    def _fail(self, what: str) -> None:
        if self.failure is None and not self._has_given_up:
            self.failure = what
            log.error("the process ends", cause=what)
        self._stopping.set()

    async def _stop(self, tasks: list[asyncio.Task[Any]]) -> None:
        log.info("stopping", cause=self.failure or "asked to")
        await self._doors.close(failed=self.failure is not None, is_impatient=lambda: self._is_impatient)
        if self.service is not None:
            await self.service.close()
        if self.owning is not None:
            await self.owning.stop()
            if self.writer is not None and not self.writer.failure.done():
                await self.owning.last_checkpoint(self.writer, lambda: self._is_impatient)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.follower is not None:
            await self.follower.stop()
        if self.writer is not None:
            patience = asyncio.get_running_loop().call_later(WRITER_CLOSE_S, self._give_up)
            await self.writer.close()
            patience.cancel()
        if self.owning is not None:
            await asyncio.to_thread(self.owning.close)
        await asyncio.to_thread(self.access.close)
        log.info("stopped")

    def _give_up(self) -> None:
        """End what waits for a log that does not answer; no fault of a process that was told to end."""
        self._has_given_up = True
        log.warning("the log does not answer: what waits for it is not written")
        asyncio.get_running_loop().run_in_executor(None, self.access.give_up)

    # -- what the fold tells (folding.Listener) ------------------------------------------

    def append_ping(self, number: int, as_of: int) -> None:
        """See Listener."""
        self.own.ping(number, as_of, self.pick_log.log_time()[0], self.pick_log.is_nameless)

    def noticed(self, notices: tuple[Notice, ...], is_news: bool) -> None:
        """See Listener."""
        # in a group the owner tells of the fleet, once
        self.observer.is_quiet = not is_news or (self.member is not None and self.owning is None)
        self.observer.on_notices(notices)
        self.observer.is_quiet = False
        if self.service is not None:
            self.service.noticed(notices, self.folding.tail.fold.mark.offset)

    def folded(self) -> None:
        """See Listener."""
        fold = self.folding.tail.fold
        self.observer.folded(fold.mark.offset)
        self.pick_log.forget_folded()
        if self.service is not None:
            self.service.follow_fleet(fold.state.registry.fleet)
        writer = self.writer
        if writer is None:
            return
        if self.owning is not None:
            self.owning.folded(fold, writer, self.folding.start, self._say_started)
        may_start = self.owning is None or self.stands_by
        if may_start and not self._has_started and self.folding.tail.readiness(monotonic_us()).ready:
            self._say_started()
            if self.owning is not None:
                self.owning.stand_by(fold)
        if self.owning is None or (not self.is_owner and writer.owner_heard_at is not None):
            self.reloading.follow(fold.settings_now)
            if self.owning is not None and self._has_started:
                self.reloading.propose_file()

    def seen(self, seen: Seen) -> None:
        """See Listener."""
        fact = seen.fact
        if isinstance(fact, ConfigAdopted) and self.is_owner:
            self.reloading.on_adopted(fact)
        elif self.owning is not None:
            self.owning.seen(seen)

    def condemn(self, offset: int, detail: str) -> None:
        """See Listener."""
        if self.owning is not None:
            self.owning.condemn(offset, detail)

    def fold_given_up(self, reason: str) -> None:
        """See Listener."""
        self.observer.fold_restarted(reason)
        self.pick_log.distrust()

    def fold_replaced(self, tail: Tail) -> None:
        """See Listener."""
        if self.owning is not None:
            self.owning.owner.tail = tail
        self.pick_log.go_on_with(tail)

    def _read(self, batches: Sequence[RecordBatch]) -> None:
        """What the fold is about to read tells who owns the log."""
        if self.writer is not None:
            self.writer.on_batches(batches)

    def _say_started(self) -> None:
        """Who this process is, before all else that it says as a replica."""
        if not self._has_started:
            self._has_started = True
            self.own.started(self.pick_log.log_time()[0])
            freeze_collected()

    def append_proposal(self, fact: ConfigProposed) -> None:
        """See reloading.Parts."""
        self.own.of_replica(fact, self.pick_log.log_time()[0])

    # -- by the clock --------------------------------------------------------------------

    async def _tick(self) -> None:
        freeze_due_us = monotonic_us() + int(FREEZE_EVERY_S * SECOND_US)
        while True:
            if monotonic_us() >= freeze_due_us:
                freeze_due_us += int(FREEZE_EVERY_S * SECOND_US)
                freeze_again()
            self.folding.tick()
            if self.owning is not None:
                self.owning.tick()
                if not self._has_won and self.writer is not None and self.writer.is_owner:
                    self._has_won = True
                    self.folding.condemn_again()
            await asyncio.sleep(TICK_S)

    # -- answering -----------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.reloading.loaded.config

    @property
    def writer(self) -> LogWriter | None:
        """The log's writer, None before there is one."""
        return self.own.writer

    @property
    def stands_by(self) -> bool:
        """Whether others may own the log as well: it has no lock that keeps them away."""
        return self.role.value.owns and not isinstance(self.access, OwnedLog)

    @property
    def is_owner(self) -> bool:
        """Whether this process speaks for the fleet."""
        return self.owning is not None and self.owning.is_owner

    @property
    def ports(self) -> list[int]:
        """TCP ports that the process listens on."""
        return self._doors.ports

    @property
    def store(self) -> LogStore:
        """What the writer writes to."""
        return self.access.store

    @property
    def checkpoints(self) -> CheckpointStore:
        """Where checkpoints are kept."""
        return self.access.checkpoints

    @property
    def newest_fold(self) -> Fold:
        """See owner_side.Parts."""
        return self.folding.newest.fold

    @property
    def raw_dropped(self) -> int:
        """See process_state.Parts."""
        return self.owning.raw_dropped if self.owning is not None else 0

    def store_figures(self) -> StoreFigures | None:
        """See process_state.Parts."""
        return self.access.figures()
