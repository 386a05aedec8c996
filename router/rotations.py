"""Round-robin counters of this replica, one per phase and model.

A pick reads them in its question and writes them in its outcome (decision 29), so they
need no record of their own. At most ROTATIONS_MAX are kept: the one that was used longest
ago goes first, and a model that comes back starts at 0 again.
"""

from __future__ import annotations

from projections.bounds import ROTATIONS_MAX
from projections.events.picks import Outcome, Phase


class Rotations:
    """Rotations by (phase, served model). Not shared between replicas."""

    def __init__(self, limit: int = ROTATIONS_MAX) -> None:
        self._limit = limit
        self._held: dict[tuple[int, str], int] = {}  # in order of last use

    def __len__(self) -> int:
        return len(self._held)

    def of(self, phase: Phase, served_model: str) -> int:
        """The rotation before the next pick, 0 where none is held."""
        return self._held.get((phase, served_model), 0)

    def advance(self, served_model: str, outcome: Outcome) -> None:
        """Take over the rotations that a pick left."""
        self._set((Phase.PREFILL, served_model), outcome.rotation_prefill)
        self._set((Phase.DECODE, served_model), outcome.rotation_decode)

    def _set(self, key: tuple[int, str], value: int) -> None:
        before = self._held.pop(key, None)
        if before is None and value == 0:
            return
        self._held[key] = value
        if len(self._held) > self._limit:
            del self._held[next(iter(self._held))]
