"""Which ranks could have confirmed a prediction, from what the fold tells of them."""

from __future__ import annotations

import pytest

from projections.bounds import KV_PUBLISHERS_MAX, KV_RANKS_MAX
from projections.notices import BlocksOrphaned, FleetPublished, KvEventResult, KvNotice
from router.prompt.rank_news import RankNews

RANK = ("dynamo", 7, 0)
PUBLISHER = 70
STORED = KvNotice(KvEventResult.APPLIED, "dynamo", PUBLISHER, 3)


def test_a_rank_of_which_blocks_came_since_could_have_confirmed() -> None:
    news = RankNews()
    assert not news.could_confirm(RANK, PUBLISHER, 0), "nothing was ever told"
    news.noticed([FleetPublished(1), STORED], 12)
    assert news.could_confirm(RANK, PUBLISHER, 11)
    assert not news.could_confirm(RANK, PUBLISHER, 12), "nothing since"
    assert not news.could_confirm(RANK, PUBLISHER + 1, 11), "somebody else's"


@pytest.mark.req("KVX-10")
def test_an_orphan_since_leaves_open_what_a_rank_holds_and_an_older_one_does_not() -> None:
    news = RankNews()
    news.noticed([BlocksOrphaned(*RANK)], 10)
    news.noticed([STORED], 12)
    assert not news.could_confirm(RANK, PUBLISHER, 9)
    assert news.could_confirm(RANK, PUBLISHER, 10)
    assert news.could_confirm(("dynamo", 7, 1), PUBLISHER, 9), "another rank"


def test_events_that_changed_nothing_are_no_news() -> None:
    news = RankNews()
    news.noticed([KvNotice(result, "dynamo", PUBLISHER) for result in KvEventResult if result > 1], 12)
    assert not news.could_confirm(RANK, PUBLISHER, 0)


def test_what_is_remembered_is_bounded_and_the_oldest_goes() -> None:
    news = RankNews()
    for number in range(max(KV_RANKS_MAX, KV_PUBLISHERS_MAX) + 2):
        news.noticed([BlocksOrphaned("dynamo", number, 0), STORED._replace(publisher_id=number)], number + 1)
        news.noticed([STORED._replace(publisher_id=0)], number + 1)
    assert len(news._orphans) == KV_RANKS_MAX and len(news._told) == KV_PUBLISHERS_MAX
    assert news.could_confirm(("dynamo", 0, 0), 0, 0), (
        "its orphan is forgotten; the publisher that tells most is not"
    )


def test_who_told_last_long_ago_goes_and_not_who_told_first() -> None:
    news = RankNews()
    for number in (*range(KV_PUBLISHERS_MAX), 0, KV_PUBLISHERS_MAX):
        news.noticed([STORED._replace(publisher_id=number)], 5)
    for number in (*range(KV_RANKS_MAX), 0, KV_RANKS_MAX):
        news.noticed([BlocksOrphaned("dynamo", number, 0)], 5)
    unknown = ("dynamo", -1, 0)
    assert news.could_confirm(unknown, 0, 4) and not news.could_confirm(unknown, 1, 4)
    assert not news.could_confirm(("dynamo", 0, 0), 0, 4) and news.could_confirm(("dynamo", 1, 0), 0, 4)
