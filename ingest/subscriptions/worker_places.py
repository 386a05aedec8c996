"""What of a worker outlives its restart: the host it advertises, component, model, ranks, system port.

An instance id is drawn anew at each start, and so are the ports of the request plane and of the
publishers. These stay, so an engine that configuration names by its address finds its worker by them
(`engine_bindings`). They are read from what the fold holds, never from a watch, so they are as of the
same record as the fleet.

Encode workers have no place: they hold no blocks of a prompt. Nor has a worker whose record names no
host: a subject of NATS, or a value that was cut at its ceiling.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ingest.subscriptions.advertised import advertised_host, system_port
from projections.bounds import KEYS_PER_KEYSPACE_MAX
from projections.identity import WorkerKey
from projections.registry.fleet import Role, Worker
from projections.registry.reducer import Registry

HOSTS_REMEMBERED_MAX: Final = 2 * KEYS_PER_KEYSPACE_MAX  # records read, so that each is parsed once


class WorkerPlace(NamedTuple):
    """One worker. host: as `host_text` spells it. model, system_port: None where not known."""

    key: WorkerKey
    host: str
    component: str
    model: str | None
    system_port: int | None
    ranks: range


class WorkerPlaces:
    """Makes the places of a registry's workers. Remembers which host each record names."""

    def __init__(self) -> None:
        self._hosts: dict[bytes, str | None] = {}

    def of(self, registry: Registry) -> tuple[WorkerPlace, ...]:
        """All workers that have a place, in canonical order."""
        found = []
        for key, worker in registry.fleet.workers.items():
            host = self._host_of(registry.endpoint_value(key)) if worker.role is not Role.ENCODE else None
            if host is not None:
                found.append(_place(worker, host))
        return tuple(found)

    def _host_of(self, value: bytes) -> str | None:
        if value not in self._hosts:
            if len(self._hosts) >= HOSTS_REMEMBERED_MAX:
                self._hosts.clear()
            self._hosts[value] = advertised_host(value)
        return self._hosts[value]


def _place(worker: Worker, host: str) -> WorkerPlace:
    port = system_port(worker.artifacts)
    return WorkerPlace(worker.key, host, worker.component, worker.model, port, worker.ranks())
