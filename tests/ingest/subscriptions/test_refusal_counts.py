"""Refusals are told at once, then once a second, and none is lost."""

from __future__ import annotations

import asyncio

import pytest

from ingest.subscriptions.refusal_counts import RefusalCounts
from projections.notices import FrameResult

pytestmark = pytest.mark.looptime


class Told:
    def __init__(self) -> None:
        self.told: list[tuple[float, FrameResult, int]] = []

    def __call__(self, result: FrameResult, frames: int) -> None:
        self.told.append((round(asyncio.get_running_loop().time(), 3), result, frames))


async def test_the_first_is_told_at_once_and_the_rest_when_the_second_is_over() -> None:
    told = Told()
    counts = RefusalCounts(told)
    begin_s = asyncio.get_running_loop().time()
    for _ in range(25):
        counts.count(FrameResult.MALFORMED)
        await asyncio.sleep(0.1)
    await asyncio.sleep(2)
    assert [(round(at_s - begin_s, 1), frames) for at_s, _, frames in told.told] == [
        (0, 1),
        (1, pytest.approx(10, abs=1)),
        (2, pytest.approx(10, abs=1)),
        (3, pytest.approx(4, abs=2)),
    ]
    assert sum(frames for _, _, frames in told.told) == 25


async def test_events_of_one_frame_count_together() -> None:
    told = Told()
    counts = RefusalCounts(told)
    for times in (3, 4, 5):
        counts.count(FrameResult.MALFORMED, times)
    counts.close()
    assert [frames for _, _, frames in told.told] == [3, 9]


async def test_results_are_apart() -> None:
    told = Told()
    counts = RefusalCounts(told)
    for result in (FrameResult.MALFORMED, FrameResult.OVERSIZED):
        counts.count(result)
        await asyncio.sleep(0.3)
        counts.count(result)
    await asyncio.sleep(3)
    assert sorted((result, frames) for _, result, frames in told.told) == [
        (FrameResult.MALFORMED, 1),
        (FrameResult.MALFORMED, 1),
        (FrameResult.OVERSIZED, 1),
        (FrameResult.OVERSIZED, 1),
    ]


async def test_the_rest_is_told_at_the_end_and_nothing_after() -> None:
    told = Told()
    counts = RefusalCounts(told)
    for _ in range(5):
        counts.count(FrameResult.DUPLICATE)
    counts.close()
    assert [frames for _, _, frames in told.told] == [1, 4]
    await asyncio.sleep(3)
    assert len(told.told) == 2
