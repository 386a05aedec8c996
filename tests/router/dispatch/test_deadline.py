"""A deadline in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from router.dispatch.deadline import Deadline

pytestmark = pytest.mark.looptime


def made() -> tuple[Deadline, list[tuple[str, float]], asyncio.AbstractEventLoop]:
    loop = asyncio.get_running_loop()
    rung: list[tuple[str, float]] = []
    return Deadline(loop, lambda cause: rung.append((cause, round(loop.time(), 3)))), rung, loop


async def test_deadline_rings_once_with_its_cause() -> None:
    deadline, rung, loop = made()
    deadline.set("idle", loop.time() + 2)
    await asyncio.sleep(10)
    assert rung == [("idle", 2.0)]


async def test_deadline_that_is_moved_on_rings_at_its_last_time() -> None:
    deadline, rung, loop = made()
    deadline.set("first_byte", loop.time() + 2)
    await asyncio.sleep(1)
    deadline.cause, deadline.due_s = "idle", loop.time() + 4
    await asyncio.sleep(3)
    assert rung == []
    deadline.set("idle", loop.time() + 3)
    await asyncio.sleep(10)
    assert rung == [("idle", 7.0)]


async def test_deadline_that_comes_nearer_rings_sooner() -> None:
    deadline, rung, loop = made()
    deadline.set("total", loop.time() + 100)
    deadline.set("idle", loop.time() + 1)
    await asyncio.sleep(200)
    assert rung == [("idle", 1.0)]


async def test_cancelled_deadline_does_not_ring() -> None:
    deadline, rung, loop = made()
    deadline.set("idle", loop.time() + 1)
    deadline.cancel()
    deadline.cancel()
    await asyncio.sleep(5)
    assert rung == []
    deadline.set("idle", loop.time() + 1)
    await asyncio.sleep(5)
    assert rung == [("idle", 6.0)]
