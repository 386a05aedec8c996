"""Identities claimed twice: all are refused, and each set of keys is said once."""

from __future__ import annotations

import itertools

import pytest

from projections.events.discovery import Keyspace
from projections.notices import DiscoveryNotice, Notice
from projections.registry import claims as module
from projections.registry.claims import Claims, identity_of, instance_identity
from projections.registry.records import parse_card, parse_channel, parse_endpoint, parse_source
from tests.projections.fleet_script import NS, card, channel, endpoint, source

ONE = instance_identity(NS, 7)


def said(claims: Claims) -> list[DiscoveryNotice]:
    notices: list[Notice] = []
    claims.report(ONE, notices)
    return [n for n in notices if isinstance(n, DiscoveryNotice)]


@pytest.mark.req("DUP-01")
def test_two_keys_claim_it_for_nobody_in_any_order() -> None:
    for order in itertools.permutations(("a", "b", "c")):
        claims = Claims()
        for key in order:
            claims.add(ONE, key)
        assert claims.sole(ONE) is None and list(claims.holders(ONE)) == ["a", "b", "c"]
        claims.remove(ONE, order[1])
        assert claims.sole(ONE) is None
        claims.remove(ONE, order[0])
        assert claims.sole(ONE) == order[2]
        claims.remove(ONE, order[2])
        assert claims.sole(ONE) is None and list(claims.identities()) == []


@pytest.mark.req("DUP-05")
def test_a_conflict_names_four_keys_and_counts_all() -> None:
    claims = Claims()
    for n in range(6):
        claims.add(ONE, f"k{n}")
    (notice,) = said(claims)
    assert notice.kind.label == "duplicate" and notice.level == "warning"
    assert notice.keys == ("k0", "k1", "k2", "k3") and notice.records == 6
    assert notice.identity == f"{NS}/7" and "generate" in notice.what


@pytest.mark.req("DUP-06")
def test_each_set_of_keys_is_said_once() -> None:
    claims = Claims()
    claims.add(ONE, "a")
    assert said(claims) == []
    claims.add(ONE, "b")
    assert [n.level for n in said(claims)] == ["warning"]
    assert [n.level for n in said(claims)] == ["debug"]
    claims.remove(ONE, "b")
    claims.add(ONE, "b")
    assert [n.level for n in said(claims)] == ["debug"], "the same set formed again"
    claims.add(ONE, "c")
    assert [n.level for n in said(claims)] == ["warning"], "another set"
    other = Claims()
    other.restore_reported(claims.reported)
    other.add(ONE, "b")
    other.add(ONE, "a")
    assert [n.level for n in said(other)] == ["debug"], "reported sets are state"


def test_remembered_sets_are_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONFLICTS_REPORTED_MAX", 2)
    claims = Claims()
    for key in "abcd":
        claims.add(ONE, key)
        said(claims)
    assert len(claims.reported) == 2
    for key in "dc":
        claims.remove(ONE, key)
    assert [n.level for n in said(claims)] == ["warning"], "the oldest set was forgotten"


@pytest.mark.req("DUP-08")
def test_what_claims_an_identity_and_what_does_not() -> None:
    def claimed(keyspace: Keyspace, record: object, namespace: str = NS) -> object:
        return identity_of(int(keyspace), namespace, record)

    instances, cards, channels, sources = Keyspace
    assert claimed(instances, parse_endpoint(endpoint(7))) == ONE
    assert claimed(instances, parse_endpoint(endpoint(7, "decode"))) == ONE, "a worker is (namespace, id)"
    assert claimed(instances, parse_endpoint(endpoint(7, name="load_metrics"))) is None
    assert claimed(instances, parse_endpoint(b"rubbish")) is None
    different = [
        claimed(instances, parse_endpoint(endpoint(7)), "other"),
        claimed(cards, parse_card(card(7))),
        claimed(cards, parse_card(card(7, suffix="a"))),
        claimed(cards, parse_card(card(7, suffix="b"))),
        claimed(channels, parse_channel(channel(7))),
        claimed(channels, parse_channel(channel(7, topic="kv-events"))),
        claimed(sources, parse_source(source(7, 1))),
        ONE,
    ]
    assert len(set(different)) == len(different) and None not in different
    assert claimed(channels, parse_channel(channel(7, topic="active_sequences_events"))) is None


def test_thousands_of_keys_with_one_identity_stay_cheap() -> None:
    claims = Claims()
    for n in range(16_384):
        claims.add(ONE, f"{n * 7919 % 16_384:05d}")
        claims.report(ONE, [])
    assert len(claims.holders(ONE)) == 16_384 and list(claims.holders(ONE)[:2]) == ["00000", "00001"]
