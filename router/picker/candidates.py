"""Which workers may serve a question, and who may be paired with whom.

Candidates are workers of the served model in the namespaces that the question offers and
the settings still name; the fleet is asked first, so whatever left it is none (B-004). The
rules of mixed namespaces hold per namespace and model: where prefill and decode workers
stand together, aggregated ones are left out; anywhere else decode and aggregated workers
compete. A pair never crosses namespaces, and an aggregated worker is never in a pair.

Every picking rule shares these. Source: specification, "Mixed namespaces"; MIX-01..05,
MNS-03, MNS-04, PICK-12, PICK-13.
"""

from __future__ import annotations

from typing import NamedTuple

from projections.events.control import PickSettings
from projections.events.picks import Question
from projections.identity import WorkerKey
from projections.registry.fleet import Fleet, Role, Worker

POOLS_REMEMBERED = 256  # of one fleet; models are named by clients


class Pool(NamedTuple):
    """Candidates of one namespace in canonical order. `decode` is never empty."""

    namespace: str
    decode: tuple[Worker, ...]
    prefill: tuple[Worker, ...]


class Pools(NamedTuple):
    """Namespaces that can serve a question, in canonical order. competing: decode workers of all."""

    pools: tuple[Pool, ...]
    competing: tuple[Worker, ...]


def pools_of(fleet: Fleet, question: Question, settings: PickSettings) -> Pools:
    """The pools of a question, worked out once for a fleet, a model and namespaces."""
    key = question.served_model, question.namespaces, settings.namespaces
    found: Pools | None = fleet.derived.get(key)
    if found is None:
        found = _pools(fleet, *key)
        remember(fleet, key, found)
    return found


def remember(fleet: Fleet, key: tuple[object, ...], value: object) -> None:
    """Keep what was worked out of a fleet, under a key of its own, while there is room."""
    if len(fleet.derived) >= POOLS_REMEMBERED:
        fleet.derived.clear()
    fleet.derived[key] = value


def pair_pools(pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
    """Those of `pools` that hold prefill and decode workers, so that pairs are sent there."""
    return tuple(pool for pool in pools if partners(pool, pool.decode[0]))


def _pools(fleet: Fleet, model: str, namespaces: tuple[str, ...], configured: tuple[str, ...]) -> Pools:
    offered: dict[str, dict[Role, list[Worker]]] = {
        name: {Role.PREFILL: [], Role.DECODE: [], Role.AGGREGATED: []}
        for name in sorted(namespaces)
        if name in configured
    }
    for worker in fleet.workers_of(model):
        roles = offered.get(worker[0][0])  # the namespace of its key
        if roles is not None and worker.role in roles:
            roles[worker.role].append(worker)
    pools = [_pool(namespace, roles) for namespace, roles in offered.items()]
    serving = tuple(pool for pool in pools if pool.decode)
    return Pools(serving, tuple(worker for pool in serving for worker in pool.decode))


def partners(pool: Pool, decode: Worker) -> tuple[Worker, ...]:
    """Prefill candidates for a chosen decode candidate; () where it prefills for itself."""
    return pool.prefill if decode.role is Role.DECODE else ()


def _pool(namespace: str, roles: dict[Role, list[Worker]]) -> Pool:
    prefill, decode, aggregated = roles[Role.PREFILL], roles[Role.DECODE], roles[Role.AGGREGATED]
    if not (prefill and decode):
        decode = sorted(decode + aggregated, key=_key) if decode and aggregated else decode or aggregated
    return Pool(namespace, tuple(decode), tuple(prefill))


def _key(worker: Worker) -> WorkerKey:
    return worker.key
