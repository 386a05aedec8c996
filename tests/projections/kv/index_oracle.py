"""The index, naive and plainly right: a dict of names for each slot, and a walk for every question.

A node is a number for (node above, tokens hash); the root is 0. Columns are lists of 8 byte words.
"""

from __future__ import annotations

from collections import Counter

from projections.kv.index_limits import IndexLimits


class Oracle:
    """What `Index` must answer."""

    def __init__(self, limits: IndexLimits) -> None:
        self.limits = limits
        self.numbers: dict[tuple[int, bytes], int] = {}
        self.above: dict[int, int] = {}
        self.names: dict[int, dict[bytes, int]] = {}
        self.held: dict[int, Counter[int]] = {}  # slot -> node -> how many names it has
        self.below: Counter[int] = Counter()  # node -> (slot, node) pairs at it or below
        self.owners: Counter[int] = Counter()

    def open_slot(self, slot: int) -> None:
        self.names[slot], self.held[slot] = {}, Counter()

    @property
    def nodes(self) -> int:
        return len(+self.below)

    def count(self, node: int, more: int) -> None:
        self.owners[node] += more
        while node:
            self.below[node] += more
            if not self.below[node]:
                del self.below[node]
            node = self.above[node]

    def has_room(self, slot: int, node: int) -> bool:
        limits = self.limits
        return (
            len(self.names[slot]) < limits.blocks
            and sum(map(len, self.names.values())) < limits.ownerships
            and (node in self.held[slot] or self.owners[node] < limits.owners)
            and (node in self.below or len(self.below) < limits.nodes)
        )

    def stored(
        self, slot: int, parent: bytes | None, tokens: list[bytes], names: list[bytes]
    ) -> tuple[str, int]:
        mine = self.names[slot]
        if parent is not None and parent not in mine:
            return "ORPHAN", len(names)
        node = 0 if parent is None else mine[parent]
        refused = 0
        for done, (token, name) in enumerate(zip(tokens, names, strict=True)):
            if name == parent:
                refused += 1
                continue
            above, node = node, self.numbers.setdefault((node, token), len(self.numbers) + 1)
            self.above[node] = above
            parent = name
            if mine.get(name) == node:
                continue
            if not self.has_room(slot, node):
                return "OVER_CAPACITY", refused + len(names) - done
            self.held[slot][node] += 1
            if self.held[slot][node] == 1:
                self.count(node, 1)
            self.removed(slot, [name])
            mine[name] = node
        return ("SELF_PARENT" if refused else "APPLIED"), refused

    def removed(self, slot: int, names: list[bytes]) -> int:
        missing = 0
        for name in names:
            node = self.names[slot].pop(name, None)
            if node is None:
                missing += 1
                continue
            self.held[slot][node] -= 1
            if not self.held[slot][node]:
                del self.held[slot][node]
                self.count(node, -1)
        return missing

    def clear(self, slot: int) -> None:
        self.removed(slot, list(self.names[slot]))

    def depths(self, query: list[bytes]) -> dict[int, int]:
        found: dict[int, int] = {}
        node, alive = 0, set(self.held)
        for depth, token in enumerate(query, 1):
            node = self.numbers.get((node, token), -1)
            alive = {slot for slot in alive if node in self.held[slot]}
            found.update(dict.fromkeys(alive, depth))
        return found
