"""The table of ranks: slots, names, who has departed."""

from __future__ import annotations

from projections.identity import RankKey
from projections.kv.ranks import KvRank, Ranks


def opened(ranks: Ranks, worker: int, dp_rank: int = 0) -> KvRank:
    rank = ranks.open(RankKey("ns", worker, dp_rank))
    assert rank is not None
    return rank


def test_the_lowest_free_slot_is_given_out_first() -> None:
    ranks = Ranks()
    slots = [opened(ranks, worker).slot for worker in (5, 3, 4)]
    assert slots == [0, 1, 2]
    for worker in (4, 5):
        rank = ranks.get(("ns", worker, 0))
        assert rank is not None
        ranks.close(rank)
    assert opened(ranks, 9).slot == 0 and ranks.names[0] == ("ns", 9, 0)
    assert opened(ranks, 8).slot == 2 and opened(ranks, 7).bit == 8


def test_ranks_are_listed_by_name() -> None:
    ranks = Ranks()
    for worker, dp_rank in ((2, 1), (1, 0), (2, 0)):
        opened(ranks, worker, dp_rank)
    assert [rank.key[1:] for rank in ranks.in_order()] == [(1, 0), (2, 0), (2, 1)]
    assert [rank.key[2] for rank in ranks.of_worker("ns", 2)] == [0, 1]
    assert ranks.of_worker("ns", 3) == []


def test_departed_ranks_wait_in_order_and_count() -> None:
    ranks = Ranks(ranks_max=2)
    first, second = opened(ranks, 2), opened(ranks, 1)
    ranks.depart(first)
    ranks.depart(second)
    assert [key.instance_id for key in ranks.departed] == [1, 2]
    assert ranks.open(RankKey("ns", 3, 0)) is None
    ranks.close(second)
    assert len(ranks) == 1 and len(ranks.departed) == 1
    assert ranks.open(RankKey("ns", 3, 0)) is not None


def test_the_digest_knows_departed_ranks_and_no_slots() -> None:
    one, other = Ranks(), Ranks()
    for worker in (1, 2):
        opened(one, worker)
        opened(other, 3 - worker)
    assert one.digest == other.digest != 0
    gone = one.get(("ns", 1, 0))
    assert gone is not None
    one.depart(gone)
    assert one.digest != other.digest
    one.close(gone)
    rest = one.get(("ns", 2, 0))
    assert rest is not None
    one.close(rest)
    assert one.digest == 0 and len(one) == 0
