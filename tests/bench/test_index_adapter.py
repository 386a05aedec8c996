"""The adapter says what the plain oracle says, through everything that a benchmark calls."""

from __future__ import annotations

from random import Random
from struct import pack

import pytest

from bench.index_adapter import Index
from projections.kv.index_limits import INDEX_LIMITS
from tests.projections.kv.index_oracle import Oracle

Rank = tuple[int, int]
RANKS: tuple[Rank, ...] = ((7, 0), (7, 1), (9, 0))
STEPS = 400


def words(hashes: list[int]) -> list[bytes]:
    return [pack(">Q", one) for one in hashes]


class Both:
    """An adapter and an oracle that hear the same of ranks by name."""

    def __init__(self) -> None:
        self.adapter, self.oracle = Index(), Oracle(INDEX_LIMITS)
        for slot in range(len(RANKS)):
            self.oracle.open_slot(slot)

    def store(self, rank: Rank, parent: int | None, blocks: list[tuple[int, int]]) -> None:
        """blocks: (engine hash, tokens hash)."""
        self.adapter.apply_stored(rank, parent, blocks)
        above = None if parent is None else words([parent])[0]
        names, tokens = words([one for one, _ in blocks]), words([one for _, one in blocks])
        self.oracle.stored(RANKS.index(rank), above, tokens, names)

    def remove(self, rank: Rank, names: list[int]) -> None:
        self.adapter.apply_removed(rank, names)
        self.oracle.removed(RANKS.index(rank), words(names))

    def clear(self, rank: Rank) -> None:
        self.adapter.clear(rank)
        self.oracle.clear(RANKS.index(rank))

    def compare(self, query: list[int]) -> int:
        """Ask in both ways that a benchmark asks; how many ranks hold some of it."""
        expected = {RANKS[slot]: depth for slot, depth in self.oracle.depths(words(query)).items()}
        found = self.adapter.find_raw(self.adapter.pack(query))
        assert self.adapter.raw_to_dict(found) == expected
        assert self.adapter.find_matches(query) == expected
        return len(expected)


@pytest.mark.parametrize("seed", range(6))
def test_any_events_leave_what_the_oracle_holds(seed: int) -> None:
    chance, both, held = Random(seed), Both(), 0
    for _ in range(STEPS):
        rank, names = (
            chance.choice(RANKS),
            [chance.randint(1, 30) for _ in range(chance.choice((1, 1, 3, 9)))],
        )
        act = chance.random()
        if act < 0.6:
            parent = chance.choice((None, chance.randint(1, 30)))
            both.store(rank, parent, [(name, chance.randint(1, 2)) for name in names])
        elif act < 0.95:
            both.remove(rank, names)
        else:
            both.clear(rank)
        held += both.compare([chance.randint(1, 2) for _ in range(chance.choice((1, 4, 12)))])
        assert both.adapter.nodes == both.oracle.nodes
    both.adapter.check()
    assert held > STEPS // 4, "the questions found something"


def test_a_block_that_names_itself_as_its_parent_is_left_out_of_its_chain() -> None:
    both = Both()
    both.store(RANKS[0], None, [(8, 1), (8, 2), (11, 3)])
    both.compare([1, 3])
    both.compare([1, 2, 3])
    assert both.adapter.find_matches([1, 2, 3]) == {RANKS[0]: 1}
    assert both.adapter.find_matches([1, 3]) == {RANKS[0]: 2}


def test_nothing_is_known_of_a_rank_that_was_never_told_of() -> None:
    both = Both()
    both.clear(RANKS[2])
    both.store(RANKS[2], None, [])
    both.remove(RANKS[1], [])
    assert both.compare([1]) == 0 and both.adapter.nodes == 0
