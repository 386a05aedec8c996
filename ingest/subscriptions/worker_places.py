"""What of a worker outlives its restart: the host it advertises, component, model, ranks, system port.

An instance id is drawn anew at each start, and so are the ports of the request plane and of the
publishers. These stay, so an engine that configuration names by its address finds its worker by them
(`engine_bindings`). They are read from what the fold holds, never from a watch, so they are as of the
same record as the fleet.

Encode workers have no place: they hold no blocks of a prompt. Nor has a worker whose record names no
host: a subject of NATS, or a value that was cut at its ceiling.
"""

from __future__ import annotations

from typing import NamedTuple

from ingest.subscriptions.advertised import advertised_host, system_port
from projections.identity import WorkerKey
from projections.registry.fleet import Role, Worker
from projections.registry.reducer import Registry


class WorkerPlace(NamedTuple):
    """One worker. host: as `host_text` spells it. model, system_port: None where not known."""

    key: WorkerKey
    host: str
    component: str
    model: str | None
    system_port: int | None
    ranks: range


class _Known(NamedTuple):
    """A place and what it was made of; these values are shared until they change."""

    worker: Worker
    value: bytes
    place: WorkerPlace | None


class WorkerPlaces:
    """Makes the places of a registry's workers, each anew only where its worker has changed."""

    def __init__(self) -> None:
        self._known: dict[WorkerKey, _Known] = {}

    def of(self, registry: Registry) -> tuple[WorkerPlace, ...]:
        """All workers that have a place, in canonical order."""
        before, self._known = self._known, {}
        for key, worker in registry.fleet.workers.items():
            value, known = registry.endpoint_value(key), before.get(key)
            if known is None or known.worker is not worker or known.value is not value:
                known = _Known(worker, value, _place_of(worker, value))
            self._known[key] = known
        return tuple(known.place for known in self._known.values() if known.place is not None)


def _place_of(worker: Worker, value: bytes) -> WorkerPlace | None:
    host = advertised_host(value) if worker.role is not Role.ENCODE else None
    if host is None:
        return None
    port = system_port(worker.artifacts)
    return WorkerPlace(worker.key, host, worker.component, worker.model, port, worker.ranks())
