"""Stories for the index: random events, told to it and to the oracle, which must agree after each.

Alphabets are small, so that hashes collide, move, repeat, go missing and name themselves as parents; runs and
ceilings are small in many stories. Now and then the index is said as a checkpoint, told to an index of
another shape with other slot numbers, and the story goes on there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import pack

from projections.kv.columns import members
from projections.kv.index import Index
from projections.kv.index_limits import IndexLimits
from tests.projections.kv.index_oracle import Oracle

MODES = ("shared", "own", "wild", "mixed")
"""How engines name blocks: all alike, each in its own way, by chance, and all of this."""

STEPS = 250
_U64 = (1 << 64) - 1
_ODD = (bytes(8), b"\xff" * 8)


def word(*parts: int) -> bytes:
    """A hash of small numbers, the same in every process."""
    total = 0x9E3779B97F4A7C15
    for part in parts:
        total = ((total ^ part) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & _U64
        total ^= total >> 29
    return pack(">Q", total)


@dataclass
class Story:
    """One story: `step` tells one event to both and compares. seed, mode: what it follows from, alone."""

    seed: int
    mode: str
    dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        dice = self.dice = random.Random(f"{self.seed} {self.mode}")
        small = dice.random() < 0.5
        self.limits = IndexLimits(
            nodes=dice.choice([5, 20, 60]) if small else 1_000_000,
            blocks=dice.choice([4, 15, 40]) if small else 1_000_000,
            ownerships=dice.choice([10, 40, 100]) if small else 1_000_000,
            owners=dice.choice([1, 2, 4_096]) if small else 4_096,
            run_blocks=dice.choice([1, 2, 5, 256]),
        )
        self.ranks = dice.choice([1, 2, 3, 7])
        self.tokens = [*_ODD, *(word(1, number) for number in range(4))][: dice.choice([1, 2, 3, 6])]
        self.chances = [*_ODD, *(word(2, number) for number in range(dice.choice([4, 10, 60])))]
        self.paths: dict[tuple[int, bytes], int] = {}
        self.known: list[list[tuple[bytes, int]]] = [[] for _ in range(self.ranks)]
        self.ways: dict[int, list[bytes]] = {0: []}
        self.oracle = Oracle(self.limits)
        self.slots = list(range(self.ranks))
        self.index = self.opened(self.limits)
        for rank in range(self.ranks):
            self.oracle.open_slot(rank)

    def opened(self, limits: IndexLimits) -> Index:
        index = Index(limits)
        for rank, slot in enumerate(self.slots):
            index.open_slot(slot, rank * 977)
        return index

    def step(self) -> None:
        """One event and its checks. Raises AssertionError where the two disagree."""
        dice = self.dice
        rank = dice.randrange(self.ranks)
        chance = dice.random()
        if chance < 0.55:
            self.store(rank)
        elif chance < 0.9:
            self.remove(rank)
        elif chance < 0.93:
            self.index.clear(self.slots[rank])
            self.oracle.clear(rank)
            self.known[rank] = []
        elif chance < 0.945:
            self.restart()
        elif chance < 0.96:
            self.compare()
        self.ask()

    def store(self, rank: int) -> None:
        dice, known = self.dice, self.known[rank]
        parent, node = dice.choice(known) if known and dice.random() < 0.7 else (None, 0)
        if self.mode in ("wild", "mixed") and dice.random() < 0.2:
            parent, node = dice.choice(self.chances), 0
        mode = dice.choice(MODES) if self.mode == "mixed" else self.mode
        tokens, names = [], []
        for _ in range(dice.choice([1, 1, 2, 3, 8, 20])):
            tokens.append(dice.choice(self.tokens))
            node = self.below(node, tokens[-1])
            if mode == "wild":
                names.append(dice.choice(self.chances))
            else:
                names.append(word(3, rank if mode == "own" else -1, node))
            known.append((names[-1], node))
        if len(known) > 300:
            del known[:150]
        stored = self.index.stored(self.slots[rank], parent, b"".join(tokens), b"".join(names))
        wanted = self.oracle.stored(rank, parent, tokens, names)
        assert (stored.result.name, stored.blocks_refused) == wanted

    def below(self, node: int, token: bytes) -> int:
        number = self.paths.setdefault((node, token), len(self.paths) + 1)
        if number not in self.ways:
            self.ways[number] = [*self.ways[node], token] if len(self.ways[node]) < 60 else self.ways[node]
        return number

    def remove(self, rank: int) -> None:
        dice, known = self.dice, self.known[rank]
        names = [dice.choice(known)[0] for _ in range(dice.choice([1, 1, 3, 10]))] if known else [_ODD[0]]
        if known and dice.random() < 0.5:
            start = dice.randrange(len(known))
            names = [name for name, _ in known[start : start + dice.choice([2, 8, 40])]]
            if dice.random() < 0.7:
                names.reverse()
        missing = self.index.removed(self.slots[rank], b"".join(names))
        assert missing == self.oracle.removed(rank, names)

    def restart(self) -> None:
        """Go on in an index filled from a checkpoint."""
        facts = list(self.index.held(self.slots))
        before = self.index
        if self.dice.random() < 0.5:
            self.slots = self.dice.sample(range(self.ranks * 3), self.ranks)
        self.index = self.opened(self.limits._replace(run_blocks=self.dice.choice([1, 3, 7, 256])))
        self.index.restore(facts, self.slots)
        assert self.index.digest == before.digest
        assert list(self.index.held(self.slots)) == facts
        self.compare()

    def compare(self) -> None:
        """Everything that can be counted."""
        index, oracle = self.index, self.oracle
        index.check()
        assert index.nodes == oracle.nodes
        assert index.ownerships == sum(map(len, oracle.held.values()))
        for rank, slot in enumerate(self.slots):
            assert index.blocks(slot) == len(oracle.held[rank])
            names = 0
            for name in oracle.names[rank]:
                names ^= int.from_bytes(name, "big")
            assert index.engine_hash_xor(slot) == names

    def ask(self) -> None:
        dice = self.dice
        query = [dice.choice(self.tokens) for _ in range(dice.choice([1, 4, 12]))]
        known = self.known[dice.randrange(self.ranks)]
        if known and dice.random() < 0.7:
            query = self.ways[dice.choice(known)[1]] + query[:2]
        among = -1 if dice.random() < 0.7 else dice.getrandbits(self.ranks * 3)
        found: dict[int, int] = {}
        for depth, mask in self.index.find(b"".join(query), among):
            for slot in members(mask):
                assert slot not in found and depth > 0
                found[slot] = depth
        depths = self.oracle.depths(query).items()
        assert found == {self.slots[rank]: d for rank, d in depths if among >> self.slots[rank] & 1}


def tell(first: int, stories: int, modes: tuple[str, ...] = MODES) -> int:
    """Tell stories `first`.. in each of `modes`; returns the number of steps."""
    return sum(map(tell_one, *zip(*pairs(first, stories, modes), strict=True)))  # integers


def pairs(first: int, stories: int, modes: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(seed, mode) of these stories."""
    return ((seed, mode) for seed in range(first, first + stories) for mode in modes)


def tell_one(seed: int, mode: str) -> int:
    """Tell one story and return its steps; a failure names it."""
    story = Story(seed, mode)
    for step in range(STEPS):
        try:
            story.step()
        except Exception as failure:
            raise AssertionError(f"story {seed} {mode!r}, step {step}: {failure!r}") from failure
    story.compare()
    return STEPS
