"""The topic of raw frames beside a log on Kafka: how a message looks, and which topic will do.

A message's value is the frame as it was received, its key is empty, and one header says where it belongs:

    picklog.raw = log id (16) | offset u64 | log time u64 | xxh3-64 of the frame u64    (big-endian)

The offset is that of the record made from the frame. Logs may share a topic, since each message names its
log. Kafka itself lets frames expire, unlike records of a log: nothing is folded from them. A topic that is
made keeps them for `log.raw.age` and `log.raw.bytes`; one that is there is never changed, since it
may be somebody else's: one that keeps everything, as the topic of a log does, is refused.

Source: decision 12.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ingest.log.kafka_admin import (
    BATCH_OVERHEAD_BYTES,
    TopicFacts,
    topic_made,
)
from ingest.log.kafka_settings import KafkaPlace, TopicRefused
from ingest.log.raw_frames import RawSettings, raw_digest
from projections.bounds import KV_FRAME_BYTES_MAX, MIB

HEADER = "picklog.raw"
MESSAGE_BYTES_MIN = KV_FRAME_BYTES_MAX + 2 * BATCH_OVERHEAD_BYTES  # of a batch, and of its one record
MESSAGE_BYTES_CREATED = 2 * MIB
KEEPS_ALL = "-1"

_PLACE = struct.Struct(">16sQQQ")

assert MESSAGE_BYTES_MIN < MESSAGE_BYTES_CREATED


class FramePlace(NamedTuple):
    """What a header tells of its frame. time: log time, microseconds. digest: xxh3-64."""

    log_id: bytes
    offset: int
    time: int
    digest: int


def frame_header(log_id: bytes, offset: int, time: int, frame: bytes) -> tuple[str, bytes]:
    """The header of a frame's message."""
    return HEADER, _PLACE.pack(log_id, offset, time, raw_digest(frame))


def read_header(headers: Sequence[tuple[str, bytes]]) -> FramePlace | None:
    """What the headers of a message tell; None for a message that is none of ours."""
    for name, value in headers:
        if name == HEADER and len(value) == _PLACE.size:
            return FramePlace._make(_PLACE.unpack(value))
    return None


def topic_settings(settings: RawSettings) -> dict[str, str]:
    """How the topic is made. Kafka drops whole files, so these are as small as on a disk of our own."""
    age_ms = str(max(1, settings.age_us // 1000))
    return {
        "retention.ms": age_ms,
        "retention.bytes": str(settings.bytes_max),
        "segment.ms": age_ms,
        "segment.bytes": str(settings.file_bytes),
        "max.message.bytes": str(MESSAGE_BYTES_CREATED),
    }


def raw_faults(name: str, facts: TopicFacts) -> list[str]:
    """Every reason for which the topic is no place for raw frames, each with what to do."""
    faults = []
    configs = facts.configs
    if facts.partitions != 1:
        faults.append(
            f"{name} has {facts.partitions} partitions, raw frames have one: name a topic with one partition"
        )
    if facts.message_bytes_max < MESSAGE_BYTES_MIN:
        faults.append(
            f"{name} takes max.message.bytes={facts.message_bytes_max}, a frame may have"
            f" {KV_FRAME_BYTES_MAX} and its head: set at least {MESSAGE_BYTES_MIN}"
        )
    if "compact" in configs.get("cleanup.policy", "delete"):
        faults.append(f"{name} has cleanup.policy={configs['cleanup.policy']}: set delete")
    if all(configs.get(key) == KEEPS_ALL for key in ("retention.ms", "retention.bytes")):
        faults.append(
            f"{name} has retention.ms=-1 and retention.bytes=-1, as the topic of a log, and would grow for"
            " ever: set retention.ms, or name another topic in log.kafka.raw_topic"
        )
    return faults


def raw_differences(name: str, facts: TopicFacts, settings: RawSettings) -> list[str]:
    """What a topic keeps that the configuration says otherwise."""
    wanted = topic_settings(settings)
    return [
        f"{name} has {key}={facts.configs[key]}, {says} says {wanted[key]}: set it with kafka-configs.sh"
        for key, says in (("retention.ms", "log.raw.age"), ("retention.bytes", "log.raw.bytes"))
        if facts.configs.get(key, wanted[key]) != wanted[key]
    ]


async def prepare_raw(place: KafkaPlace, settings: RawSettings) -> list[str]:
    """The topic, made where it was missing; what it keeps otherwise than configured, in words.

    Raises TopicRefused for one that is no place for raw frames; KafkaUnreachable, KafkaError, OSError.
    """
    facts = await topic_made(place, 1, topic_settings(settings))
    faults = raw_faults(place.name, facts)
    if faults:
        raise TopicRefused("; ".join(faults))
    return raw_differences(place.name, facts, settings)
