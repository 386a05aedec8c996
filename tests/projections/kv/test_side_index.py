"""Predictions: paths, ages, ends, ceilings; and all of it against a plain list."""

from __future__ import annotations

import random

import pytest

from projections.identity import RankKey
from projections.kv.side_index import SideIndex, predicted_by
from tests.projections.fleet_script import NS
from tests.projections.kv.kv_script import KvScript, chain, pick_of

A, B = RankKey(NS, 1, 0), RankKey(NS, 2, 0)


def path(*words: int | str) -> bytes:
    return chain(*words)[0]


def depths(side: SideIndex, query: bytes, after: int = -1) -> dict[RankKey, int]:
    """Deepest edge of each rank whose newest prediction is younger than `after`."""
    found: dict[RankKey, int] = {}
    for depth, ages in side.path(query):
        for rank, times in ages.items():
            if times[-1][0] > after:
                found.setdefault(rank, depth)
    return found


@pytest.mark.req("DYN-04")
def test_a_prediction_stands_for_the_prefix_of_a_prompt() -> None:
    side = SideIndex()
    side.add(10, 1, A, path("a", "b", "c"))
    assert depths(side, path("a", "b", "c", "d")) == {A: 3}
    assert depths(side, path("a", "b", "x")) == {A: 2} and depths(side, path("x")) == {}
    side.add(20, 2, B, path("a", "b", "x", "y"))
    assert depths(side, path("a", "b", "x")) == {A: 2, B: 3}
    assert depths(side, path("a", "b"), after=10) == {B: 2}


@pytest.mark.req("DYN-04", "DYN-08")
def test_the_newest_prediction_of_a_prefix_decides_whatever_age_is_asked() -> None:
    side = SideIndex()
    side.add(10, 1, A, path("a", "b", "c"))
    side.add(30, 2, A, path("a"))
    query = path("a", "b", "c")
    assert depths(side, query, after=9) == {A: 3}
    assert depths(side, query, after=10) == {A: 1} and depths(side, query, after=30) == {}


@pytest.mark.req("DYN-04")
def test_storing_the_last_block_ends_a_prediction() -> None:
    side = SideIndex()
    side.add(10, 1, A, path("a", "b"))
    side.add(11, 2, A, path("a", "b", "c"))
    side.add(12, 3, B, path("a", "b"))
    side.stored(A, path("a"))
    side.stored(RankKey(NS, 9, 9), path("b"))
    assert len(side) == 3
    side.stored(A, path("a", "b"))
    assert len(side) == 2 and depths(side, path("a", "b", "c")) == {A: 3, B: 2}


def test_the_oldest_goes_where_there_is_no_room() -> None:
    side = SideIndex(predictions_max=2, blocks_max=5)
    side.add(30, 1, A, path("a"))
    side.add(10, 2, A, path("b"))
    side.add(20, 3, A, path("c"))
    assert depths(side, path("b")) == {} and len(side) == 2
    side.add(25, 4, B, path("d", "e", "f", "g"))
    assert depths(side, path("c")) == {} and len(side) == 2
    side.add(26, 5, B, path("a", "b", "c", "d", "e", "f"))
    assert len(side) == 2, "longer than all room there is"
    side.add(30, 1, B, path("z"))
    side.add(31, 6, B, b"")
    assert len(side) == 2 and side.oldest_at == 25


def test_what_nothing_passes_is_gone() -> None:
    side = SideIndex()
    for number in range(50):
        side.add(number, number, (A, B)[number % 2], path("a", number % 7, number))
    side.forget_rank(A)
    assert depths(side, path("a")) == {B: 1}
    side.expire(48)
    assert len(side) == 1
    side.remove(49, 49)
    side.remove(49, 49)
    assert (len(side), side.digest, side.oldest_at) == (0, 0, None)
    assert not side._root.below and not side._expected and side._bytes == 0


@pytest.mark.parametrize("seed", range(8))
def test_random_predictions_agree_with_a_plain_list(seed: int) -> None:
    draw = random.Random(seed)
    side = SideIndex(predictions_max=40, blocks_max=150)
    plain: dict[tuple[int, int], tuple[RankKey, tuple[int, ...]]] = {}
    ranks = [RankKey(NS, worker, 0) for worker in range(4)]
    for number in range(600):
        words = tuple(draw.randrange(3) for _ in range(draw.randrange(1, 8)))
        rank = draw.choice(ranks)
        act = draw.random()
        if act < 0.7:
            age = draw.randrange(100), number
            side.add(*age, rank, path(*words))
            plain[age] = rank, words
            while len(plain) > 40 or sum(len(w) for _, w in plain.values()) > 150:
                del plain[min(plain)]
        elif act < 0.8:
            side.stored(rank, path(*words))
            plain = {a: (r, w) for a, (r, w) in plain.items() if r != rank or w[-1] not in words}
        elif act < 0.9 and plain:
            age = draw.choice(sorted(plain))
            side.remove(*age)
            del plain[age]
        elif act < 0.92:
            side.forget_rank(rank)
            plain = {a: (r, w) for a, (r, w) in plain.items() if r != rank}
        else:
            side.expire(number % 30)
            plain = {a: held for a, held in plain.items() if a[0] > number % 30}
        after = draw.randrange(-1, 100)
        expected: dict[RankKey, int] = {}
        for age, (held_by, held) in plain.items():
            depth = next(
                (n for n, pair in enumerate(zip(held, words, strict=False)) if pair[0] != pair[1]),
                min(len(held), len(words)),
            )
            if age[0] > after and depth > expected.get(held_by, 0):
                expected[held_by] = depth
        assert depths(side, path(*words), after) == expected
        assert len(side) == len(plain)
    again = SideIndex(40, 150)
    again.restore(side.held())
    assert again.digest == side.digest and [*again.held()] == [*side.held()]
    assert again.oldest_at == side.oldest_at


@pytest.mark.req("DYN-04")
def test_a_pick_predicts_for_the_rank_that_prefills() -> None:
    script = KvScript()
    question = script.question("a", "b")
    alone = predicted_by(pick_of(question, 1))
    pair = predicted_by(pick_of(question, 1, prefill=(2, 3)))
    assert alone is not None and alone.rank == (NS, 1, 0) and alone.hashes == path("a", "b")
    assert pair is not None and pair.rank == (NS, 2, 3)


def test_a_pick_without_all_hashes_or_a_rank_predicts_nothing() -> None:
    script = KvScript()
    question = script.question("a", "b")
    fact = pick_of(question, 1)
    cut = question.hashes[0]._replace(hashes=path("a"))
    for odd in (
        fact._replace(question=question._replace(hashes=())),
        fact._replace(question=question._replace(hashes=(cut,))),
        fact._replace(question=question._replace(hashes=(cut._replace(blocks=0, hashes=b""),))),
        fact._replace(outcome=fact.outcome._replace(block_size=32)),
        fact._replace(outcome=fact.outcome._replace(block_size=0)),
        fact._replace(outcome=fact.outcome._replace(namespace=None)),
    ):
        assert predicted_by(odd) is None
