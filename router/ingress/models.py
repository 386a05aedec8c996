"""Which models can be served now, and why one cannot.

A model can be served if a worker that may decode it stands in a namespace with a usable
frontend for this caller, or if an ordinary backend of it is usable. Fleet models are told
by the names that clients use: those that the model map gives them, else their own.
"""

from __future__ import annotations

import orjson

from projections.events.held import SettingsHeld
from projections.registry.fleet import Role
from router.ingress.errors import ErrorCode
from router.ingress.keys import Caller
from router.question import served_model
from router.service import Frontage, RouterService

_SERVING_ROLES = (Role.DECODE, Role.AGGREGATED)


def servable_models(
    service: RouterService, frontage: Frontage, held: SettingsHeld, caller: Caller, now_us: int
) -> list[str]:
    """Client ids of the models that can be served to the caller now, sorted."""
    found: set[str] = set()
    if frontage.settings.pinning and held.enabled:
        for client_id, name in _fleet_ids(service, held):
            spaces = _serving_namespaces(service, name)
            eligible = frontage.table.eligibility(held.pick.namespaces, caller, client_id, now_us).namespaces
            if spaces.intersection(eligible):
                found.add(client_id)
    for replica in frontage.table.ordinary:
        for model in replica.settings.models or replica.models:
            if replica.obstacle(caller, model, now_us) is None:
                found.add(model)
    return sorted(found)


def _fleet_ids(service: RouterService, held: SettingsHeld) -> list[tuple[str, str]]:
    """(client id, Dynamo name) of every model of the fleet."""
    mapped: dict[str, list[str]] = {}
    for client_id, name in held.pick.model_map:
        mapped.setdefault(name, []).append(client_id)
    return [
        (client_id, name)
        for name in service.log.view().fleet.models()
        for client_id in mapped.get(name, [name])
    ]


def _serving_namespaces(service: RouterService, name: str) -> set[str]:
    workers = service.log.view().fleet.workers_of(name)
    return {worker.key.namespace for worker in workers if worker.role in _SERVING_ROLES}


def models_document(models: list[str]) -> bytes:
    """The OpenAI list of models."""
    rows = [{"id": model, "object": "model", "created": 0, "owned_by": "picklog"} for model in models]
    return orjson.dumps({"object": "list", "data": rows})


def why_not_served(
    service: RouterService, frontage: Frontage, held: SettingsHeld, model: str, eligible: tuple[str, ...]
) -> ErrorCode:
    """Which error a request gets that no worker and no backend takes (B-144).

    eligible: namespaces that had a usable frontend for the request.
    """
    pinning = frontage.settings.pinning and held.enabled
    name = served_model(model, held.pick)
    if pinning:
        spaces = _serving_namespaces(service, name)
        if spaces:
            return ErrorCode.NO_WORKER if spaces.intersection(eligible) else ErrorCode.NO_SHIM
    if frontage.table.knows(model):
        return ErrorCode.NO_SHIM
    if pinning and (name != model or service.has_seen(name) or frontage.table.is_awaited(name)):
        return ErrorCode.NO_WORKER  # also while the fleet was not seen yet: a 404 would be for ever
    return ErrorCode.MODEL_NOT_FOUND
