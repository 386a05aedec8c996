"""Ready: the fold has caught up, settings are in force, and a request could go somewhere."""

from __future__ import annotations

import pytest

from app.readiness import ready_document
from app.tail import LAG_US_MAX, PING_AGE_US_MAX, Tail
from projections.events.control import Pinged
from projections.fold import Fold
from projections.registry.fleet import Role
from router.dispatch.shim_pools import Health
from router.picker.pick import pick
from router.service import RouterService
from tests.replay.recorded_log import RecordedLog
from tests.router.fake_frontend import FakeFrontend
from tests.router.rig import Counts, FakeLog, fleet_of, pick_settings_for, settings_for, worker

ME = bytes([42]) * 16
NOTHING_WRONG = {"ready": True, "missing": [], "degraded": []}


def tail_of(*, caught_up: bool = True) -> Tail:
    """A reader at time 0, whose ping came back in no time."""
    world = RecordedLog(1)
    tail = Tail(Fold(), ME, 0)
    if caught_up:
        tail.on_tick(0)
        world.say(Pinged(ME, 1, 0), ME)
    tail.on_batches(world.log.read(0, 1 << 20), 0)
    tail.work(0, 1 << 20)
    tail.on_end(0)
    return tail


def service_of(health: Health = Health.READY) -> RouterService:
    """A router before one frontend that probes found so."""
    settings = settings_for({"dynamo": [FakeFrontend()]})
    log = FakeLog(fleet_of(worker(31, Role.AGGREGATED)), pick_settings_for(settings))
    service = RouterService(log, pick, settings, Counts())
    for replica in service.frontage.table.replicas.values():
        replica.health = health
    return service


@pytest.mark.req("EVS-11")
async def test_ready_when_nothing_is_missing() -> None:
    assert ready_document(tail_of(), service_of(), 0) == NOTHING_WRONG


@pytest.mark.req("EVS-11")
async def test_what_is_missing_is_named() -> None:
    reading = ready_document(tail_of(caught_up=False), service_of(), 0)
    assert reading == {"ready": False, "missing": ["caught_up"], "degraded": []}
    sick = ready_document(tail_of(), service_of(Health.DOWN), 0)
    assert sick == {"ready": False, "missing": ["route"], "degraded": []}
    unadopted = service_of()
    unadopted.log.version = 0  # type: ignore[attr-defined]
    assert ready_document(tail_of(), unadopted, 0)["missing"] == ["settings"]
    disabled = service_of()
    disabled.log.enabled = False  # type: ignore[attr-defined]
    assert ready_document(tail_of(), disabled, 0)["missing"] == ["route"]


@pytest.mark.req("EVS-11", "EVS-17")
async def test_a_log_that_is_away_leaves_a_ready_process_ready() -> None:
    tail = tail_of()
    away = ready_document(tail, service_of(), PING_AGE_US_MAX + 1)
    assert away == {"ready": True, "missing": [], "degraded": ["log"]}
    tail.on_tick(PING_AGE_US_MAX)
    lagging = RecordedLog(1).log.read(0, 1 << 20)  # records come, the own ping is not among them
    tail.on_batches(lagging, PING_AGE_US_MAX)
    late = ready_document(tail, service_of(), PING_AGE_US_MAX + LAG_US_MAX + 1)
    assert late == {"ready": False, "missing": ["lag"], "degraded": []}


async def test_a_breaker_is_judged_by_the_clock_it_reckons_by() -> None:
    service = service_of()
    (replica,) = service.frontage.table.replicas.values()
    asked_at: list[int] = []
    lets_through = replica.breaker.lets_through

    def noted(now_us: int) -> bool:
        asked_at.append(now_us)
        return lets_through(now_us)

    replica.breaker.lets_through = noted  # type: ignore[method-assign]
    far_away = 1 << 60
    ready_document(tail_of(), service, far_away)
    assert asked_at
    assert all(now_us < far_away for now_us in asked_at)
