"""The follower as a process: its parts on one log, and its door where it runs alone.

    checkpoints    `follower.Follower`, and on Kafka the topic's beginning behind them
    SQL, messages  `audit_following`
    picks again    `follower_asking`: the sampling verifier, and the shadow

Each part reads with a position of its own and waits for nobody. A part that ends takes the process
with it, since somebody will start that anew.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from app.admin_checkpoints import CheckpointRoutes
from app.audit_figures import AuditFigures
from app.config_load import LoadedConfig
from app.doors import DoorPlan, Doors
from app.followed_log import FollowedLog, followed_directory, is_on_kafka, opened_topic
from app.follower import Follower, end_with_parent
from app.follower_door import FollowerRegistry, FollowerState, follower_application
from app.follower_jobs import ask_again
from app.follower_standing import StandingLines
from app.kafka_places import place_of
from app.paced_steps import PacedSteps
from app.peer_checkpoints import PeerCheckpoints
from app.replay_steps import Steps
from projections.fold import Fold
from router.ingress.http_server import Door

log = structlog.get_logger("picklog.follower")


class FollowerProcess:
    """Build it inside the loop, then `run`.

    tells_parent: it was started by a process that reads its figures, and ends with it.
    addresses: where it listens; nowhere without any.
    """

    def __init__(
        self, loaded: LoadedConfig, data: Path, tells_parent: bool, addresses: tuple[str, ...] = ()
    ) -> None:
        self._loaded = loaded
        self._data = data
        self._tells_parent = tells_parent
        self._addresses = addresses
        self._parent = os.getppid()
        self._stopping = asyncio.Event()
        self.doors: Doors | None = None

    def stop(self) -> None:
        """Ask to end."""
        self._stopping.set()

    async def run(self) -> int:
        """Follow until stopped; the exit status. Raises LogError, OSError, TopicRefused."""
        config = self._loaded.config
        stopping = asyncio.create_task(self._stopping.wait())
        with ExitStack() as stack:
            if is_on_kafka(config):
                opening = asyncio.create_task(opened_topic(stack, self._data, config))
                await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not opening.done():
                    opening.cancel()
                    await asyncio.gather(opening, return_exceptions=True)
                    return 0
                followed = opening.result()
            else:
                followed = stack.enter_context(followed_directory(self._data, config))
            await self._follow(followed, stopping)
        return 0

    async def _follow(self, followed: FollowedLog, stopping: asyncio.Task[Any]) -> None:
        config = self._loaded.config
        reader = followed.folded.reader
        steps = PacedSteps(Steps(self._data))

        async def step(fold: Fold) -> None:
            if steps.is_due(fold):
                await asyncio.to_thread(steps.write, fold, reader.log_id)

        follower = Follower(
            reader,
            followed.checkpoints,
            on_checkpoint=lambda _: followed.folder.expire(reader.first_offset()),
            between=step,
            before_start=partial(PeerCheckpoints.of(config, followed.folder).fetch, reader),
        )
        state = FollowerState(follower, reader, lambda: next(reversed(followed.folder.list()), None))
        registry = FollowerRegistry(state)
        if self._addresses:
            checkpoints = CheckpointRoutes(followed.folder, lambda: reader.log_id)
            application = follower_application(config, state, registry.registry, checkpoints)
            self.doors = Doors(Door(application), DoorPlan(self._addresses))
            await self.doors.open(())
        endings: set[asyncio.Task[Any]] = {stopping}
        try:
            endings |= {
                asyncio.create_task(part) for part in self._parts(followed, follower, state, registry)
            }
            done, _ = await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in endings:
                task.cancel()
            await asyncio.gather(*endings, return_exceptions=True)
            if self.doors is not None:
                await self.doors.close(failed=True, is_impatient=lambda: False)  # nobody waits for long
        for task in done:
            task.result()  # raises what ended it

    def _parts(
        self, followed: FollowedLog, follower: Follower, state: FollowerState, registry: FollowerRegistry
    ) -> list[Coroutine[Any, Any, Any]]:
        loaded, data = self._loaded, self._data
        parts: list[Coroutine[Any, Any, Any]] = [follower.run()]
        if self._tells_parent:
            parts.append(end_with_parent(self._parent))
        if loaded.config.audit.enabled:
            from app.audit_following import follow_audit  # here: the main process needs no SQL

            state.audit = AuditFigures()
            parts.append(follow_audit(loaded.config, data, followed.audited, state.audit))
        told = None if self._tells_parent else registry.told
        parts.append(ask_again(loaded, data, followed.asked, StandingLines(state).words, told))
        if is_on_kafka(loaded.config):
            parts.append(self._retention(followed, follower))
        return parts

    def _retention(self, followed: FollowedLog, follower: Follower) -> Coroutine[Any, Any, None]:
        from app.topic_retention import RetentionLimits, TopicRetention  # here: they need Kafka's client

        config = self._loaded.config
        retention = config.log.retention
        # a share of this machine's disk says nothing of the brokers'
        bytes_max = retention.bytes.size.count if retention.bytes.size is not None else None
        limits = RetentionLimits(retention.age.us, bytes_max, config.checkpoints.keep)

        def now() -> int | None:
            tail = follower.tail
            return tail.fold.state.intake.stamp if tail is not None else None

        return TopicRetention(place_of(config.log.kafka), followed.folder, limits, now).run()
