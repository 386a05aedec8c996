"""A pause of this process is noticed once, by whoever looks first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ingest.subscriptions.loop_watch import LoopWatch, boot_clock_s

pytestmark = pytest.mark.looptime


class Pausing:
    """A clock that runs with the loop and jumps where the process stood still."""

    def __init__(self) -> None:
        self.paused_s = 0.0
        self.stalls: list[float] = []

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.paused_s


@pytest.fixture
def clock() -> Pausing:
    return Pausing()


@pytest.fixture
async def watch(clock: Pausing) -> AsyncIterator[LoopWatch]:
    """The test starts it, on its own time."""
    watch = LoopWatch(clock.stalls.append, clock)
    yield watch
    watch.stop()


async def test_a_loop_that_runs_is_never_late(watch: LoopWatch, clock: Pausing) -> None:
    watch.start()
    for _ in range(100):
        await asyncio.sleep(0.9)
        assert not watch.check()
    assert clock.stalls == []


async def test_a_reader_that_looks_first_finds_the_pause_and_the_tick_does_not_tell_it_again(
    watch: LoopWatch, clock: Pausing
) -> None:
    watch.start()
    await asyncio.sleep(5)
    clock.paused_s += 60
    assert watch.check()
    assert not watch.check()
    await asyncio.sleep(5)
    assert clock.stalls == [pytest.approx(60, abs=0.3)]


async def test_the_tick_finds_a_pause_that_nobody_looked_for(watch: LoopWatch, clock: Pausing) -> None:
    watch.start()
    await asyncio.sleep(5)
    clock.paused_s += 1.3
    await asyncio.sleep(0.3)
    assert len(clock.stalls) == 1


async def test_less_than_a_second_is_no_pause(watch: LoopWatch, clock: Pausing) -> None:
    watch.start()
    await asyncio.sleep(5)
    clock.paused_s += 0.9
    await asyncio.sleep(5)
    assert clock.stalls == []


async def test_a_stopped_watch_says_nothing(watch: LoopWatch, clock: Pausing) -> None:
    watch.start()
    watch.stop()
    clock.paused_s += 60
    assert not watch.check()
    await asyncio.sleep(5)
    assert clock.stalls == []


def test_the_clock_of_the_machine_goes_forward() -> None:
    first = boot_clock_s()
    assert 0 < first <= boot_clock_s()
