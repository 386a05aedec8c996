"""Threads: results and exceptions come back, a call that hangs costs its place and nothing else."""

from __future__ import annotations

import asyncio
import threading

import pytest

from router.prompt.artifact_thread import CallHung, Threads
from tests.router.rig import until


async def test_results_and_exceptions_come_back() -> None:
    threads = Threads(1)
    assert await threads.run(lambda: threading.current_thread().name, 10) == "artifact"
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0, 10)
    assert await threads.run(lambda: 7, 10) == 7


@pytest.mark.req("ART-13")
async def test_a_call_that_hangs_keeps_its_place_until_it_comes_back() -> None:
    threads = Threads(1)
    release = threading.Event()
    with pytest.raises(CallHung, match="no answer"):
        await threads.run(release.wait, 0.01)
    with pytest.raises(CallHung, match="have not come back"):
        await threads.run(lambda: 1, 10)
    release.set()
    await until(lambda: not threads._count)
    assert await threads.run(lambda: 2, 10) == 2


async def test_a_cancelled_caller_leaves_no_warning_behind() -> None:
    threads = Threads(1)
    release = threading.Event()

    def fail() -> None:
        release.wait()
        raise ValueError

    task = asyncio.create_task(threads.run(fail, 10))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    await until(lambda: not threads._count)
    assert await threads.run(lambda: 3, 10) == 3
