"""The index behind the interface that index benchmarks speak: ranks by name, hashes as numbers.

What it costs to pack numbers into columns is part of every figure measured through it; the product gets
columns from the wire and never pays it.

A harness whose oracle knows no block that names itself as its parent calls this wrong where hashes
collide by chance: such a block is refused alone here and what follows it hangs from the block
above (decision 26), while that oracle gives it a node of its own. Told of no such block, it agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from struct import Struct

from projections.kv.columns import members
from projections.kv.index import Index as KvIndex


@lru_cache(maxsize=4096)
def _packer(count: int) -> Callable[..., bytes]:
    return Struct(f">{count}Q").pack


class Index:
    """One index and the slots of its ranks, in the order in which they came."""

    def __init__(self) -> None:
        self.index = KvIndex()
        self._slots: dict[Hashable, int] = {}
        self._ranks: list[Hashable] = []
        self._stored = self.index.stored
        self.find_raw = partial(self.index.find, among=-1)
        """Packed tokens hashes in, the index's own answer out."""

    def _slot(self, rank: Hashable) -> int:
        slot = self._slots[rank] = len(self._ranks)
        self._ranks.append(rank)
        self.index.open_slot(slot, slot)
        return slot

    def apply_stored(self, rank: Hashable, parent: int | None, blocks: Sequence[tuple[int, int]]) -> None:
        """blocks: (engine hash, tokens hash)."""
        slot = self._slots[rank] if rank in self._slots else self._slot(rank)
        above = None if parent is None else parent.to_bytes(8, "big")
        if len(blocks) == 1:
            engine, token = blocks[0]
            self._stored(slot, above, token.to_bytes(8, "big"), engine.to_bytes(8, "big"))
        elif blocks:
            engines, tokens = zip(*blocks, strict=True)
            pack = _packer(len(engines))
            self._stored(slot, above, pack(*tokens), pack(*engines))

    def apply_removed(self, rank: Hashable, hashes: Sequence[int]) -> None:
        """hashes: engine hashes."""
        slot = self._slots[rank] if rank in self._slots else self._slot(rank)
        self.index.removed(slot, _packer(len(hashes))(*hashes))

    def clear(self, rank: Hashable) -> None:
        """The rank holds nothing more."""
        if rank in self._slots:
            self.index.clear(self._slots[rank])

    def pack(self, hashes: Sequence[int]) -> bytes:
        """A column of them."""
        return _packer(len(hashes))(*hashes)

    def find_matches(self, hashes: Sequence[int]) -> dict[Hashable, int]:
        """Rank to depth, tokens hashes in."""
        return self.raw_to_dict(self.find_raw(self.pack(hashes)))

    def raw_to_dict(self, found: list[tuple[int, int]]) -> dict[Hashable, int]:
        """The index's answer by rank."""
        ranks = self._ranks
        return {ranks[slot]: depth for depth, mask in found for slot in members(mask)}

    def check(self) -> None:
        """Raise if an invariant is broken."""
        self.index.check()

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.index.nodes
