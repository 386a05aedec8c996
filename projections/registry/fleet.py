"""What is published: the fleet at a position of the log.

A `Fleet` is a value that never changes: whoever holds one reads it without a lock, and an
old one goes when its last reader lets go. Its generation is a function of the offset, see
`projections.registry.reducer`.

Sources: requirement rows RED-13, 18..22, 26.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from projections.identity import PublisherKey, WorkerKey
from projections.registry.join import Publisher, RankBinding, Worker
from projections.registry.records import Role

__all__ = ["Fleet", "Publisher", "RankBinding", "Role", "Worker", "declares"]

_ROUTABLE = frozenset((Role.PREFILL, Role.DECODE, Role.AGGREGATED))
_NO_WORKERS: tuple[Worker, ...] = ()


class Fleet:
    """The published workers and publishers at one position. Never changes; reading needs no lock.

    workers: in canonical order, by (namespace, id). publishers: ascending (topic, id).
    derived: what readers have worked out of this value, for them to keep and to bound.
    """

    __slots__ = (
        "__weakref__",
        "_by_model",
        "_cards",
        "bindings",
        "derived",
        "generation",
        "publishers",
        "workers",
    )

    def __init__(
        self,
        generation: int,
        workers: Mapping[WorkerKey, Worker],
        publishers: tuple[Publisher, ...],
        bindings: Mapping[PublisherKey, RankBinding],
        cards: Mapping[WorkerKey, bytes],
    ) -> None:
        self.generation = generation
        self.workers = workers
        self.publishers = publishers
        self.bindings = bindings
        self._cards = cards
        self._by_model: dict[str, tuple[Worker, ...]] | None = None
        self.derived: dict[Any, Any] = {}

    def workers_of(self, model: str) -> tuple[Worker, ...]:
        """Workers that may serve a model, of the roles that are routed to, in canonical order."""
        return self._models().get(model, _NO_WORKERS)

    def models(self) -> tuple[str, ...]:
        """Names of all models that a routable worker serves, sorted."""
        return tuple(sorted(self._models()))

    def is_live(self, namespace: str, instance_id: int, dp_rank: int) -> bool:
        """Whether this worker is published and declares the rank."""
        return declares(self.workers, namespace, instance_id, dp_rank)

    def card_of(self, key: WorkerKey) -> bytes | None:
        """The record that holds the worker's card, JSON as found; None without a card.

        A value above the ceilings is cut to the fields that are read here.
        """
        return self._cards.get(key)

    def binding_of(self, key: PublisherKey) -> RankBinding | None:
        """The rank that a publisher of block events speaks for, where its event source says so."""
        return self.bindings.get(key)

    def _models(self) -> dict[str, tuple[Worker, ...]]:
        """Made at the first question: many fleets of a busy minute are never asked."""
        if self._by_model is None:
            found: dict[str, list[Worker]] = {}
            for worker in self.workers.values():
                if worker.model is not None and worker.role in _ROUTABLE:
                    found.setdefault(worker.model, []).append(worker)
            self._by_model = {model: tuple(workers) for model, workers in found.items()}
        return self._by_model


def declares(workers: Mapping[WorkerKey, Worker], namespace: str, instance_id: int, dp_rank: int) -> bool:
    """Whether a worker is among these and has the rank."""
    worker = workers.get(WorkerKey(namespace, instance_id))
    return worker is not None and 0 <= dp_rank - worker.dp_start_rank < worker.dp_size
