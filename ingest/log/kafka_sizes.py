"""The question to a broker how much of its disks a topic takes; the client library does not have it.

Source: Apache Kafka, `DescribeLogDirsRequest.json` and `DescribeLogDirsResponse.json`, version 1, which
brokers from 2.0 to 4.x speak.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiokafka.errors import NoError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Int64, Schema, String

API_KEY = 35


class _Answer(Response):  # type: ignore[misc]
    API_KEY = API_KEY
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            Array(
                ("error_code", Int16),
                ("log_dir", String("utf-8")),
                (
                    "topics",
                    Array(
                        ("name", String("utf-8")),
                        (
                            "partitions",
                            Array(
                                ("partition_index", Int32),
                                ("partition_size", Int64),
                                ("offset_lag", Int64),
                                ("is_future_key", Boolean),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    )


class _Question(RequestStruct):  # type: ignore[misc]
    API_KEY = API_KEY
    API_VERSION = 1
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(("topics", Array(("topic", String("utf-8")), ("partitions", Array(Int32)))))


class DescribeLogDirs(Request[_Question]):  # type: ignore[misc]
    """Asks one broker for one partition of a topic."""

    API_KEY = API_KEY

    def __init__(self, topic: str, partition: int) -> None:
        self._topics = [(topic, [partition])]

    def build(self, request_struct_class: type[_Question]) -> _Question:
        """See Request."""
        return request_struct_class(self._topics)


def stored_bytes_of(results: Iterable[Any], topic: str) -> int | None:
    """Bytes of the topic in a broker's answer, None where it has none of it or does not tell."""
    found = [
        size
        for error_code, _, topics in results
        if for_code(error_code) is NoError
        for name, partitions in topics
        if name == topic
        for _, size, _, is_future in partitions
        if not is_future
    ]
    return max(found, default=None)
