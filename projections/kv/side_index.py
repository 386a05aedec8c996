"""Blocks that ranks will hold because prompts were sent to them: predictions from picks.

A pick sends a prompt to a rank that prefills it, and a moment later the rank holds the
prompt's blocks. Until events say so, or where none ever come, the pick itself stands for
them (requirement rows DYN-04, DYN-08). A prediction is the path of a prompt's tokens hashes, a
rank and the time of the question. It ends when the rank stores the prompt's last block,
after PREDICTION_US_MAX of log time, with the rank, or when there are too many or their
paths together too long: the oldest goes first (decision 24). A question counts only those
younger than the settings say.

Paths lie in a tree whose edges are stretches of hashes; an edge is cut where two paths part,
and at the end of every path. Each edge knows the predictions that pass it, by rank in order
of age. A prediction that passes an edge passes all edges above it, so along a prompt's path
the newest prediction of a rank never gets newer, and a rank's depth is that of the deepest
edge whose newest one is young enough: exact, whatever age is asked for.

How the tree happens to be cut is seen by nobody.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import xxhash

from projections.bounds import PREDICTED_BLOCKS_MAX, PREDICTIONS_MAX
from projections.events.codec import encode_value
from projections.events.held import PredictionHeld
from projections.events.picks import PickMade
from projections.identity import U64_MAX, RankKey
from projections.kv.columns import equal_words

Age = tuple[int, int]  # asked_at, number: unique, in order of age

_WORD = 8
_xxh3 = xxhash.xxh3_64_intdigest


class Predicted(NamedTuple):
    """What a pick predicts: a rank that will hold these blocks. asked_at: of its question."""

    rank: RankKey
    asked_at: int
    hashes: bytes


def predicted_by(fact: PickMade) -> Predicted | None:
    """The prediction of a pick whose question holds all of the prompt's hashes, else None.

    It speaks of the rank that prefills: that of the prefill phase, or of the decode phase alone.
    """
    outcome, question = fact.outcome, fact.question
    chosen = outcome.prefill.chosen or outcome.decode.chosen
    if outcome.namespace is None or chosen is None or not outcome.block_size:
        return None
    for known in question.hashes:
        if known.block_size == outcome.block_size and len(known.hashes) == known.blocks * _WORD:
            rank = RankKey(outcome.namespace, chosen.instance_id, chosen.dp_rank)
            return Predicted(rank, question.asked_at, known.hashes) if known.hashes else None
    return None


class Edge:
    """A stretch of a path. ages: predictions that pass all of it, by rank, oldest first."""

    __slots__ = ("above", "ages", "below", "hashes")

    def __init__(self, above: Edge | None, hashes: bytes) -> None:
        self.above = above
        self.hashes = hashes
        self.below: dict[bytes, Edge] = {}
        self.ages: dict[RankKey, list[Age]] = {}


class Prediction(NamedTuple):
    """One of them. last: its path's last edge; bytes: of its whole path; word: in the digest."""

    rank: RankKey
    last: Edge
    bytes: int
    word: int


class SideIndex:
    """Predictions by rank and path. At most predictions_max, with at most blocks_max blocks."""

    def __init__(
        self, predictions_max: int = PREDICTIONS_MAX, blocks_max: int = PREDICTED_BLOCKS_MAX
    ) -> None:
        self._predictions_max = predictions_max
        self._bytes_max = blocks_max * _WORD
        self._root = Edge(None, b"")
        self._order: list[Age] = []
        self._held: dict[Age, Prediction] = {}
        self._expected: dict[RankKey, dict[bytes, list[Age]]] = {}  # by the path's last block
        self._bytes = 0
        self.digest = 0  # sum modulo 2^64 of a word for each prediction

    def __len__(self) -> int:
        """Predictions held."""
        return len(self._held)

    @property
    def oldest_at(self) -> int | None:
        """Time of the question of the oldest, None without any."""
        return self._order[0][0] if self._order else None

    # -- changes -----------------------------------------------------------------------

    def add(self, asked_at: int, number: int, rank: RankKey, hashes: bytes) -> None:
        """A prompt of these blocks was sent to a rank. number: another one for each prediction."""
        age = asked_at, number
        if not hashes or len(hashes) > self._bytes_max or age in self._held:
            return
        word = _xxh3(encode_value((asked_at, number, *rank, _xxh3(hashes))))
        last = self._lay(age, rank, hashes)
        self._held[age] = Prediction(rank, last, len(hashes), word)
        insort(self._order, age)
        self._expected.setdefault(rank, {}).setdefault(hashes[-_WORD:], []).append(age)
        self._bytes += len(hashes)
        self.digest = (self.digest + word) & U64_MAX
        while len(self._order) > self._predictions_max or self._bytes > self._bytes_max:
            self.remove(*self._order[0])

    def remove(self, asked_at: int, number: int) -> None:
        """Forget one; one that is not held is no matter."""
        age = asked_at, number
        gone = self._held.pop(age, None)
        if gone is None:
            return
        del self._order[bisect_left(self._order, age)]
        block = gone.last.hashes[-_WORD:]
        expected = self._expected[gone.rank]
        expected[block].remove(age)
        if not expected[block]:
            del expected[block]
            if not expected:
                del self._expected[gone.rank]
        self._bytes -= gone.bytes
        self.digest = (self.digest - gone.word) & U64_MAX
        self._lift(age, gone.rank, gone.last)

    def stored(self, rank: RankKey, tokens: bytes) -> None:
        """A rank stored blocks of these tokens hashes: predictions that waited for one are fulfilled."""
        expected = self._expected.get(rank)
        if expected is None:
            return
        for start in range(0, len(tokens), _WORD):
            for age in [*expected.get(tokens[start : start + _WORD], ())]:
                self.remove(*age)

    def forget_rank(self, rank: RankKey) -> None:
        """All predictions of a rank."""
        for ages in [*self._expected.get(rank, {}).values()]:
            for age in [*ages]:
                self.remove(*age)

    def expire(self, before: int) -> None:
        """Forget those whose question was asked at or before this log time."""
        while self._order and self._order[0][0] <= before:
            self.remove(*self._order[0])

    # -- reading -----------------------------------------------------------------------

    def path(self, query: bytes) -> list[tuple[int, dict[RankKey, list[Age]]]]:
        """Edges along a prompt, deepest first: (blocks of the prompt down to there, ages by rank)."""
        found: list[tuple[int, dict[RankKey, list[Age]]]] = []
        edge, at = self._root, 0
        while (below := edge.below.get(query[at : at + _WORD])) is not None:
            edge = below
            if not query.startswith(edge.hashes, at):
                found.append((at // _WORD + _shared(edge.hashes, query[at:]), edge.ages))
                break
            at += len(edge.hashes)
            found.append((at // _WORD, edge.ages))
        found.reverse()
        return found

    # -- checkpoints -------------------------------------------------------------------

    def held(self) -> Iterator[PredictionHeld]:
        """All of them by path; each says how many blocks it shares with the one before."""
        paths = sorted((_path(one.last), age, one.rank) for age, one in self._held.items())
        before = b""
        for hashes, (asked_at, number), rank in paths:
            shared = _shared(before, hashes)
            before = hashes
            yield PredictionHeld(*rank, asked_at, number, shared, hashes[shared * _WORD :])

    def restore(self, facts: Iterable[PredictionHeld]) -> None:
        """Take over what `held` gave, in its order."""
        before = b""
        for fact in facts:
            before = before[: fact.shared * _WORD] + fact.hashes
            rank = RankKey(fact.namespace, fact.instance_id, fact.dp_rank)
            self.add(fact.asked_at, fact.number, rank, before)

    # -- the tree ----------------------------------------------------------------------

    def _lay(self, age: Age, rank: RankKey, hashes: bytes) -> Edge:
        """Mark the edges of a path, with new ones where there are none; the last of them."""
        edge, at = self._root, 0
        while at < len(hashes):
            below = edge.below.get(hashes[at : at + _WORD])
            if below is None:
                below = edge.below[hashes[at : at + _WORD]] = Edge(edge, hashes[at:])
            elif not hashes.startswith(below.hashes, at):
                below = _cut(below, _shared(below.hashes, hashes[at:]) * _WORD)
            insort(below.ages.setdefault(rank, []), age)
            at += len(below.hashes)
            edge = below
        return edge

    def _lift(self, age: Age, rank: RankKey, last: Edge) -> None:
        """Take a prediction off its path; edges that nothing passes any more go."""
        edge: Edge = last
        while edge.above is not None:
            ages = edge.ages[rank]
            del ages[bisect_left(ages, age)]
            if not ages:
                del edge.ages[rank]
                if not edge.ages:
                    del edge.above.below[edge.hashes[:_WORD]]
            edge = edge.above


def _cut(edge: Edge, at: int) -> Edge:
    """Cut an edge behind its first `at` bytes; the new upper part. Paths that end at it end below."""
    assert edge.above is not None and 0 < at < len(edge.hashes)
    upper = Edge(edge.above, edge.hashes[:at])
    upper.ages = {rank: [*ages] for rank, ages in edge.ages.items()}
    edge.above.below[upper.hashes[:_WORD]] = upper
    edge.above, edge.hashes = upper, edge.hashes[at:]
    upper.below[edge.hashes[:_WORD]] = edge
    return upper


def _path(last: Edge) -> bytes:
    parts = []
    edge: Edge | None = last
    while edge is not None:
        parts.append(edge.hashes)
        edge = edge.above
    return b"".join(reversed(parts))


def _shared(some: bytes, other: bytes) -> int:
    """Whole blocks in which two paths agree from their start."""
    length = min(len(some), len(other))
    return equal_words(some[:length], other[:length])
