"""The router on uvloop, whose transports differ from asyncio's in small ways."""

from __future__ import annotations

import asyncio

import pytest

from projections.events.picks import EndStatus
from projections.registry.fleet import Role
from tests.router.fake_frontend import FakeFrontend, Misbehaviour, running
from tests.router.rig import fleet_of, rig, settings_for, until, worker

uvloop = pytest.importorskip("uvloop")
FLEET = fleet_of(worker(31, Role.AGGREGATED))


async def _chats() -> str:
    frontend = FakeFrontend(aggregated={31: 1})
    async with running(frontend), rig(FLEET, settings_for({"dynamo": [frontend]})) as router:
        for stream in (False, True, False, True):
            answer, body = await router.chat(stream=stream)
            assert answer.status == 200
            assert b"usage" in body
        assert frontend.connections <= 2, "the prober's and the chats' connection are kept"
        assert [end.status for end in router.log.ends] == [EndStatus.OK] * 4
        frontend.event_delay_s = 0.01
        answer, body = await router.chat(stream=True)
        assert body == frontend.stream_body(frontend.chats[-1])
        return type(asyncio.get_running_loop()).__module__


async def _faults() -> str:
    frontend = FakeFrontend(aggregated={31: 1})
    async with running(frontend), rig(FLEET, settings_for({"dynamo": [frontend]})) as router:
        await router.chat()
        for writer in list(frontend._writers):
            writer.close()
        await until(lambda: frontend.open_connections == 0)
        assert (await router.chat())[0].status == 200, "a kept connection that died is not used"
        frontend.misbehaviour, frontend.event_delay_s = Misbehaviour.CLOSES_MID_STREAM, 0.02
        _, body = await router.chat(stream=True)
        assert b"upstream_failed" in body
        frontend.misbehaviour = Misbehaviour.NEVER_ANSWERS
        asking = asyncio.create_task(router.chat())
        await until(lambda: len(frontend.chats) == 4)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: len(router.log.ends) == 4 and router.in_flight() == 0)
        assert router.log.ends[-1].status == EndStatus.CANCELLED
        return type(asyncio.get_running_loop()).__module__


def test_chats_are_served_and_connections_kept() -> None:
    assert uvloop.run(_chats()) == "uvloop"


def test_faults_are_seen() -> None:
    assert uvloop.run(_faults()) == "uvloop"
