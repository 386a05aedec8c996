"""Which models are listed, and why one is not served."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from projections.registry.fleet import Role
from router.dispatch.shim_pools import Health
from router.ingress.errors import ErrorCode
from router.ingress.keys import ANYBODY, Caller
from router.ingress.models import models_document, servable_models, why_not_served
from router.picker.pick import pick
from router.service import RouterService
from router.settings import BackendSettings
from tests.router.fake_frontend import FakeFrontend
from tests.router.rig import Counts, FakeLog, fleet_of, pick_settings_for, settings_for, worker

FLEET = fleet_of(
    worker(1, Role.PREFILL, model="pair"),
    worker(2, Role.DECODE, model="pair"),
    worker(3, Role.AGGREGATED, model="solo"),
    worker(4, Role.PREFILL, model="half"),
    worker(5, Role.AGGREGATED, namespace="elsewhere", model="far"),
)


def made(*, pinning: bool = True, ready: bool = True) -> RouterService:
    frontend = FakeFrontend()
    settings = settings_for({"dynamo": [frontend]}, pinning=pinning)
    plain = BackendSettings("plain", "http://127.0.0.1:1", models=("own",))
    hidden = BackendSettings("hidden", "http://127.0.0.1:1", models=("secret",), internal=True)
    settings = type(settings)(
        backends=(*settings.backends, plain, hidden),
        pools=settings.pools,
        pinning=pinning,
        health=settings.health,
    )
    maps = {"alias-1": "solo", "alias-2": "solo", "gone-alias": "gone"}
    log = FakeLog(FLEET, pick_settings_for(settings, maps))
    service = RouterService(log, pick, settings, Counts())
    for replica in service.frontage.table.replicas.values():
        replica.health = Health.READY if ready else Health.DOWN
    return service


def listed(service: RouterService, caller: Caller = ANYBODY) -> list[str]:
    return servable_models(service, service.frontage, service.log.settings(), caller, 1_000)


async def test_models_that_can_be_served_are_listed_by_their_client_names() -> None:
    assert listed(made()) == ["alias-1", "alias-2", "own", "pair"]
    assert listed(made(pinning=False)) == ["own"]
    assert listed(made(ready=False)) == []


@pytest.mark.req("MNS-02")
async def test_keys_see_only_what_their_backends_serve() -> None:
    service = made()
    assert listed(service, Caller("k", frozenset({"plain"}))) == ["own"]
    assert listed(service, Caller("k", frozenset({"dynamo-0"}))) == ["alias-1", "alias-2", "pair"]


async def test_frontend_that_lacks_a_model_takes_it_off_the_list() -> None:
    service = made()
    service.frontage.table.replicas["dynamo-0"].mark_unusable("pair")
    assert "pair" not in listed(service)


@pytest.mark.field("B-144")
@pytest.mark.parametrize(
    ("model", "eligible", "code"),
    [
        ("nobody", ("dynamo",), ErrorCode.MODEL_NOT_FOUND),
        ("secret", ("dynamo",), ErrorCode.NO_SHIM),
        ("own", ("dynamo",), ErrorCode.NO_SHIM),
        ("pair", (), ErrorCode.NO_SHIM),
        ("pair", ("dynamo",), ErrorCode.NO_WORKER),
        ("half", ("dynamo",), ErrorCode.NO_WORKER),
        ("far", ("dynamo",), ErrorCode.NO_SHIM),
        ("gone-alias", ("dynamo",), ErrorCode.NO_WORKER),
    ],
)
async def test_reasons_are_told_apart(model: str, eligible: tuple[str, ...], code: ErrorCode) -> None:
    service = made()
    assert why_not_served(service, service.frontage, service.log.settings(), model, eligible) is code


@pytest.mark.field("B-003")
async def test_model_that_the_fleet_has_served_reads_no_worker_when_all_are_gone() -> None:
    service = made()
    assert service.has_seen("pair")
    log = service.log
    assert isinstance(log, FakeLog)
    log.fleet = fleet_of(generation=2)
    held = log.settings()
    assert why_not_served(service, service.frontage, held, "pair", ("dynamo",)) is ErrorCode.NO_WORKER
    assert why_not_served(service, service.frontage, held, "never", ("dynamo",)) is ErrorCode.MODEL_NOT_FOUND
    off = made(pinning=False)
    assert why_not_served(off, off.frontage, off.log.settings(), "pair", ()) is ErrorCode.MODEL_NOT_FOUND


@pytest.mark.field("B-003")
@pytest.mark.parametrize("by_probe", [False, True])
async def test_model_of_a_frontend_is_known_before_any_worker_was_seen(by_probe: bool) -> None:
    service = made()
    log = service.log
    assert isinstance(log, FakeLog)
    log.fleet = fleet_of()
    shim = service.frontage.table.replicas["dynamo-0"]
    if by_probe:
        shim.take_models(["awaited"])
    else:
        shim.settings = replace(shim.settings, models=("awaited",))
    held = log.settings()
    assert why_not_served(service, service.frontage, held, "awaited", ("dynamo",)) is ErrorCode.NO_WORKER
    assert why_not_served(service, service.frontage, held, "never", ("dynamo",)) is ErrorCode.MODEL_NOT_FOUND


def test_document_has_the_openai_shape() -> None:
    document = json.loads(models_document(["a"]))
    assert document["object"] == "list"
    assert document["data"] == [{"id": "a", "object": "model", "created": 0, "owned_by": "picklog"}]
