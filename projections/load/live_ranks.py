"""Which ranks may be spoken of: the question that load reducers ask the registry.

Both the registry (its newest state) and a published fleet answer it; asking the registry
spares making a fleet at every record of discovery.
"""

from __future__ import annotations

from typing import Protocol


class LiveRanks(Protocol):
    """Ranks that live workers declare. `generation` differs whenever an answer may differ."""

    generation: int

    def is_live(self, namespace: str, instance_id: int, dp_rank: int) -> bool:
        """Whether a live worker of this name declares the rank."""
