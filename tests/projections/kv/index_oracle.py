"""The index, naive and plainly right: dicts from names to paths, counted anew at every question."""

from __future__ import annotations

from projections.kv.index_limits import IndexLimits

Path = tuple[bytes, ...]


class Oracle:
    """What `Index` must answer. Paths are tuples of tokens hashes; columns are lists of 8 byte words."""

    def __init__(self, limits: IndexLimits) -> None:
        self.limits = limits
        self.names: dict[int, dict[bytes, Path]] = {}

    def owned(self, slot: int) -> set[Path]:
        return set(self.names.get(slot, {}).values())

    def nodes(self) -> set[Path]:
        held = {path for slot in self.names for path in self.owned(slot)}
        return {path[:depth] for path in held for depth in range(1, len(path) + 1)}

    def has_room(self, slot: int, path: Path) -> bool:
        owners = [other for other in self.names if path in self.owned(other)]
        return (
            len(self.names[slot]) < self.limits.blocks
            and sum(map(len, self.names.values())) < self.limits.ownerships
            and (slot in owners or len(owners) < self.limits.owners)
            and (path in (nodes := self.nodes()) or len(nodes) < self.limits.nodes)
        )

    def stored(self, slot: int, parent: bytes | None, tokens: list[bytes], names: list[bytes]) -> tuple[str, int]:
        mine = self.names.setdefault(slot, {})
        if parent is not None and parent not in mine:
            return "ORPHAN", len(names)
        path: Path = () if parent is None else mine[parent]
        refused = 0
        for done, (token, name) in enumerate(zip(tokens, names, strict=True)):
            if name == parent:
                refused += 1
                continue
            parent, path = name, (*path, token)
            if mine.get(name) != path:
                if not self.has_room(slot, path):
                    return "OVER_CAPACITY", refused + len(names) - done
                mine[name] = path
        return ("SELF_PARENT" if refused else "APPLIED"), refused

    def removed(self, slot: int, names: list[bytes]) -> int:
        return sum(self.names.get(slot, {}).pop(name, None) is None for name in names)

    def depth(self, slot: int, query: list[bytes]) -> int:
        owned, depth = self.owned(slot), 0
        while depth < len(query) and tuple(query[: depth + 1]) in owned:
            depth += 1
        return depth
