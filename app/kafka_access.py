"""The log of a process on Kafka: a tail that reads ahead for the fold, and a store of its own to write to.

Checkpoints lie in the data directory, or in the folder that the replicas of a site share; a log that
was copied into its topic begins with one in the topic itself.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from app.config_model import Config
from app.kafka_places import lane_place, raw_place_of
from app.log_access import ClosingReader, StoreFigures, checkpoints_in
from app.part_settings import topic_raw_settings
from app.topic_checkpoints import TopicCheckpoints
from ingest.log.kafka_base import BaseCheckpoint
from ingest.log.kafka_log import KafkaLog
from ingest.log.kafka_raw_frames import KafkaRawFrames
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_tail import KafkaTail
from ingest.log.raw_frames import FrameKeeper
from ingest.log.segment_files import Disk
from ingest.log.spool import Spool
from ingest.log.spool_files import SpoolFiles

SPOOL_NAME = "spool"


class KafkaAccess:
    """`LogAccess` over the topic of `log.kafka`; made where it is missing.

    Raises TopicRefused, KafkaUnreachable, LogCorrupt, OSError.
    """

    def __init__(self, data: Path, config: Config) -> None:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.data = data
        self._place = lane_place(config)
        self._spool_bytes = config.log.kafka.spool_bytes.count
        self.store = KafkaLog.open(self._place)
        try:
            self.reader = KafkaTail.open(self._place)
        except BaseException:
            self.store.close()
            raise
        self.folder = checkpoints_in(data, config, Disk().total_bytes(data))
        self.checkpoints = TopicCheckpoints(self.folder, BaseCheckpoint(self.reader.source))
        self.room: Enum | None = None
        self._is_given_up = False

    def open_reader(self) -> ClosingReader:
        """See LogAccess."""
        return KafkaReader.open(self._place)

    def figures(self) -> StoreFigures | None:
        """See LogAccess. The brokers keep them."""
        return None

    def upkeep(self) -> None:
        """See LogAccess. The brokers do it."""

    def spool(self) -> Spool | None:
        """See LogAccess. `DIR/spool`, which holds nothing but while brokers are away."""
        return Spool(SpoolFiles(self.data / SPOOL_NAME, self._spool_bytes))

    def raw_frames(self, config: Config) -> FrameKeeper | None:
        """See LogAccess. `log.kafka.raw_topic`."""
        place = raw_place_of(config.log.kafka)
        return KafkaRawFrames(place, self.store.log_id, topic_raw_settings(config))

    def give_up(self) -> None:
        """See LogAccess."""
        self._is_given_up = True
        self.store.close()

    def close(self) -> None:
        """See LogAccess."""
        try:
            self.reader.close()
        finally:
            if not self._is_given_up:
                self.give_up()
