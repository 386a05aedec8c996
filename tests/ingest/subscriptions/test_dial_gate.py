"""So many dials at once, and a dial that hangs keeps nobody out."""

from __future__ import annotations

import asyncio

import pytest

from ingest.subscriptions.dial_gate import DialGate

pytestmark = pytest.mark.looptime


async def test_no_more_than_the_places_are_dialled_at_once() -> None:
    gate, at_once, most = DialGate(3, 1.0), 0, 0

    async def dial() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.1)
        at_once -= 1

    await asyncio.gather(*(gate.pass_through(dial) for _ in range(10)))
    assert most == 3


async def test_a_dial_that_hangs_gives_its_place_away_once() -> None:
    gate = DialGate(1, 1.0)

    async def hang() -> None:
        await asyncio.sleep(10)

    hung = [asyncio.ensure_future(gate.pass_through(hang)) for _ in range(3)]
    await asyncio.sleep(2.5)  # the third began at 2 s
    assert gate._places.locked()
    await asyncio.gather(*hung)
    begun: list[float] = []

    async def note() -> None:
        begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.5)

    await asyncio.gather(gate.pass_through(note), gate.pass_through(note))
    assert begun[1] - begun[0] == pytest.approx(0.5)  # one place, as before


async def test_a_dial_that_fails_or_is_cancelled_gives_its_place_back() -> None:
    gate = DialGate(1, 1.0)

    async def fail() -> None:
        raise OSError

    for _ in range(3):
        with pytest.raises(OSError):
            await gate.pass_through(fail)
    waiting = asyncio.ensure_future(gate.pass_through(lambda: asyncio.sleep(0.5)))
    second = asyncio.ensure_future(gate.pass_through(fail))
    await asyncio.sleep(0)
    second.cancel()
    waiting.cancel()
    await asyncio.gather(waiting, second, return_exceptions=True)
    assert not gate._places.locked()
