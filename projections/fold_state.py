"""The state of a fold: its projections, and the digest of each."""

from __future__ import annotations

from projections.intake import Intake
from projections.kv.state import KvState
from projections.load.ledger import Ledger
from projections.load.store import LoadStore
from projections.registry.reducer import Registry
from projections.status import Status


class State:
    """All that the log has said, up to the fold's mark."""

    __slots__ = ("intake", "kv", "ledger", "load", "registry", "status")

    def __init__(self) -> None:
        self.intake = Intake()
        self.registry = Registry()
        self.load = LoadStore()
        self.kv = KvState()
        self.ledger = Ledger()
        self.status = Status()

    def digests(self) -> tuple[tuple[str, int], ...]:
        """(projection, digest) sorted by name. Equal states have equal digests.

        Without kv while that holds nothing: logs written before it was there agree with their ticks.
        """
        kv = self.kv.digest
        return (
            ("intake", self.intake.digest),
            *((("kv", kv),) if kv else ()),
            ("ledger", self.ledger.digest),
            ("load", self.load.digest),
            ("registry", self.registry.digest),
            ("status", self.status.digest),
        )
