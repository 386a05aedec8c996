"""Where a topic may begin: at a kept checkpoint. With a broker: tests/live/test_kafka_retention.py."""

from __future__ import annotations

import pytest

from app.topic_retention import RetentionLimits, TopicSize, new_beginning
from projections.events.ports import CheckpointInfo

NOW = 1_000
KEPT = [CheckpointInfo(offset, 0, offset, 1, f"{offset}") for offset in (100, 300, 500, 700, 900)]


def beginning(
    age: int = 10_000,
    size: int | None = 0,
    bytes_max: int | None = None,
    keep: int = 3,
    first: int = 0,
    kept: list[CheckpointInfo] = KEPT,
) -> int | None:
    found = new_beginning(kept, TopicSize(first, 1_000, size), NOW, RetentionLimits(age, bytes_max, keep))
    return None if found is None else found.offset


@pytest.mark.req("EVS-13")
@pytest.mark.parametrize(("age", "offset"), [(10_000, None), (900, 100), (899, 100), (700, 300), (500, 500)])
def test_it_moves_to_the_newest_checkpoint_before_which_all_is_too_old(age: int, offset: int | None) -> None:
    assert beginning(age) == offset


@pytest.mark.parametrize(("keep", "offset"), [(1, 900), (2, 700), (3, 500), (5, 100), (6, None)])
def test_it_never_passes_the_newest_ones(keep: int, offset: int | None) -> None:
    assert beginning(age=0, keep=keep) == offset


@pytest.mark.parametrize(
    ("bytes_max", "offset"),
    [(None, None), (2_000, None), (1_000, None), (900, 100), (899, 300), (600, 500), (1, 500)],
)
def test_it_moves_as_far_as_the_bytes_need_and_it_may(bytes_max: int | None, offset: int | None) -> None:
    assert beginning(size=1_000, bytes_max=bytes_max) == offset


def test_the_stricter_of_both_counts() -> None:
    assert beginning(age=700, size=1_000, bytes_max=900) == 300
    assert beginning(age=900, size=1_000, bytes_max=600) == 500


def test_nothing_moves_back_or_without_checkpoints_or_sizes() -> None:
    assert beginning(age=700, first=300) is None
    assert beginning(age=0, kept=[]) is None
    assert beginning(size=None, bytes_max=1) is None
