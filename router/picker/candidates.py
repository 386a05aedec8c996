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


class Pool(NamedTuple):
    """Candidates of one namespace in canonical order. `decode` is never empty."""

    namespace: str
    decode: tuple[Worker, ...]
    prefill: tuple[Worker, ...]


def pools_of(fleet: Fleet, question: Question, settings: PickSettings) -> list[Pool]:
    """Namespaces that can serve the question, in canonical order."""
    offered: dict[str, dict[Role, list[Worker]]] = {
        name: {Role.PREFILL: [], Role.DECODE: [], Role.AGGREGATED: []}
        for name in sorted(question.namespaces)
        if name in settings.namespaces
    }
    for worker in fleet.workers_of(question.served_model):
        roles = offered.get(worker[0][0])  # the namespace of its key
        if roles is not None and worker.role in roles:
            roles[worker.role].append(worker)
    pools = [_pool(namespace, roles) for namespace, roles in offered.items()]
    return [pool for pool in pools if pool.decode]


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
