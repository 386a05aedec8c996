"""Held keys: passes, repetitions, ceilings, and digests that a pass can be compared with."""

from __future__ import annotations

import pytest
import xxhash

from projections.bounds import CARD_RETAINED_BYTES_MAX, KEY_BYTES_MAX
from projections.events.discovery import KeyRefusal, Keyspace, PassBegan, PassSettled
from projections.notices import DiscoveryKind, DiscoveryNotice, Notice
from projections.registry import keyspace as module
from projections.registry.json_text import Unreadable
from projections.registry.keyspace import Keyspaces, key_digest_input
from projections.registry.records import CardRecord
from tests.projections.fleet_script import NS, card, deleted, endpoint, put

INST, C = Keyspace.INSTANCES, Keyspace.CARDS


def kinds(notices: list[Notice]) -> list[tuple[str, str]]:
    return [(n.kind.label, n.level) for n in notices if isinstance(n, DiscoveryNotice)]


def pass_digest(keys: Keyspaces) -> int:
    total = 0
    for (keyspace, namespace, key), digest in keys.held_digests([NS]).items():
        total += xxhash.xxh3_64_intdigest(key_digest_input(keyspace, namespace, key, digest))
    return total & ((1 << 64) - 1)


def settled(keys: Keyspaces, revision: int = 100) -> bool:
    return keys.settle_pass(PassSettled("etcd", (NS,), 1, len(keys), pass_digest(keys), revision))


@pytest.fixture
def small_ceiling(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "KEYS_PER_KEYSPACE_MAX", 3)
    return 3


def test_names_cannot_run_into_each_other_in_the_digest_input() -> None:
    parts = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc")]
    assert len({key_digest_input(1, namespace, key, b"d" * 32) for namespace, key in parts}) == 4


def test_a_put_and_its_delete_leave_no_trace() -> None:
    keys = Keyspaces()
    keys.put(put(INST, "k", endpoint(1)), 5, [])
    assert len(keys) == 1 and keys.digest != 0 and keys.value_bytes > 0
    change = keys.delete(deleted(INST, "k"))
    assert change is not None and change.after is None
    assert (len(keys), keys.digest, keys.value_bytes, keys.count(1)) == (0, 0, 0, 0)
    assert keys.delete(deleted(INST, "k")) is None


def test_the_digest_does_not_depend_on_the_order_of_puts() -> None:
    facts = [put(INST, f"k{n}", endpoint(n)) for n in range(20)]
    one, other = Keyspaces(), Keyspaces()
    for fact in facts:
        one.put(fact, 5, [])
    for fact in reversed(facts):
        other.put(fact, 5, [])
    assert one.digest == other.digest and list(one.held()) == list(other.held())


@pytest.mark.req("EVS-15")
@pytest.mark.field("B-127")
def test_a_put_that_comes_again_has_no_effect() -> None:
    keys = Keyspaces()
    fact = put(INST, "k", endpoint(1), revision=7)
    assert keys.put(fact, 5, []) is not None
    digest = keys.digest
    assert keys.put(fact, 9, []) is None
    assert keys.digest == digest


@pytest.mark.req("EVS-15")
def test_a_repetition_from_a_watch_neither_reverts_nor_revives_a_key() -> None:
    keys = Keyspaces()
    settled(keys)
    keys.put(put(INST, "k", endpoint(1), revision=101), 1, [])
    keys.put(put(INST, "k", endpoint(2), revision=103), 2, [])
    assert keys.put(put(INST, "k", endpoint(1), revision=101), 3, []) is None
    keys.delete(deleted(INST, "k", revision=104))
    assert keys.put(put(INST, "k", endpoint(2), revision=103), 4, []) is None
    assert len(keys) == 0


def test_watches_of_two_keyspaces_may_come_in_any_order() -> None:
    keys = Keyspaces()
    settled(keys)
    assert keys.put(put(INST, "a", endpoint(1), revision=120), 1, []) is not None
    assert keys.put(put(C, "a", card(1), revision=110), 1, []) is not None
    assert keys.put(put(INST, "b", endpoint(2), revision=120), 1, []) is not None, "one transaction, two keys"


def test_a_restored_store_may_count_anew_after_a_pass_began() -> None:
    keys = Keyspaces()
    settled(keys)
    keys.put(put(INST, "a", endpoint(1), revision=900), 1, [])
    keys.begin_pass(PassBegan("etcd", (NS,), 2, "ended"))
    assert keys.put(put(INST, "a", endpoint(2), revision=3), 1, []) is not None
    settled(keys, revision=3)
    assert keys.put(put(INST, "b", endpoint(3), revision=4), 1, []) is not None


def test_settling_tells_whether_both_sides_hold_the_same_keys() -> None:
    keys = Keyspaces()
    keys.put(put(INST, "a", endpoint(1)), 1, [])
    keys.put(put(INST, "a", endpoint(1), namespace="other"), 1, [])
    one = xxhash.xxh3_64_intdigest(key_digest_input(1, NS, "a", put(INST, "a", endpoint(1)).value_digest))
    assert not keys.settle_pass(PassSettled("etcd", (NS,), 1, 2, one, 5))
    assert not keys.passes[NS].settled, "its reader is to list everything again"
    assert not keys.settle_pass(PassSettled("etcd", (NS,), 1, 1, one ^ 1, 5))
    assert keys.settle_pass(PassSettled("etcd", (NS,), 1, 1, one, 5))
    held = keys.passes[NS]
    assert (held.settled, held.ended, held.revision) == (True, False, 5)
    keys.end_pass((NS, "never began"))
    assert keys.passes[NS].ended and "never began" not in keys.passes


@pytest.mark.req("MEM-03", "MEM-04")
def test_a_full_keyspace_refuses_new_keys_and_leaves_the_others_alone(small_ceiling: int) -> None:
    for keyspace in Keyspace:
        keys = Keyspaces()
        notices: list[Notice] = []
        for n in range(small_ceiling + 2):
            keys.put(put(keyspace, f"k{n}", b"{}"), 1, notices)
        assert keys.count(keyspace) == small_ceiling
        assert kinds(notices) == [("over_capacity", "warning"), ("over_capacity", "debug")]
        other = Keyspace.CARDS if keyspace is not Keyspace.CARDS else Keyspace.INSTANCES
        assert keys.put(put(other, "k", b"{}"), 1, notices) is not None


@pytest.mark.req("MEM-05", "MEM-06")
def test_at_the_ceiling_held_keys_are_updated_and_a_deletion_makes_room(small_ceiling: int) -> None:
    keys = Keyspaces()
    notices: list[Notice] = []
    for n in range(small_ceiling + 1):
        keys.put(put(INST, f"k{n}", endpoint(n)), 1, notices)
    assert keys.put(put(INST, "k0", endpoint(0, device_type="cuda")), 2, notices) is not None
    assert len(notices) == 1
    keys.delete(deleted(INST, "k1"))
    assert keys.put(put(INST, "new", endpoint(9)), 3, notices) is not None
    assert keys.put(put(INST, "newer", endpoint(10)), 4, notices) is None
    assert kinds(notices)[1:] == [("over_capacity", "warning")], "full anew is said anew"


@pytest.mark.req("MEM-01")
def test_an_oversized_value_is_held_unread() -> None:
    keys = Keyspaces()
    fact = put(C, "k", b"")._replace(refusal=int(KeyRefusal.OVERSIZED), value_bytes=17 << 20)
    change = keys.put(fact, 1, [])
    assert change is not None and change.after is not None and change.after.record is None


@pytest.mark.req("MEM-02")
def test_beyond_the_sum_of_all_values_only_what_we_read_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CARDS_INTERNED_BYTES_MAX", 3_000)
    keys = Keyspaces()
    for n in range(4):
        keys.put(put(C, f"k{n}", card(n, template="x" * 1_000)), 1, [])
    held = [keys.get((2, NS, f"k{n}")) for n in range(4)]
    assert [h.refusal for h in held if h] == [
        KeyRefusal.NONE,
        KeyRefusal.NONE,
        KeyRefusal.CUT,
        KeyRefusal.CUT,
    ]
    assert all(h and isinstance(h.record, CardRecord) and h.record.card.block_size == 16 for h in held)
    again = Keyspaces()
    for fact in keys.held():
        again.restore(fact)
    assert again.digest == keys.digest and again.value_bytes == keys.value_bytes
    assert [again.get((2, NS, f"k{n}")) for n in range(4)] == held


@pytest.mark.req("MEM-02")
def test_a_value_above_its_own_ceiling_is_cut_whoever_wrote_it() -> None:
    keys = Keyspaces()
    keys.put(put(C, "k", card(1, template="x" * CARD_RETAINED_BYTES_MAX)), 1, [])
    held = keys.get((2, NS, "k"))
    assert held is not None and held.refusal == KeyRefusal.CUT and len(held.value) < 1_000


@pytest.mark.req("RED-17")
def test_equal_values_are_kept_once() -> None:
    keys = Keyspaces()
    value = card(1)
    for n in range(3):
        keys.put(put(C, f"k{n}", bytes(bytearray(value))), 1, [])
    values = [keys.get((2, NS, f"k{n}")) for n in range(3)]
    assert keys.value_bytes == len(value)
    assert all(h is not None and values[0] is not None and h.value is values[0].value for h in values)
    keys.delete(deleted(C, "k0"))
    assert keys.value_bytes == len(value)


def test_a_drop_takes_keys_and_passes_of_its_namespaces() -> None:
    keys = Keyspaces()
    for namespace in ("a", "b"):
        keys.begin_pass(PassBegan("etcd", (namespace,), 1, "start"))
        for n in (2, 1):
            keys.put(put(INST, f"k{n}", endpoint(n), namespace=namespace), 1, [])
    changes = keys.drop(("a",))
    assert [change.name[2] for change in changes] == ["k1", "k2"]
    assert set(keys.passes) == {"b"} and len(keys) == 2
    assert set(keys.held_digests(())) == {(1, "b", "k1"), (1, "b", "k2")}
    assert len(keys.drop(())) == 2 and not keys.passes


def test_odd_facts_are_refused_and_held_ones_are_not_harmed() -> None:
    keys = Keyspaces()
    notices: list[Notice] = []
    assert keys.put(put(INST, "k", b"{}")._replace(keyspace=9), 1, notices) is None
    assert keys.put(put(INST, "x" * (KEY_BYTES_MAX + 1), b"{}"), 1, notices) is None
    assert keys.delete(deleted(INST, "k")._replace(keyspace=9)) is None
    assert [n.kind for n in notices if isinstance(n, DiscoveryNotice)] == [DiscoveryKind.REFUSED] * 2
    odd = put(INST, "k", b"no json")._replace(revision=-5, value_bytes=-1, refusal=9)
    change = keys.put(odd, 1, notices)
    assert change is not None and change.after is not None and change.after.record is Unreadable.JSON
