"""The main process of `picklog serve`: the log's owner, ingest and one router, wired together.

The only module that names the concrete classes of every part. Order of a start:

    lock and recover the log -> fold from a checkpoint -> open the door -> claim the log
    -> fold up to the own claim -> adopt the settings -> discovery and subscriptions -> ready

The HTTP door opens before the tail of a long log is folded, so that `/health` answers
meanwhile; `/ready` says what is missing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from time import time_ns
from typing import Any

import structlog

from app.answering import application_of
from app.checkpoint_store import CheckpointFolder
from app.collector import FREEZE_EVERY_S, freeze_again, freeze_collected
from app.config_addresses import read_bind
from app.config_load import LoadedConfig, installed_extras
from app.config_model import Config
from app.folding import Folding
from app.follower_figures import FollowerMetrics
from app.ingest_side import IngestSide
from app.log_places import checkpoint_folder
from app.log_tail import monotonic_us
from app.lookups import Lookups
from app.observe import Observer
from app.own_records import OwnRecords
from app.owner import Owner
from app.part_settings import (
    bytes_of,
    discovery_settings,
    prompt_settings,
    raw_settings,
    router_settings,
    segment_settings,
    subscription_settings,
    writer_settings,
)
from app.pick_log import ReplicaLog
from app.process_state import ProcessState, StoreFigures
from app.processes import Child
from app.prompt_side import prompt_maker
from app.reloading import Reloading
from app.tail import Seen, Tail
from ingest.log.log_writer import LogWriter
from ingest.log.raw_frames import RawFrames
from ingest.log.segment_files import Disk
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_upkeep import (
    HORIZON_WARN_US,
    keep_up,
    log_horizon_seconds,
    retention_bytes,
    stored_bytes,
)
from projections.bounds import SECOND_US
from projections.events.control import ConfigAdopted, ConfigProposed, RecordCondemned
from projections.events.discovery import KeysDropped, PassSettled
from projections.events.ports import LogError
from projections.notices import Notice
from router.ingress.http_server import Door
from router.picker.pick import pick
from router.service import RouterService

log = structlog.get_logger("picklog")

TICK_S = 0.25
CHECKPOINT_WAIT_S = 3.0
FAILED_GRACE_S = 5.0
WATCHED = frozenset((ConfigAdopted, ConfigProposed, PassSettled))
REPLICA_BYTES = 16


class MainProcess:
    """One `picklog serve`. Build it inside the loop, then `run`.

    Raises LogError and OSError where the data directory cannot be owned or read.
    """

    def __init__(self, loaded: LoadedConfig, data: Path, disk: Disk | None = None) -> None:
        config = loaded.config
        self.data = data
        self.replica = os.urandom(REPLICA_BYTES)
        self.store = SegmentLog.open_owner(data, segment_settings(config), disk)
        file_system = self.store.disk.total_bytes(data)
        self.checkpoints = CheckpointFolder(
            checkpoint_folder(data),
            keep=config.checkpoints.keep,
            bytes_max=bytes_of(config.checkpoints.bytes, file_system),
        )
        self.observer = Observer()
        self.own = OwnRecords(self.replica, self.observer)
        self.folding = Folding(self.store, self.checkpoints, self.replica, WATCHED, self)
        tail = self.folding.tail
        self.pick_log = ReplicaLog(self.replica, tail, self.own.of_replica)
        self.service = RouterService(
            self.pick_log,
            pick,
            router_settings(config, prompt_settings(config, data, installed_extras())),
            self.observer,
            prompts=prompt_maker(self.observer),
        )
        self.owner = Owner(
            tail,
            self.own.of_owner,
            checkpoint_every_us=config.checkpoints.every.us,
            now_us=monotonic_us(),
        )
        self.reloading = Reloading(loaded, self)
        self.ingest: IngestSide | None = None
        self.raw = None
        if config.log.raw.enabled:
            self.raw = RawFrames(data, self.store.log_id, raw_settings(config, file_system))
        arguments = ["follower", "--data", str(data)]
        if loaded.path is not None:
            arguments += ["-c", str(loaded.path)]
        self.follower = Child("follower", arguments, FollowerMetrics(self.observer.registry).take)
        self.observer.source = ProcessState(self)
        self.failure: str | None = None
        self.ports: list[int] = []
        self._stopping = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._is_impatient = False
        self._is_owner = False

    # -- life ----------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until stopped; the exit status. Raises OSError where an address is taken."""
        lookups = Lookups(self.data, self.checkpoints, SegmentLog.open_reader)
        door = Door(application_of(self, lookups), self.service)
        tasks: list[asyncio.Task[Any]] = []
        try:
            await self._listen(door)
            await self.service.start()
            self._begin(tasks, self.folding.run(), "the fold")
            await self._claim()
            if self.writer is not None:
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
            await self._stop(door, tasks)
        return 0 if self.failure is None else 3

    def stop(self) -> None:
        """Ask to end; a second time ends without waiting for requests in flight."""
        if self._stopping.is_set():
            self._is_impatient = True
            if self._closing is not None:
                self._closing.cancel()
        self._stopping.set()

    async def _listen(self, door: Door) -> None:
        for text in self.config.server.bind_address:
            bind = read_bind(text)
            try:
                if bind.unix_path is not None:
                    await door.listen_unix(bind.unix_path)
                    log.info("listening", address=text)
                else:
                    self.ports.append(await door.listen_tcp(bind.host, bind.port))
                    log.info("listening", address=f"{bind.host}:{self.ports[-1]}")
            except OSError as problem:
                number = problem.errno or 0
                why = os.strerror(number) if number > 0 else problem.strerror
                raise OSError(number, f"{why}: change server.bind_address", text) from problem

    async def _claim(self) -> None:
        """Become the log's writer, or be told to stop first."""
        horizon_s = log_horizon_seconds(self.store)
        if horizon_s < HORIZON_WARN_US / SECOND_US:
            log.warning("the log keeps less than a day at its present rate", hours=round(horizon_s / 3600, 1))
        opening = asyncio.create_task(
            LogWriter.open(
                self.store,
                writer_settings(self.config),
                upkeep=self._upkeep,
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
        self.ingest = IngestSide(
            writer,
            self.observer,
            discovery_settings(self.config, self.reloading.inactive),
            subscription_settings(self.config),
            self.raw,
        )
        self.folding.condemn_again()

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
        if self.failure is None:
            self.failure = what
            log.error("the process ends", cause=what)
        self._stopping.set()

    async def _stop(self, door: Door, tasks: list[asyncio.Task[Any]]) -> None:
        log.info("stopping", cause=self.failure or "asked to")
        await self._close(door)
        await self.service.close()
        if self.ingest is not None:
            await self.ingest.stop()
        if self.writer is not None and not self.writer.failure.done():
            await self._last_checkpoint()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.follower.stop()
        if self.writer is not None:
            await self.writer.close()
        if self.raw is not None:
            self.raw.close()
        self.store.close()
        log.info("stopped")

    async def _close(self, door: Door) -> None:
        """Let requests in flight end; for a short while where others wait for a new process."""
        self._closing = asyncio.create_task(door.close())
        if self._is_impatient:
            self._closing.cancel()
        await asyncio.wait({self._closing}, timeout=FAILED_GRACE_S if self.failure else None)
        if not self._closing.done() or self._closing.cancelled():
            self._closing.cancel()
            await asyncio.gather(self._closing, return_exceptions=True)
            await door.abort()

    async def _last_checkpoint(self) -> None:
        """Let the follower write the state of this end, so that the next start is quick."""
        assert self.writer is not None
        if not self._is_owner or self._is_impatient:
            return
        wanted = self.store.end_offset()
        self.owner.checkpoint_now("shutdown")
        try:
            await self.writer.flush()
        except LogError:
            return
        deadline = asyncio.get_running_loop().time() + CHECKPOINT_WAIT_S
        while asyncio.get_running_loop().time() < deadline and self.follower.pid is not None:
            newest = self.checkpoints.list()[-1:]
            if (newest and newest[0].offset >= wanted) or self._is_impatient:
                return
            await asyncio.sleep(0.05)

    # -- what the fold tells (folding.Listener) ------------------------------------------

    def append_ping(self, number: int, as_of: int) -> None:
        """See Listener."""
        self.own.ping(number, as_of, self.pick_log.log_time()[0])

    def noticed(self, notices: tuple[Notice, ...], is_news: bool) -> None:
        """See Listener."""
        self.observer.is_quiet = not is_news
        self.observer.on_notices(notices)
        self.observer.is_quiet = False

    def folded(self) -> None:
        """See Listener."""
        fold = self.folding.tail.fold
        self.observer.folded(fold.mark.offset)
        self.pick_log.forget_folded()
        self.service.follow_fleet(fold.state.registry.fleet)
        if self.writer is None or self.ingest is None:
            return
        if self._is_owner:
            self.ingest.follow(fold)
        elif fold.state.intake.owner == (self.writer.writer, self.writer.epoch):
            self._become_owner(self.ingest)

    def seen(self, seen: Seen) -> None:
        """See Listener."""
        fact = seen.fact
        if isinstance(fact, ConfigAdopted):
            self.reloading.on_adopted(fact)
        elif not self._is_owner or self.ingest is None:
            return
        elif isinstance(fact, ConfigProposed):
            self.reloading.on_proposed(fact)
        elif isinstance(fact, PassSettled):
            fold = self.folding.newest.fold
            held = fold.state.registry.passes.get(fact.namespaces[0]) if fact.namespaces else None
            if held is not None and not held.settled:
                self.ingest.repeat_pass(fold)

    def condemn(self, offset: int, detail: str) -> None:
        """See Listener."""
        self.own.of_owner(RecordCondemned(offset, detail[:1000]))

    def fold_given_up(self, reason: str) -> None:
        """See Listener."""
        self.observer.fold_restarted(reason)

    def fold_replaced(self, tail: Tail) -> None:
        """See Listener."""
        self.owner.tail = tail
        self.pick_log.go_on_with(tail)

    def _become_owner(self, ingest: IngestSide) -> None:
        """The own claim has been folded: from here on this process may speak for the fleet."""
        self._is_owner = True
        self.own.started(self.pick_log.log_time()[0])
        if self.folding.start.incomplete:
            self.own.of_owner(KeysDropped((), "all"))
        self.reloading.adopt_first()
        ingest.start(self.folding.tail.fold)
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
            if self._is_owner:
                self.owner.on_tick(monotonic_us(), time_ns() // 1000)
            await asyncio.sleep(TICK_S)

    def _upkeep(self) -> None:
        """In a thread: compress, and let retention go no further than kept checkpoints allow."""
        kept = self.config.checkpoints.keep
        newest = self.checkpoints.list()[-kept:]
        self.store.retention_floor = newest[0].offset if len(newest) == kept else 0
        keep_up(self.store)

    # -- answering -----------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.reloading.loaded.config

    @property
    def writer(self) -> LogWriter | None:
        """The log's writer, None before the claim stands."""
        return self.own.writer

    def store_figures(self) -> StoreFigures:
        """See process_state.Parts."""
        horizon_us = int(log_horizon_seconds(self.store) * SECOND_US)
        stored = stored_bytes(self.store) + self.store.open_bytes
        return StoreFigures(stored, retention_bytes(self.store), horizon_us)
