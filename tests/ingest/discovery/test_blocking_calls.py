"""Blocking calls off the loop: results, exceptions, and calls that hang."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from ingest.discovery.blocking_calls import BlockingLane, CallHung


async def test_result_and_exception_of_a_call_come_back() -> None:
    lane = BlockingLane("test")
    assert await lane.call(lambda: 1 + 1, 10) == 2
    with pytest.raises(ZeroDivisionError):
        await lane.call(lambda: 1 // 0, 10)
    assert not lane.is_hung


async def test_calls_follow_each_other_at_once() -> None:
    lane = BlockingLane("test")
    assert [await lane.call(partial(int, n), 10) for n in range(200)] == list(range(200))


@pytest.mark.req("REL-12")
async def test_hung_call_is_left_alone_and_its_lane_takes_no_other_until_it_returns() -> None:
    lane = BlockingLane("test")
    release = threading.Event()
    returned = threading.Event()

    def hang() -> None:
        release.wait()
        returned.set()

    with pytest.raises(CallHung):
        await lane.call(hang, 0.05)
    assert lane.is_hung
    threads = threading.active_count()
    with pytest.raises(CallHung):
        await lane.call(lambda: 1, 10)
    assert threading.active_count() == threads
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "test")
    release.set()
    await asyncio.to_thread(returned.wait)
    async with asyncio.timeout(10):
        while lane.is_hung:
            await asyncio.to_thread(threading.active_count)
    assert await lane.call(lambda: 2, 10) == 2


async def test_cancelled_caller_leaves_the_call_and_is_cancelled() -> None:
    lane = BlockingLane("test")
    release = threading.Event()
    calling = asyncio.ensure_future(lane.call(release.wait, 60))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert lane.is_hung
    release.set()
