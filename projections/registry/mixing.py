"""Which models of a namespace are served by aggregated workers beside a prefill/decode pool.

Dynamo's direct-mode frontend takes one of the two worker sets of such a model at random
and refuses ids of the other, so operators are warned: once when a model begins to be
mixed, again when it was un-mixed in between. While a pass lists a namespace its fleet is
half there, so nothing is judged before the pass has settled.

Sources: specification, "Mixed namespaces"; requirement rows MIX-06..08.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from projections.bounds import MIXED_NAMED_MAX
from projections.notices import MixedRoles
from projections.registry.join import Worker
from projections.registry.records import Role

Pair = tuple[str, str]  # namespace, model
_PLACES: Final = {Role.PREFILL: 0, Role.DECODE: 1, Role.AGGREGATED: 2}


class Mixing:
    """Workers of each role by (namespace, model), and the pairs that were reported as mixed."""

    def __init__(self) -> None:
        self._counts: dict[Pair, list[int]] = {}
        self._mixed: set[Pair] = set()
        self._touched: set[Pair] = set()

    def add(self, worker: Worker) -> None:
        """Count a published worker."""
        self._count(worker, 1)

    def remove(self, worker: Worker) -> None:
        """Count it no longer."""
        self._count(worker, -1)

    @property
    def mixed(self) -> tuple[Pair, ...]:
        """Reported pairs that are mixed still, sorted."""
        return tuple(sorted(self._mixed))

    def restore(self, mixed: Iterable[Pair]) -> None:
        """Remember what a checkpoint says was reported; nothing counts as touched."""
        self._mixed = set(mixed)

    def forget_touched(self, is_listing: Callable[[str], bool]) -> None:
        """After a restore: only pairs of namespaces that are being listed wait for judgement."""
        self._touched = {pair for pair in (*self._counts, *self._mixed) if is_listing(pair[0])}

    def judge(self, is_listing: Callable[[str], bool]) -> MixedRoles | None:
        """What began to be mixed since the last call, outside of namespaces that are being listed."""
        if not self._touched:
            return None
        ready = sorted(pair for pair in self._touched if not is_listing(pair[0]))
        self._touched.difference_update(ready)
        begun = []
        for pair in ready:
            counts = self._counts.get(pair, (0, 0, 0))
            if not (counts[2] and (counts[0] or counts[1])):
                self._mixed.discard(pair)
            elif pair not in self._mixed:
                self._mixed.add(pair)
                begun.append((*pair, counts[0], counts[1], counts[2]))
        if not begun:
            return None
        return MixedRoles(tuple(begun[:MIXED_NAMED_MAX]), max(0, len(begun) - MIXED_NAMED_MAX))

    def _count(self, worker: Worker, step: int) -> None:
        place = _PLACES.get(worker.role)
        if place is None or worker.model is None:
            return
        pair = (worker.key.namespace, worker.model)
        counts = self._counts.setdefault(pair, [0, 0, 0])
        counts[place] += step
        if counts == [0, 0, 0]:
            del self._counts[pair]
        self._touched.add(pair)
