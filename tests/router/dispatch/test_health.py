"""Health: thresholds in virtual time, and the prober against a real socket."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.breaker import Breaker
from router.dispatch.health import ProbeJudge, Prober, listed_models
from router.dispatch.shim_pools import Health, Replica
from router.settings import BackendSettings, BreakerSettings, HealthSettings
from tests.router.fake_frontend import FakeFrontend, running
from tests.router.rig import until

SETTINGS = HealthSettings(
    interval_us=30_000_000, warmup_interval_us=1_000_000, warmup_us_max=10_000_000, unhealthy_threshold=3
)


def states(*statuses: int, step_us: int = 1_000_000) -> list[str]:
    judge = ProbeJudge(SETTINGS)
    return [judge.on_probe(status, n * step_us).value for n, status in enumerate(statuses)]


@pytest.mark.req("SHIM-01")
def test_thresholds_of_failures_and_successes() -> None:
    assert states(200, 0, 500, 200, 0, 0, 0, 200, 200) == [
        "ready", "ready", "ready", "ready", "ready", "ready", "down", "down", "ready",
    ]  # fmt: skip


def test_backend_never_seen_is_down_at_its_first_failure_and_ready_at_its_first_success() -> None:
    assert states(0) == ["down"]
    assert states(204) == ["ready"]


def test_503_is_warming_up_for_a_while_and_then_down() -> None:
    assert states(503, 503, 200) == ["warming_up", "warming_up", "ready"]
    late = states(*[503] * 12)
    assert late[:10] == ["warming_up"] * 10
    assert late[10] == "down"


def test_warming_up_is_probed_sooner() -> None:
    judge = ProbeJudge(SETTINGS)
    judge.on_probe(200, 0)
    assert judge.wait_us() == 30_000_000
    judge.on_probe(503, 1)
    assert judge.wait_us() == 1_000_000


@pytest.mark.parametrize(
    ("body", "models"),
    [
        (b'{"object":"list","data":[{"id":"a"},{"id":"b","x":1}]}', ["a", "b"]),
        (b'{"data":[{"id":7},{"x":1},3,{"id":""},{"id":"ok"}]}', ["ok"]),
        (b'{"data":[]}', []),
        (b'{"data":{}}', None),
        (b"[]", None),
        (b"<html>", None),
        (b"\xff", None),
    ],
)
def test_models_of_an_answer(body: bytes, models: list[str] | None) -> None:
    assert listed_models(body) == models


@given(st.binary(max_size=200))
def test_models_of_any_bytes_never_raise(data: bytes) -> None:
    found = listed_models(data)
    assert found is None or isinstance(found, list)


async def test_prober_follows_a_backend_up_and_down() -> None:
    frontend = FakeFrontend(models=("m",))
    quick = HealthSettings(
        interval_us=5_000, warmup_interval_us=5_000, unhealthy_threshold=2, timeout_us=5_000_000
    )
    async with running(frontend):
        replica = Replica(BackendSettings("a", frontend.url, api_key="k"), Breaker(BreakerSettings()), True)
        task = asyncio.create_task(Prober(replica, quick).run())
        await until(lambda: replica.health is Health.READY)
        assert replica.models == {"m"}
        frontend.models_status = 503
        await until(lambda: replica.health is Health.WARMING_UP)
        frontend.models_status = 500
        await until(lambda: replica.health is Health.DOWN)
        frontend.models_status = 200
        await until(lambda: replica.health is Health.READY)
        await frontend.stop()
        await until(lambda: replica.health is Health.DOWN)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        replica.upstream.retire()


async def test_finding_asks_for_a_probe_without_waiting_for_the_interval() -> None:
    frontend = FakeFrontend(models=("m",))
    slow = HealthSettings(interval_us=3_600_000_000, warmup_interval_us=1_000)
    async with running(frontend):
        replica = Replica(BackendSettings("a", frontend.url), Breaker(BreakerSettings()), True)
        task = asyncio.create_task(Prober(replica, slow).run())
        await until(lambda: replica.health is Health.READY)
        replica.mark_unusable("m")
        await until(lambda: not replica.unusable_models)
        assert frontend.probes >= 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        replica.upstream.retire()


async def test_prober_outlives_answers_that_are_none() -> None:
    frontend = FakeFrontend()
    async with running(frontend):
        quick = HealthSettings(interval_us=1_000, warmup_interval_us=1_000, path="/v1/chat/completions")
        frontend.raw_answer = b"nonsense\r\n\r\n"
        replica = Replica(BackendSettings("a", frontend.url), Breaker(BreakerSettings()), True)
        task = asyncio.create_task(Prober(replica, quick).run())
        await until(lambda: replica.health is Health.DOWN)
        frontend.raw_answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
        await until(lambda: replica.health is Health.READY)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        replica.upstream.retire()
