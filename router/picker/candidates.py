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
from projections.registry.fleet import Fleet, Role, Worker


class Pool(NamedTuple):
    """Candidates of one namespace in canonical order. `decode` is never empty."""

    namespace: str
    decode: tuple[Worker, ...]
    prefill: tuple[Worker, ...]


def pools_of(fleet: Fleet, question: Question, settings: PickSettings) -> list[Pool]:
    """Namespaces that can serve the question, in canonical order."""
    configured = settings.namespaces
    offered: dict[str, list[Worker]] = {
        name: [] for name in sorted(question.namespaces) if name in configured
    }
    for worker in fleet.workers_of(question.served_model):
        group = offered.get(worker[0][0])  # the namespace of its key
        if group is not None:
            group.append(worker)
    pools = [_pool(namespace, workers) for namespace, workers in offered.items() if workers]
    return [pool for pool in pools if pool.decode]


def partners(pool: Pool, decode: Worker) -> tuple[Worker, ...]:
    """Prefill candidates for a chosen decode candidate; () where it prefills for itself."""
    return pool.prefill if decode.role is Role.DECODE else ()


def _pool(namespace: str, workers: list[Worker]) -> Pool:
    prefill = tuple(worker for worker in workers if worker.role is Role.PREFILL)
    decode = tuple(worker for worker in workers if worker.role is Role.DECODE)
    if prefill and decode:
        return Pool(namespace, decode, prefill)
    either = tuple(worker for worker in workers if worker.role in (Role.DECODE, Role.AGGREGATED))
    return Pool(namespace, either, prefill)
