"""The table of publishers: room, who is heard, and what the digest holds of them."""

from __future__ import annotations

import pytest

from projections.identity import RankKey
from projections.kv.cursors import Publishers
from projections.kv.ranks import Ranks
from projections.registry.join import RankBinding


@pytest.mark.field("B-056")
def test_a_publisher_leaves_nothing_behind() -> None:
    publishers, ranks = Publishers(), Ranks()
    rank = ranks.open(RankKey("ns", 1, 0))
    publisher = publishers.open(("ns", 7), RankBinding(1, 0))
    assert rank is not None and publisher is not None
    feed = publishers.open_feed(publisher, rank)
    feed.last_event_id = 4
    assert publisher.rows() == ((1, 0, 4, 0),) and [*rank.heard] == [("ns", 7)]
    publishers.cut_off(publisher, 5)
    assert publishers.digest != 0 and [*publishers.down] == [("ns", 7)]
    publishers.close(publisher)
    assert publishers.digest == 0 and not publishers.down and not rank.heard and not publishers.by_key
    again = publishers.open(("ns", 7), None)
    assert again is not None and again.rows() == ()


def test_a_publisher_is_down_since_it_was_first_cut_off() -> None:
    publishers = Publishers()
    publisher = publishers.open(("ns", 7), None)
    assert publisher is not None
    publishers.cut_off(publisher, 5)
    publishers.cut_off(publisher, 9)
    assert publisher.down_at == 5
    publishers.hear(publisher)
    publishers.hear(publisher)
    assert publisher.down_at is None and not publishers.down


def test_the_digest_follows_every_change() -> None:
    publishers, ranks = Publishers(), Ranks()
    rank, publisher = ranks.open(RankKey("ns", 1, 0)), publishers.open(("ns", 7), None)
    assert rank is not None and publisher is not None
    seen = [publishers.digest]
    publishers.cut_off(publisher, 5)
    seen.append(publishers.digest)
    feed = publishers.open_feed(publisher, rank)
    seen.append(publishers.digest)
    feed.displaced = 1
    publishers.change(publisher)
    seen.append(publishers.digest)
    publishers.close_feed(publisher, rank)
    publishers.hear(publisher)
    assert len({*seen}) == 4 and publishers.digest == seen[0]


def test_publishers_are_found_by_the_worker_that_their_source_names() -> None:
    publishers = Publishers()
    one, other = publishers.open(("ns", 7), None), publishers.open(("ns", 8), None)
    assert one is not None and other is not None
    publishers.bind(one, 1)
    publishers.bind(other, 1)
    publishers.bind(one, 2)
    publishers.bind(one, 2)
    assert publishers.bound == {("ns", 1): {("ns", 8): None}, ("ns", 2): {("ns", 7): None}}
    publishers.close(other)
    publishers.bind(one, None)
    assert publishers.bound == {}
