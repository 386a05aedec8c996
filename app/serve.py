"""What the long-running commands run: set-up, the loop, signals, the exit status."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from app.collector import serving_collector
from app.config_load import LoadedConfig
from app.config_storage import LogKind
from app.doors import DoorPlan
from app.follower import end_with_parent
from app.follower_process import FollowerProcess
from app.log_access import LogAccess, OwnedLog
from app.peer_checkpoints import PeerCheckpoints
from app.process_group import ProcessGroup
from app.processes import on_stop_signals, run_to_end
from app.shared_log import SharedLog
from app.wiring import MainProcess, Role


def serve(loaded: LoadedConfig, data: Path, routers: int = 1) -> int:
    """Run the main process, or a group of processes, until it is told to stop; its exit status.

    Raises LogError and OSError where the data directory cannot be owned.
    """
    if routers > 1:
        os.umask(0o077)
        return run_to_end(_serve_group(loaded, data, routers))
    return run_role(Role.SERVE, loaded, data, DoorPlan(), None)


def run_role(role: Role, loaded: LoadedConfig, data: Path, doors: DoorPlan, member: str | None) -> int:
    """Run one process of a role until it is told to stop; its exit status.

    member: its name in a group, with whose parent it ends. Raises LogError, OSError.
    """
    serving_collector()
    os.umask(0o077)
    return run_to_end(_run_role(role, loaded, data, doors, member))


async def _run_role(role: Role, loaded: LoadedConfig, data: Path, doors: DoorPlan, member: str | None) -> int:
    parent = os.getppid()
    access = await _access(role, loaded, data)
    process = MainProcess(loaded, access, role, doors, member)
    on_stop_signals(process.stop)
    watching: asyncio.Task[None] | None = None
    if member is not None:
        watching = asyncio.create_task(end_with_parent(parent))
        watching.add_done_callback(lambda _: process.stop())
    try:
        return await process.run()
    finally:
        if watching is not None:
            watching.cancel()


async def _access(role: Role, loaded: LoadedConfig, data: Path) -> LogAccess:
    if loaded.config.log.kind is LogKind.KAFKA:
        from app.kafka_access import KafkaAccess  # here: the embedded log needs no client of Kafka

        access = KafkaAccess(data, loaded.config)
        await PeerCheckpoints.of(loaded.config, access.folder).fetch(access.reader)
        return access
    if role is Role.ROUTER:
        return await SharedLog.open(data, loaded.config)
    return OwnedLog(data, loaded.config)


async def _serve_group(loaded: LoadedConfig, data: Path, routers: int) -> int:
    group = ProcessGroup(loaded, data, routers)
    on_stop_signals(group.stop)
    return await group.run()


def follow(
    data: Path, loaded: LoadedConfig, with_parent: bool = True, addresses: tuple[str, ...] = ()
) -> int:
    """Run the follower of a log until it is told to stop.

    with_parent: it tells its figures to the process that started it, and ends when that is gone.
    addresses: where it answers by itself.
    """
    os.umask(0o077)
    return run_to_end(_follow(data, loaded, with_parent, addresses))


async def _follow(data: Path, loaded: LoadedConfig, with_parent: bool, addresses: tuple[str, ...]) -> int:
    process = FollowerProcess(loaded, data, with_parent, addresses)
    on_stop_signals(process.stop)
    return await process.run()
