"""The log that a follower reads, opened for each of its parts, and where its checkpoints go.

A data directory is read as it lies there. A topic is read ahead by a task of each part, so that no
part waits for the network on the follower's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import structlog

from app.checkpoint_store import CheckpointFolder
from app.config_model import Config
from app.config_storage import LogKind
from app.kafka_places import place_of
from app.log_access import checkpoints_in
from app.log_places import OpenLog, open_log
from ingest.log.kafka_settings import TopicRefused
from ingest.log.segment_files import Disk
from projections.events.ports import CheckpointStore

TOPIC_WAIT_S = 60.0  # for an owner to make the topic that is followed
TOPIC_LOOK_S = 1.0

log = structlog.get_logger("picklog.follower")


class FollowedLog(NamedTuple):
    """folded, audited, asked: the same log, each with a position of its own.

    checkpoints: what a fold may begin at. folder: where new ones go.
    """

    folded: OpenLog
    audited: OpenLog
    asked: OpenLog
    checkpoints: CheckpointStore
    folder: CheckpointFolder


@contextmanager
def followed_directory(data: Path, config: Config) -> Iterator[FollowedLog]:
    """The segments of a data directory. Ends the command where there are none; raises LogCorrupt."""
    folder = checkpoints_in(data, config, Disk().total_bytes(data))
    with ExitStack() as stack:
        opened = [stack.enter_context(open_log(data))._replace(checkpoints=folder) for _ in range(3)]
        yield FollowedLog(opened[0], opened[1], opened[2], folder, folder)


async def opened_topic(stack: ExitStack, data: Path, config: Config) -> FollowedLog:
    """The topic of `log.kafka`; an owner may be about to make it. Raises TopicRefused, KafkaUnreachable."""
    from app.topic_checkpoints import TopicCheckpoints  # here: the embedded log needs no client of Kafka
    from ingest.log.kafka_base import BaseCheckpoint
    from ingest.log.kafka_tail import KafkaTail

    place = place_of(config.log.kafka)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TOPIC_WAIT_S
    tails: list[KafkaTail] = []
    while len(tails) < 3:
        try:
            tails.append(await asyncio.to_thread(KafkaTail.open, place))
            stack.callback(tails[-1].close)
        except TopicRefused as problem:
            if tails or loop.time() > deadline:
                raise
            log.info("waiting for the log's owner", cause=str(problem))
            await asyncio.sleep(TOPIC_LOOK_S)
    folder = checkpoints_in(data, config, Disk().total_bytes(data))
    checkpoints = TopicCheckpoints(folder, BaseCheckpoint(tails[0].source))
    opened = [OpenLog(tail, checkpoints, place.name, source=tail.source) for tail in tails]
    return FollowedLog(opened[0], opened[1], opened[2], checkpoints, folder)


def is_on_kafka(config: Config) -> bool:
    """Whether the configured log is a topic."""
    return config.log.kind is LogKind.KAFKA
