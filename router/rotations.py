"""Round-robin counters of this replica: one per model for decode, one per model and namespace for prefill.

The prefill phase turns inside the namespace that the decode phase chose. Two namespaces
that took turns on one counter would each see every other value of it, and half of their
prefill workers would never be chosen. Prefix-aware picks go the other way round: prefill
turns over the pairs of all namespaces, decode inside the one that it chose, so the first has
one counter for each model and the second one for each namespace.

A pick reads them in its question and writes them in its outcome (decision 29), so they
need no record of their own. At most ROTATIONS_MAX are kept: the one that was used longest
ago goes first, and a model that comes back starts at 0 again.
"""

from __future__ import annotations

from projections.bounds import ROTATIONS_MAX
from projections.events.picks import Outcome, Phase


class Rotations:
    """Rotations by (phase, served model, namespace). Not shared between replicas."""

    def __init__(self, limit: int = ROTATIONS_MAX) -> None:
        self._limit = limit
        self._held: dict[tuple[int, str, str], int] = {}  # in order of last use

    def __len__(self) -> int:
        return len(self._held)

    def decode(self, served_model: str) -> int:
        """The decode rotation before the next pick, 0 where none is held."""
        return self._held.get((Phase.DECODE, served_model, ""), 0)

    def prefill(self, served_model: str, namespace: str) -> int:
        """The prefill rotation of a namespace before the next pick, 0 where none is held."""
        return self._held.get((Phase.PREFILL, served_model, namespace), 0)

    def prefill_of_all(self, served_model: str) -> int:
        """The prefill rotation that turns over all namespaces."""
        return self._held.get((Phase.PREFILL, served_model, ""), 0)

    def decode_inside(self, served_model: str, namespace: str) -> int:
        """The decode rotation that turns inside a namespace."""
        return self._held.get((Phase.DECODE, served_model, namespace), 0)

    def advance(self, served_model: str, outcome: Outcome, by_prefix: bool = False) -> None:
        """Take over the rotations that a pick left. by_prefix: under settings with the prefix term."""
        self._set((Phase.DECODE, served_model, ""), outcome.rotation_decode)
        if outcome.namespace is not None:
            self._set((Phase.PREFILL, served_model, outcome.namespace), outcome.rotation_prefill)
            if by_prefix:
                self._set((Phase.PREFILL, served_model, ""), outcome.rotation_prefill)
                self._set((Phase.DECODE, served_model, outcome.namespace), outcome.rotation_decode)

    def _set(self, key: tuple[int, str, str], value: int) -> None:
        before = self._held.pop(key, None)
        if before is None and value == 0:
            return
        self._held[key] = value
        if len(self._held) > self._limit:
            del self._held[next(iter(self._held))]
