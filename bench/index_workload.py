"""Block events of chats on a fleet of engines with prefix caches, and prompts that ask for them.

A few system prompts are shared by all chats. A turn adds the user's blocks and the answer's to its chat and
usually goes to the rank of the turn before. Each rank keeps a number of blocks and throws the least recently
used ones away, of a path its tail first, as vLLM does. What a prefill adds comes in events of up to 128
blocks, an answer in events of one block, an eviction in one event for each turn.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import pack
from typing import NamedTuple

_U64 = (1 << 64) - 1
EVENT_BLOCKS_MAX = 128
SYSTEM_PROMPTS = (32, 64, 48, 96, 128, 24, 200, 16)
STAYS = 0.8


class Size(NamedTuple):
    """ranks; blocks that each keeps; blocks of a chat at its end, about."""

    ranks: int
    capacity: int
    depth: int


SIZES = {
    "chat-8": Size(8, 12_500, 512),
    "chat-64": Size(64, 4_000, 512),
    "chat-64 twice": Size(64, 8_000, 512),
    "chat-256": Size(256, 4_000, 512),
    "chat-1024": Size(1_024, 1_000, 512),
    "short-64": Size(64, 4_000, 32),
    "long-64": Size(64, 16_000, 2_048),
}


class BlockEvent(NamedTuple):
    """tokens is None where names are removed. parent: None for the root."""

    rank: int
    parent: int | None
    tokens: list[int] | None
    names: list[int]


def mixed(number: int) -> int:
    """A number as evenly spread as a hash."""
    number = (number + 0x9E3779B97F4A7C15) & _U64
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & _U64
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & _U64
    return number ^ number >> 31


def column(numbers: list[int]) -> bytes:
    """The packed column of these hashes."""
    return pack(f">{len(numbers)}Q", *numbers)


@dataclass
class _Chat:
    rank: int
    end: int
    tokens: list[int]
    names: list[int] = field(default_factory=list)


class Chats:
    """The workload of one size and seed."""

    def __init__(self, size: Size, seed: int = 1) -> None:
        self._size = size
        self._dice = random.Random(seed)
        self._fresh = seed << 40
        self._caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(size.ranks)]
        longest = max(4, size.depth // 2)
        self._systems = [self._new(min(blocks, longest)) for blocks in SYSTEM_PROMPTS]
        self._chats: list[_Chat] = []
        self._prompts: list[list[int]] = []

    def events(self, blocks: int) -> Iterator[list[BlockEvent]]:
        """Turns, an event list each, until `blocks` were stored."""
        stored = 0
        while stored < blocks:
            turn = self._turn()
            stored += sum(len(event.names) for event in turn if event.tokens is not None)
            yield turn

    @property
    def held(self) -> int:
        """Blocks that the ranks keep now."""
        return sum(map(len, self._caches))

    def prompts(self, count: int, blocks: int, seed: int = 9) -> list[bytes]:
        """Columns of `count` prompts of recent turns, cut or lengthened to so many blocks."""
        dice = random.Random(seed)
        chosen = []
        for _ in range(count):
            prompt = dice.choice(self._prompts[-6_000:])[:blocks]
            chosen.append(column(prompt + self._new(blocks - len(prompt))))
        return chosen

    def _new(self, count: int) -> list[int]:
        self._fresh += count
        return [mixed(number) for number in range(self._fresh - count, self._fresh)]

    def _turn(self) -> list[BlockEvent]:
        dice, size = self._dice, self._size
        chat = self._chat()
        chat.tokens += self._new(dice.randint(max(1, size.depth // 64), max(2, size.depth // 16)))
        if dice.random() > STAYS:
            chat.rank = dice.randrange(size.ranks)
        cache = self._caches[chat.rank]
        asked = len(chat.tokens)
        self._prompts.append(list(chat.tokens))
        chat.tokens += self._new(dice.randint(max(1, size.depth // 128), max(2, size.depth // 32)))
        name = chat.names[-1] if chat.names else 0
        for token in chat.tokens[len(chat.names) :]:
            name = mixed(name ^ token * 0x2545F4914F6CDD1D & _U64)
            chat.names.append(name)
        start = 0
        while start < asked and chat.names[start] in cache:
            start += 1
        turn = []
        while start < len(chat.tokens):
            end = min(start + EVENT_BLOCKS_MAX, asked) if start < asked else start + 1
            parent = chat.names[start - 1] if start else None
            turn.append(BlockEvent(chat.rank, parent, chat.tokens[start:end], chat.names[start:end]))
            start = end
        for name in reversed(chat.names):
            cache[name] = None
            cache.move_to_end(name)
        gone = [cache.popitem(last=False)[0] for _ in range(len(cache) - size.capacity)]
        if gone:
            turn.append(BlockEvent(chat.rank, None, None, gone))
        if len(chat.tokens) >= chat.end:
            self._chats.remove(chat)
        return turn

    def _chat(self) -> _Chat:
        dice, size = self._dice, self._size
        wanted = max(4, int(size.ranks * size.capacity / size.depth * 0.7))
        if len(self._chats) >= wanted and dice.random() > 0.15:
            return dice.choice(self._chats)
        system = self._systems[min(int(dice.expovariate(0.6)), len(self._systems) - 1)]
        end = max(len(system) + 4, int(dice.gauss(size.depth, size.depth / 4)))
        chat = _Chat(dice.randrange(size.ranks), end, list(system))
        self._chats.append(chat)
        return chat


def ceiling_chats(seed: int = 3) -> Iterator[list[BlockEvent]]:
    """512 chats of 2,048 blocks, each on 8 of 64 ranks, an event list each.

    Together 1,048,576 nodes and 8,388,608 ownerships.
    """
    fresh = seed << 50
    for chat in range(512):
        tokens = [mixed(fresh + number) for number in range(chat * 2_048, (chat + 1) * 2_048)]
        names = [mixed(token) for token in tokens]
        yield [
            BlockEvent(
                (chat + 8 * copy) % 64,
                names[start - 1] if start else None,
                tokens[start : start + EVENT_BLOCKS_MAX],
                names[start : start + EVENT_BLOCKS_MAX],
            )
            for copy in range(8)
            for start in range(0, 2_048, EVENT_BLOCKS_MAX)
        ]
