"""Short ways to say what happens to an index: words and columns of small numbers, one event a line."""

from __future__ import annotations

from struct import pack

from projections.kv.columns import members
from projections.kv.index import Index, Stored
from projections.kv.index_limits import IndexLimits


def column(*numbers: int) -> bytes:
    """The packed column of these hashes."""
    return pack(f">{len(numbers)}Q", *numbers)


def index_of(slots: int = 4, **limits: int) -> Index:
    """An empty index with open slots 0.. whose key words are 100.."""
    index = Index(IndexLimits(**limits))
    for slot in range(slots):
        index.open_slot(slot, 100 + slot)
    return index


def store(index: Index, slot: int, tokens: list[int], names: list[int], under: int | None = None) -> Stored:
    """A stored event; `under` is the name of its parent."""
    parent = None if under is None else column(under)
    return index.stored(slot, parent, column(*tokens), column(*names))


def remove(index: Index, slot: int, *names: int) -> int:
    """A removed event."""
    return index.removed(slot, column(*names))


def depths(index: Index, *tokens: int, among: int = -1) -> dict[int, int]:
    """{slot: depth} of the prompt with these tokens hashes."""
    return {slot: depth for depth, mask in index.find(column(*tokens), among) for slot in members(mask)}
