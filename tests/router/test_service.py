"""What outlives a request: settings, probes, rotations."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from projections.bounds import ROTATIONS_MAX
from projections.events.control import PickSettings
from projections.events.picks import Outcome, Question
from projections.registry.fleet import Role
from projections.view import View
from router.dispatch.shim_pools import Health
from router.picker.pick import pick
from router.service import RouterService
from router.settings import HealthSettings
from tests.router.fake_frontend import FakeFrontend, running
from tests.router.rig import Counts, FakeLog, fleet_of, pick_settings_for, settings_for, until, worker

FLEET = fleet_of(worker(31, Role.AGGREGATED), worker(32, Role.AGGREGATED))
SETTINGS = settings_for({"dynamo": []})


def service_of(log: FakeLog, counts: Counts | None = None) -> RouterService:
    return RouterService(log, pick, SETTINGS, counts or Counts())


def one_pick(
    service: RouterService, model: str = "tiny-chat", eligible: tuple[str, ...] = ("dynamo",)
) -> object:
    return service.pick(
        held=service.log.settings(),
        request_id="r",
        model=model,
        eligible=eligible,
        absent=(),
        estimated_tokens=9,
    )


@pytest.mark.req("PICK-09", "PICK-10")
async def test_rotation_goes_from_pick_to_pick_through_the_record() -> None:
    log = FakeLog(FLEET, pick_settings_for(SETTINGS))
    service = service_of(log)
    facts = [one_pick(service) for _ in range(3)]
    for before, after in pairwise(facts):
        assert after.question.rotation_decode == before.outcome.rotation_decode  # type: ignore[attr-defined]
    assert service._rotations.decode("tiny-chat") == facts[-1].outcome.rotation_decode  # type: ignore[attr-defined]


async def test_every_pick_has_an_id_of_its_own_and_the_replicas() -> None:
    log = FakeLog(FLEET, pick_settings_for(SETTINGS))
    service = service_of(log)
    facts = [one_pick(service) for _ in range(20)]
    assert len({fact.pick_id for fact in facts}) == 20  # type: ignore[attr-defined]
    assert {fact.replica for fact in facts} == {log.replica}  # type: ignore[attr-defined]


async def test_a_pick_is_made_by_the_flags_that_the_log_knows_the_replica_by() -> None:
    log = FakeLog(FLEET, pick_settings_for(SETTINGS))
    seen: list[tuple[int, ...]] = []

    def picker(view: View, question: Question, settings: PickSettings, flags: tuple[int, ...]) -> Outcome:
        seen.append(flags)
        return pick(view, question, settings, flags)

    service = RouterService(log, picker, SETTINGS, Counts())
    one_pick(service)
    log.known_flags = (1,)
    one_pick(service)
    assert seen == [(), (1,)]


async def test_models_seen_are_bounded() -> None:
    log = FakeLog(FLEET, pick_settings_for(SETTINGS))
    service = service_of(log)
    for number in range(3):
        names = [worker(n, Role.AGGREGATED, model=f"m{number}-{n}") for n in range(2000)]
        log.fleet = fleet_of(*names, generation=number + 2)
        assert service.has_seen(f"m{number}-0")
    assert len(service._seen_models) == ROTATIONS_MAX
    assert not service.has_seen("m0-0")


async def test_reload_probes_new_backends_keeps_old_ones_and_lets_go_of_others() -> None:
    first, second = FakeFrontend(models=("a",)), FakeFrontend(models=("b",))
    async with running(first, second):
        quick = HealthSettings(interval_us=20_000, warmup_interval_us=20_000)
        before = replace(settings_for({"dynamo": [first]}), health=quick)
        service = RouterService(FakeLog(FLEET, pick_settings_for(before)), pick, before, Counts())
        await service.start()
        held = service.frontage
        old = held.table.replicas["dynamo-0"]
        await until(lambda: old.health is Health.READY)
        service.reconfigure(replace(settings_for({"dynamo": [first, second]}), health=quick))
        assert service.frontage.table.replicas["dynamo-0"] is old
        assert held.table.pools["dynamo"] == (old,), "a request in flight keeps its table"
        new = service.frontage.table.replicas["dynamo-1"]
        await until(lambda: new.health is Health.READY)
        service.reconfigure(replace(settings_for({"dynamo": [second]}), health=quick))
        assert len(service._probers) == 1
        await until(lambda: first.open_connections == 0)
        probes = first.probes
        await until(lambda: second.probes > 5)
        assert first.probes == probes
        service.reconfigure(replace(SETTINGS, health=HealthSettings(enabled=False)))
        assert service._probers == {}
        await service.close()


async def test_url_that_is_none_leaves_the_settings_as_they_were() -> None:
    service = service_of(FakeLog(FLEET, pick_settings_for(SETTINGS)))
    before = service.frontage
    bad = settings_for({"dynamo": [FakeFrontend()]})
    broken = replace(bad, backends=(replace(bad.backends[0], url="nonsense"),))
    with pytest.raises(ValueError):
        service.reconfigure(broken)
    assert service.frontage is before


async def test_closing_ends_every_probe() -> None:
    frontend = FakeFrontend()
    async with running(frontend):
        settings = settings_for({"dynamo": [frontend]})
        service = RouterService(FakeLog(FLEET, pick_settings_for(settings)), pick, settings, Counts())
        tasks = len(asyncio.all_tasks())
        await service.start()
        await until(lambda: frontend.probes > 0)
        await service.close()
        await until(lambda: frontend.open_connections == 0)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert service._probers == {}
