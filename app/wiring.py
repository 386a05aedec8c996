"""The main process of `picklog serve`: the log's owner, ingest and one router, wired together.

The only module that names the concrete classes of every part. Order of a start:

    lock and recover the log -> claim it -> fold from a checkpoint up to the own claim
    -> adopt the settings -> discovery and subscriptions -> ready

The HTTP door opens at once, so that `/health` answers while a long log is folded; `/ready`
says what is missing. A fold that must start anew (a condemned record, a disagreement) is
replaced under the router, whose picks are marked suspect until it has caught up.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
from collections.abc import Callable
from pathlib import Path
from time import time_ns
from typing import Any

import structlog
from aiohttp import web

from app.admin import AdminSources, admin_application
from app.checkpoint_store import CheckpointFolder
from app.config_addresses import read_bind
from app.config_load import LoadedConfig
from app.fold_start import FoldStart, start_fold
from app.ingest_side import IngestSide
from app.log_tail import LogTail, monotonic_us
from app.marks import Marks
from app.observe import CONTENT_TYPE, Observer
from app.owner import Owner
from app.part_settings import (
    bytes_of,
    discovery_settings,
    raw_settings,
    router_settings,
    segment_settings,
    subscription_settings,
    writer_settings,
)
from app.pick_log import ReplicaLog
from app.process_state import ProcessState
from app.processes import Child, freeze_collected
from app.readiness import ready_document
from app.reloading import Reloading
from app.tail import Seen, Tail
from app.version import VERSION
from ingest.log.appends import Importance, Receipt, Status
from ingest.log.log_writer import LogWriter
from ingest.log.raw_frames import RawFrames
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_upkeep import HORIZON_WARN_US, keep_up, log_horizon_seconds
from projections.bounds import SECOND_US
from projections.events.control import (
    ConfigAdopted,
    ConfigProposed,
    Pinged,
    RecordCondemned,
    ReplicaStarted,
)
from projections.events.discovery import KeysDropped, PassSettled
from projections.events.kinds import KIND_NEWEST
from projections.events.ports import LogError
from projections.fold import FOLD_MODES
from projections.notices import Notice
from replay.explain import explain
from router.ingress.http_server import Door, build_application
from router.picker.pick import pick
from router.service import RouterService

log = structlog.get_logger("picklog")

TICK_S = 0.25
CHECKPOINT_WAIT_S = 3.0
WATCHED = frozenset((ConfigAdopted, ConfigProposed, PassSettled))
REPLICA_BYTES = 16


class MainProcess:
    """One `picklog serve`. Build it inside the loop, then `run`."""

    def __init__(self, loaded: LoadedConfig, data: Path) -> None:
        config = loaded.config
        self.data = data
        self.replica = os.urandom(REPLICA_BYTES)
        self.store = SegmentLog.open_owner(data, segment_settings(config))
        file_system = self.store.disk.total_bytes(data)
        self.checkpoints = CheckpointFolder(
            data / "checkpoints",
            keep=config.checkpoints.keep,
            bytes_max=bytes_of(config.checkpoints.bytes, file_system),
        )
        self.checkpoints_kept = config.checkpoints.keep
        self.observer = Observer()
        start = start_fold(self.store, self.checkpoints)
        self._say_start(start)
        self.incomplete = start.incomplete
        self.tail = self._new_tail(start, frozenset())
        self.pick_log = ReplicaLog(self.replica, self.tail, self._append_replica)
        self.service = RouterService(self.pick_log, pick, router_settings(config), self.observer)
        self.owner = Owner(
            self.tail,
            self._append_owner,
            checkpoint_every_us=config.checkpoints.every.us,
            now_us=monotonic_us(),
        )
        self.reloading = Reloading(loaded, self)
        self.writer: LogWriter | None = None
        self.ingest: IngestSide | None = None
        self.raw = None
        if config.log.raw.enabled:
            self.raw = RawFrames(data, self.store.log_id, raw_settings(config, file_system))
        arguments = ["follower", "--data", str(data)]
        if loaded.path is not None:
            arguments += ["-c", str(loaded.path)]
        self.follower = Child("follower", arguments)
        self.shell = self._new_shell(self.tail)
        self.observer.source = ProcessState(self)
        self._stopping = asyncio.Event()
        self._impatient = False
        self._is_owner = False
        self.failure: str | None = None

    # -- life ----------------------------------------------------------------------------

    async def run(self) -> int:
        """Serve until stopped; the exit status."""
        door = Door(self._application())
        tasks: list[asyncio.Task[Any]] = []
        try:
            await self._listen(door)
            await self.service.start()
            tasks.append(asyncio.create_task(self._fold()))
            self.writer = await LogWriter.open(
                self.store,
                writer_settings(self.config),
                upkeep=self._upkeep,
                on_still=self.observer.stood_still,
            )
            self.ingest = IngestSide(
                self.writer,
                self.observer,
                discovery_settings(self.config, self.reloading.inactive),
                subscription_settings(self.config),
                self.raw,
            )
            self.writer.failure.add_done_callback(lambda _: self._fail("the log cannot be written any more"))
            self.follower.start()
            tasks += [
                asyncio.create_task(self._tick()),
                asyncio.create_task(self.reloading.watch()),
            ]
            for task in tasks:
                task.add_done_callback(self._task_ended)
            await self._stopping.wait()
        except LogError as problem:
            self._fail(str(problem))
        finally:
            await self._stop(door, tasks)
        return 0 if self.failure is None else 3

    def stop(self) -> None:
        """Ask to end; a second time ends without waiting for requests in flight."""
        if self._stopping.is_set():
            self._impatient = True
            for task in asyncio.all_tasks():
                if task.get_name() == "closing the door":
                    task.cancel()
        self._stopping.set()

    async def _listen(self, door: Door) -> None:
        for text in self.config.server.bind_address:
            bind = read_bind(text)
            if bind.unix_path is not None:
                await door.listen_unix(bind.unix_path)
                log.info("listening", address=text)
            else:
                port = await door.listen_tcp(bind.host, bind.port)
                log.info("listening", address=f"{bind.host}:{port}")

    async def _stop(self, door: Door, tasks: list[asyncio.Task[Any]]) -> None:
        log.info("stopping", cause=self.failure or "asked to")
        closing = asyncio.create_task(door.close(), name="closing the door")
        await asyncio.gather(closing, return_exceptions=True)
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

    async def _last_checkpoint(self) -> None:
        """Let the follower write the state of this end, so that the next start is quick."""
        assert self.writer is not None
        if not self._is_owner or self._impatient:
            return
        self.owner.checkpoint_now("shutdown")
        try:
            await self.writer.flush()
        except LogError:
            return
        wanted = self.store.end_offset() - 1
        deadline = asyncio.get_running_loop().time() + CHECKPOINT_WAIT_S
        while asyncio.get_running_loop().time() < deadline and self.follower.pid is not None:
            newest = self.checkpoints.list()[-1:]
            if newest and newest[0].offset >= wanted - 64:
                return
            await asyncio.sleep(0.05)

    def _fail(self, what: str) -> None:
        if self.failure is None:
            self.failure = what
            log.error("the process ends", cause=what)
        self._stopping.set()

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or self._stopping.is_set():
            return
        problem = task.exception()
        self._fail(f"{task.get_coro()!r} ended: {problem!r}" if problem is not None else "a task ended")

    # -- folding -------------------------------------------------------------------------

    def _new_tail(self, start: FoldStart, condemned: frozenset[int]) -> Tail:
        return Tail(start.fold, self.replica, monotonic_us(), condemned=condemned, watched=WATCHED)

    def _new_shell(self, tail: Tail) -> LogTail:
        return LogTail(
            self.store,
            tail,
            on_ping=self._ping,
            on_notices=self._noticed,
            on_folded=self._folded,
            on_seen=self._seen,
            on_condemn=lambda offset, detail: self._append_owner(RecordCondemned(offset, detail[:1000])),
        )

    async def _fold(self) -> None:
        """Fold for ever; a fold that must start anew is replaced under everybody."""
        while True:
            again = await self.shell.run()
            self._write_aside(again.reason)
            self.observer.fold_restarted(again.reason)
            start = start_fold(self.store, self.checkpoints, before=again.before, condemned=again.condemned)
            self._say_start(start)
            self.tail = self._new_tail(start, again.condemned)
            self.owner.tail = self.tail
            self.pick_log.restart(self.tail)
            self.shell = self._new_shell(self.tail)

    def _write_aside(self, reason: str) -> None:
        """What the fold held when it had to be given up, for whoever looks into it."""
        tail = self.tail
        log.error(
            "the fold is given up",
            reason=reason,
            detail=tail.stopped_detail,
            offset=tail.fold.mark.offset,
            digests=dict(tail.fold.digests()),
        )

    def _say_start(self, start: FoldStart) -> None:
        for name, cause in start.passed_over:
            log.warning("a checkpoint is passed over", checkpoint=name, cause=cause)
        if start.incomplete:
            log.warning("the log's beginning is gone and no checkpoint bridges it: the fleet is read anew")
        used = start.checkpoint.name if start.checkpoint is not None else "none"
        horizon_s = log_horizon_seconds(self.store)
        if horizon_s < HORIZON_WARN_US / SECOND_US:
            log.warning("the log keeps less than a day at its present rate", hours=round(horizon_s / 3600, 1))
        log.info("folding", from_offset=start.next_offset, checkpoint=used, end=self.store.end_offset())

    def _noticed(self, notices: tuple[Notice, ...]) -> None:
        self.observer.on_notices(notices)

    def _folded(self) -> None:
        fold = self.tail.fold
        self.observer.folded(fold.mark.offset)
        self.pick_log.forget_folded()
        if self.writer is None or self.ingest is None:
            return
        if not self._is_owner:
            if fold.state.intake.owner == (self.writer.writer, self.writer.epoch):
                self._become_owner()
            return
        self.ingest.follow(fold)

    def _become_owner(self) -> None:
        """The own claim has been folded: from here on this process may speak for the fleet."""
        assert self.ingest is not None
        self._is_owner = True
        label = f"{socket.gethostname()}:{os.getpid()}"
        started = ReplicaStarted(
            self.replica,
            label,
            "serve",
            VERSION,
            platform.python_version(),
            (),
            int(KIND_NEWEST),
            tuple(sorted(FOLD_MODES)),
        )
        self._append_replica(started, self.tail.log_time(monotonic_us()), None)
        if self.incomplete:
            self._append_owner(KeysDropped((), "all"))
            self.incomplete = False
        self.reloading.adopt_first()
        self.ingest.start(self.tail.fold)
        freeze_collected()

    def _seen(self, seen: Seen) -> None:
        fact = seen.fact
        if isinstance(fact, ConfigAdopted):
            self.reloading.on_adopted(fact)
        elif isinstance(fact, ConfigProposed):
            if self._is_owner:
                self.reloading.on_proposed(fact)
        elif isinstance(fact, PassSettled) and self._is_owner and self.ingest is not None:
            held = self.tail.fold.state.registry.passes.get(fact.namespaces[0]) if fact.namespaces else None
            if held is not None and not held.settled:
                self.ingest.repeat_pass(self.tail.fold)

    # -- writing -------------------------------------------------------------------------

    def _append_owner(self, fact: tuple[Any, ...]) -> None:
        if self.writer is not None:
            self.writer.append(fact)

    def append_proposal(self, fact: ConfigProposed) -> None:
        """See reloading.Parts."""
        self._append_replica(fact, self.tail.log_time(monotonic_us()), None)

    def _append_replica(
        self, fact: tuple[Any, ...], time: int, on_done: Callable[[bool], None] | None
    ) -> None:
        if self.writer is None:
            if on_done is not None:
                asyncio.get_running_loop().call_soon(on_done, False)
            return
        began = monotonic_us()

        def done(receipt: Receipt) -> None:
            durable = receipt.status is Status.ACKNOWLEDGED
            if durable:
                self.observer.appended(monotonic_us() - began)
            else:
                self.observer.append_lost()
            if on_done is not None:
                on_done(durable)

        self.writer.append(fact, importance=Importance.PICK, time=time, on_done=done)

    def _ping(self, number: int, as_of: int) -> None:
        if self.writer is not None:
            ping = Pinged(self.replica, number, as_of)
            self.writer.append(ping, time=self.tail.log_time(monotonic_us()))

    async def _tick(self) -> None:
        while True:
            self.shell.tick()
            if self._is_owner:
                self.owner.on_tick(monotonic_us(), time_ns() // 1000)
            if self.tail.readiness(monotonic_us()).ready:
                self.pick_log.caught_up()
            await asyncio.sleep(TICK_S)

    def _upkeep(self) -> None:
        """In a thread: compress, and let retention go no further than kept checkpoints allow."""
        newest = self.checkpoints.list()[-self.checkpoints_kept :]
        self.store.retention_floor = newest[0].offset if len(newest) == self.checkpoints_kept else 0
        keep_up(self.store)

    # -- answering -----------------------------------------------------------------------

    @property
    def config(self) -> Any:
        """The configuration in force."""
        return self.reloading.loaded.config

    def _application(self) -> web.Application:
        sources = AdminSources(
            config=lambda: self.config,
            fold=lambda: self.tail.fold,
            inactive=lambda: self.reloading.inactive,
            propose=self.reloading.propose,
            explain=self._explain,
        )
        handlers = {"/ready": self._ready}
        if self.config.metrics.enabled:
            handlers["/metrics"] = self._metrics
        return build_application(self.service, handlers, admin_application(sources))

    async def _ready(self, _: web.Request) -> web.StreamResponse:
        document = ready_document(self.tail, self.service, monotonic_us())
        return web.json_response(document, status=200 if document["ready"] else 503)

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=await self.observer.text(), headers={"Content-Type": CONTENT_TYPE})

    def _explain(self, name: str) -> dict[str, Any]:
        """Runs in a thread. Raises PickNotFound, LogError."""
        reader = SegmentLog.open_reader(self.data)
        try:
            return explain(reader, self.checkpoints, name, Marks(reader).time_text)
        finally:
            reader.close()
