"""Differences against what was logged, and the mirror of the fold's held keys."""

from __future__ import annotations

import json
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.discovery import held_keys
from ingest.discovery.held_keys import HeldKeys, Sighting
from ingest.discovery.source import FoundKey, Watched
from projections.bounds import CARD_RETAINED_BYTES_MAX, RECORD_VALUE_BYTES_MAX
from projections.events.discovery import KeyDeleted, KeyPut, KeyRefusal, Keyspace, PassBegan, PassSettled
from projections.notices import Notice
from projections.registry import keyspace as fold_keyspace
from projections.registry.keyspace import Keyspaces
from projections.registry.records import parse_card

INSTANCES = Watched(Keyspace.INSTANCES, "prod")
CARDS = Watched(Keyspace.CARDS, "prod")


def found(value: bytes | None, revision: int = 1, size: int | None = None) -> FoundKey:
    return FoundKey(b"unused", revision, value, len(value or b"") if size is None else size)


@pytest.mark.field("B-127")
def test_first_sighting_is_a_put_and_the_same_value_is_none() -> None:
    held = HeldKeys({})
    put = held.sighted(INSTANCES, "a", found(b"{}", 7))
    assert put == KeyPut(1, "prod", "a", 7, b"{}", 2, blake3(b"{}").digest(), 0)
    assert held.sighted(INSTANCES, "a", found(b"{}", 8)) is Sighting.UNCHANGED
    assert isinstance(held.sighted(INSTANCES, "a", found(b"[]", 9)), KeyPut)
    assert len(held) == 1


def test_key_held_by_the_fold_is_not_logged_again() -> None:
    held = HeldKeys({(1, "prod", "a"): blake3(b"{}").digest()})
    assert held.sighted(INSTANCES, "a", found(b"{}")) is Sighting.UNCHANGED
    assert held.gone(INSTANCES, "a", 4) == KeyDeleted(1, "prod", "a", 4)
    assert held.gone(INSTANCES, "a", 5) is None


def test_unseen_keys_are_removed_in_key_order() -> None:
    held = HeldKeys({(space, "prod", key): bytes(32) for space in (2, 1) for key in ("c", "a", "b")})
    held.begin_listing()
    held.listed(INSTANCES, ["b", "unknown"])
    removed = held.remove_unseen({(1, "prod"): 50})
    assert [(fact.keyspace, fact.key, fact.revision) for fact in removed] == [
        (1, "a", 50),
        (1, "c", 50),
        (2, "a", 0),
        (2, "b", 0),
        (2, "c", 0),
    ]
    assert len(held) == 1
    assert held.remove_unseen({}) == []


@pytest.mark.req("MEM-03", "MEM-05", "MEM-06")
def test_full_keyspace_takes_updates_and_no_new_key_until_one_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_keys, "KEYS_PER_KEYSPACE_MAX", 2)
    held = HeldKeys({})
    for key in ("a", "b"):
        assert isinstance(held.sighted(INSTANCES, key, found(b"1")), KeyPut)
    assert held.sighted(INSTANCES, "c", found(b"1")) is Sighting.OVER_CAPACITY
    assert held.sighted(Watched(Keyspace.INSTANCES, "other"), "a", found(b"1")) is Sighting.OVER_CAPACITY
    assert isinstance(held.sighted(INSTANCES, "a", found(b"2")), KeyPut)
    assert isinstance(held.sighted(CARDS, "c", found(b"1")), KeyPut)
    held.gone(INSTANCES, "b", 3)
    assert isinstance(held.sighted(INSTANCES, "c", found(b"1")), KeyPut)


def card(padding: int) -> bytes:
    record = {
        "type": "Model",
        "namespace": "prod",
        "component": "backend",
        "endpoint": "generate",
        "instance_id": 26,
        "card_json": {
            "display_name": "tiny",
            "worker_type": "decode",
            "kv_cache_block_size": 16,
            "chat_template": "x" * padding,
            "runtime_config": {"total_kv_blocks": 512},
        },
    }
    return json.dumps(record).encode()


@pytest.mark.req("MEM-02")
def test_value_above_a_mebibyte_is_logged_as_its_typed_fields() -> None:
    value = card(CARD_RETAINED_BYTES_MAX)
    put = HeldKeys({}).sighted(CARDS, "backend/generate/1a", found(value))
    assert isinstance(put, KeyPut)
    assert (put.refusal, put.value_bytes) == (KeyRefusal.CUT, len(value))
    assert put.value_digest == blake3(value).digest()
    assert len(put.value) < 4_096
    cut: Any = parse_card(put.value)
    whole: Any = parse_card(value)
    assert cut.card == whole.card._replace(model="tiny")
    assert cut.instance_id == 26


def test_value_of_exactly_a_mebibyte_is_logged_verbatim() -> None:
    value = b"x" * CARD_RETAINED_BYTES_MAX
    put = HeldKeys({}).sighted(CARDS, "a", found(value))
    assert isinstance(put, KeyPut)
    assert (put.refusal, put.value) == (KeyRefusal.NONE, value)


def test_large_value_that_nobody_can_read_is_cut_to_nothing() -> None:
    put = HeldKeys({}).sighted(CARDS, "a", found(b"[" * (CARD_RETAINED_BYTES_MAX + 1)))
    assert isinstance(put, KeyPut)
    assert (put.refusal, put.value) == (KeyRefusal.CUT, b"")


@pytest.mark.req("MEM-01")
def test_value_above_sixteen_mebibytes_is_never_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(value: bytes) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(held_keys, "_PARSERS", dict.fromkeys(map(int, Keyspace), never))
    held = HeldKeys({})
    size = RECORD_VALUE_BYTES_MAX + 1
    put = held.sighted(CARDS, "a", found(bytes(size)))
    assert isinstance(put, KeyPut)
    assert (put.refusal, put.value, put.value_bytes) == (KeyRefusal.OVERSIZED, b"", size)


def test_unread_value_is_oversized_and_changes_with_its_revision() -> None:
    held = HeldKeys({})
    unread = found(None, 5, RECORD_VALUE_BYTES_MAX + 1)
    put = held.sighted(CARDS, "a", unread)
    assert isinstance(put, KeyPut) and put.refusal == KeyRefusal.OVERSIZED
    assert held.sighted(CARDS, "a", unread) is Sighting.UNCHANGED
    assert isinstance(held.sighted(CARDS, "a", unread._replace(revision=6)), KeyPut)


def test_drop_forgets_the_named_namespaces_or_all() -> None:
    held = HeldKeys({(1, name, "k"): bytes(32) for name in ("a", "b", "c")})
    assert held.drop(("a", "x"))
    assert held.namespaces() == ("b", "c")
    assert held.drop(())
    assert (len(held), held.digest, held.count(1)) == (0, 0, 0)
    assert not held.drop(())


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "gone"]),
        st.sampled_from(list(Keyspace)),
        st.sampled_from(["a", "b", "c", "d"]),
        st.binary(max_size=2),
    ),
    max_size=40,
)


@settings(max_examples=100, deadline=None)
@given(actions=ACTIONS)
def test_fold_of_the_facts_holds_exactly_what_is_remembered(actions: list[Any]) -> None:
    """At the ceiling too: with two keys a keyspace the fold never refuses what was given out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_keys, "KEYS_PER_KEYSPACE_MAX", 2)
        patch.setattr(fold_keyspace, "KEYS_PER_KEYSPACE_MAX", 2)
        held, fold = HeldKeys({}), Keyspaces()
        notices: list[Notice] = []
        fold.begin_pass(PassBegan("etcd", ("prod",), 1, "start"))
        for revision, (action, keyspace, key, value) in enumerate(actions, 1):
            watched = Watched(keyspace, "prod")
            if action == "put":
                fact = held.sighted(watched, key, found(value, revision))
                if isinstance(fact, KeyPut):
                    fold.put(fact, revision, notices)
            else:
                deleted = held.gone(watched, key, revision)
                if deleted is not None:
                    fold.delete(deleted)
        settled = PassSettled("etcd", ("prod",), 1, len(held), held.digest, len(actions))
        assert fold.settle_pass(settled)
        assert notices == []
        for namespaces in (("prod",), ()):  # () is all of them, as for KeysDropped
            restarted = HeldKeys(fold.held_digests(namespaces))
            assert (len(restarted), restarted.digest) == (len(held), held.digest)
