"""The pass machine, fed by hand on virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.discovery import discovery_pass, held_keys
from ingest.discovery.discovery_pass import SEED_US_MAX, DiscoveryPass
from ingest.discovery.pass_effects import (
    Append,
    Close,
    Connect,
    Effect,
    ListNames,
    Notify,
    OpenWatches,
    Phase,
    ReadValues,
    Refused,
    SleepUntil,
    StateChanged,
)
from ingest.discovery.source import (
    Connected,
    Denied,
    EndReason,
    FoundKey,
    GoneKey,
    KeysChanged,
    NamesCut,
    NamesEnded,
    NamesListed,
    NamesRefused,
    ReadAt,
    SourceEnded,
    ValuesEnded,
    ValuesRead,
    Waiting,
    Watched,
    WatchesStand,
)
from projections.events.codec import encode_record
from projections.events.discovery import (
    KeyDeleted,
    KeyPut,
    KeysDropped,
    Keyspace,
    PassBegan,
    PassEnded,
    PassSettled,
)
from projections.notices import DiscoveryKind

S = 1_000_000
WATCHED = tuple(Watched(keyspace, "prod") for keyspace in Keyspace)
INSTANCES, CARDS, CHANNELS, SOURCES = WATCHED


def key(name: str, watched: Watched = INSTANCES) -> bytes:
    return f"{watched.prefix}{name}".encode()


def put(name: str, value: bytes, revision: int = 1, watched: Watched = INSTANCES) -> FoundKey:
    return FoundKey(key(name, watched), revision, value, len(value))


def facts(effects: list[Effect]) -> list[Any]:
    return [effect.fact for effect in effects if isinstance(effect, Append)]


def only(effects: list[Effect], kind: type) -> Any:
    (found,) = [effect for effect in effects if isinstance(effect, kind)]
    return found


class Driver:
    """Feeds a machine the events of a whole pass."""

    def __init__(self, held: Any = None, initial_us: int = S // 2, max_us: int = 30 * S) -> None:
        self.machine = DiscoveryPass("etcd", ("prod",), held or {}, initial_us, max_us)
        self.now = 0

    def feed(self, *events: Any) -> list[Effect]:
        return [effect for event in events for effect in self.machine.receive(event, self.now)]

    def settle(self, names: dict[str, bytes], revision: int = 10) -> list[Effect]:
        """From CONNECTING to WATCHING with these instances in the store."""
        effects = self.feed(Connected("memory"))
        effects += self.feed(NamesListed(INSTANCES, tuple(map(key, names))))
        effects += self.feed(*(NamesEnded(one, revision) for one in WATCHED))
        effects += self.feed(ValuesRead(INSTANCES, tuple(put(n, v) for n, v in names.items())))
        return effects + self.feed(ValuesEnded(), WatchesStand())

    def wait_us(self, effects: list[Effect]) -> int:
        due = only(effects, SleepUntil).at_us
        assert due is not None
        return int(due) - self.now


@pytest.mark.req("ETCD-06")
def test_pass_lists_every_prefix_then_reads_then_watches_one_revision_later() -> None:
    driver = Driver()
    effects = driver.machine.start(0)
    assert facts(effects) == [PassBegan("etcd", ("prod",), 1, "start")]
    assert isinstance(effects[-1], Connect)
    assert only(driver.feed(Connected("memory")), ListNames).watched == WATCHED
    listed = tuple(ReadAt(one, 10 + place) for place, one in enumerate(WATCHED))
    effects = driver.feed(*(NamesEnded(*at) for at in listed))
    assert only(effects, ReadValues).listed == listed
    assert only(driver.feed(ValuesEnded()), OpenWatches).listed == listed
    effects = driver.feed(WatchesStand())
    assert facts(effects) == [PassSettled("etcd", ("prod",), 1, 0, 0, 13, ())]
    assert driver.machine.phase is Phase.WATCHING


@pytest.mark.req("ETCD-15")
@pytest.mark.field("B-121", "B-123")
def test_connected_only_while_changes_are_folded() -> None:
    driver = Driver()
    effects = driver.machine.start(0) + driver.settle({"a": b"1"})
    effects += driver.feed(SourceEnded(EndReason.STREAM, ""))
    shown = [effect.connected for effect in effects if isinstance(effect, StateChanged)]
    assert shown == [False] * 4 + [True, False]


@pytest.mark.field("B-007")
def test_facts_are_differences_and_removals_come_first() -> None:
    driver = Driver()
    driver.machine.start(0)
    driver.settle({"a": b"1", "b": b"1", "c": b"1"})
    driver.feed(SourceEnded(EndReason.COMPACTED, ""))
    driver.now = S
    driver.machine.tick(driver.now)
    made = facts(driver.settle({"aa": b"1", "b": b"2", "c": b"1"}, revision=20))
    assert [(type(fact), getattr(fact, "key", "")) for fact in made] == [
        (KeyDeleted, "a"),
        (KeyPut, "aa"),
        (KeyPut, "b"),
        (PassSettled, ""),
    ]
    assert made[0].revision == 20
    assert (made[-1].keys, made[-1].pass_number) == (3, 2)


@pytest.mark.req("ETCD-09")
def test_key_deleted_while_away_goes_at_the_next_pass() -> None:
    driver = Driver()
    driver.machine.start(0)
    driver.settle({"a": b"1", "b": b"1"})
    driver.feed(SourceEnded(EndReason.COMPACTED, ""))
    driver.now = S
    driver.machine.tick(driver.now)
    made = facts(driver.settle({"b": b"1"}))
    assert [type(fact) for fact in made] == [KeyDeleted, PassSettled]


def test_restarted_process_writes_only_what_differs_from_the_fold() -> None:
    first = Driver()
    first.machine.start(0)
    made = facts(first.settle({"a": b"1", "b": b"1"}))
    held = {(f.keyspace, f.namespace, f.key): f.value_digest for f in made if isinstance(f, KeyPut)}
    again = Driver(held)
    again.machine.start(0)
    made = facts(again.settle({"b": b"1", "c": b"1"}))
    assert [type(fact) for fact in made] == [KeyDeleted, KeyPut, PassSettled]


def test_keys_of_namespaces_that_left_the_settings_are_dropped_at_the_start() -> None:
    driver = Driver({(1, "old", "a"): bytes(32), (1, "prod", "a"): bytes(32)})
    effects = driver.machine.start(0)
    assert facts(effects)[0] == KeysDropped(("old",), "namespaces")
    assert len(driver.machine.held) == 1


def test_restored_store_with_smaller_revisions_is_read_like_any_other() -> None:
    driver = Driver()
    driver.machine.start(0)
    driver.settle({"a": b"new", "b": b"new"}, revision=900)
    driver.feed(SourceEnded(EndReason.STREAM, ""))
    driver.now = S
    assert facts(driver.machine.tick(driver.now)) == [PassBegan("etcd", ("prod",), 2, "ended")]
    made = facts(driver.settle({"a": b"old"}, revision=5))
    assert [(type(fact), fact.revision) for fact in made] == [(KeyDeleted, 5), (KeyPut, 1), (PassSettled, 5)]
    made = facts(driver.feed(KeysChanged(INSTANCES, (put("a", b"newer", 6),))))
    assert [fact.revision for fact in made] == [6]


@pytest.mark.req("ETCD-02")
def test_changes_become_facts_in_their_order() -> None:
    driver = Driver()
    driver.machine.start(0)
    driver.settle({"a": b"1"})
    changes = (put("b", b"1", 11), GoneKey(key("a"), 12), GoneKey(key("nobody"), 13), put("b", b"1", 14))
    made = facts(driver.feed(KeysChanged(INSTANCES, changes)))
    assert [(type(fact), fact.key, fact.revision) for fact in made] == [
        (KeyPut, "b", 11),
        (KeyDeleted, "a", 12),
    ]


def test_event_before_all_watches_stand_is_folded() -> None:
    driver = Driver()
    driver.machine.start(0)
    driver.feed(Connected("memory"), *(NamesEnded(one, 1) for one in WATCHED), ValuesEnded())
    made = facts(driver.feed(KeysChanged(INSTANCES, (put("early", b"1", 2),)), WatchesStand()))
    assert [type(fact) for fact in made] == [KeyPut, PassSettled]
    assert made[1].keys == 1


@pytest.mark.req("ETCD-12")
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_seed_has_thirty_seconds_in_every_phase(steps: int) -> None:
    driver = Driver()
    driver.machine.start(0)
    events: list[Any] = [[Connected("m")], [NamesEnded(one, 1) for one in WATCHED], [ValuesEnded()]]
    for some in events[:steps]:
        driver.feed(*some)
    assert driver.machine.tick(SEED_US_MAX - 1) == []
    ended = facts(driver.machine.tick(SEED_US_MAX))
    assert ended == [PassEnded("etcd", ("prod",), 1, "seed_timeout")]


@pytest.mark.req("ETCD-12")
def test_idle_watch_has_no_limit() -> None:
    driver = Driver()
    driver.machine.start(0)
    driver.settle({})
    assert driver.machine.tick(3_600 * S) == []
    assert driver.machine.phase is Phase.WATCHING


def test_limit_of_the_seed_rests_while_the_source_waits() -> None:
    driver = Driver()
    driver.machine.start(0)
    effects = driver.feed(Waiting("no folder"))
    assert only(effects, SleepUntil).at_us is None
    assert only(effects, StateChanged).detail == "waiting: no folder"
    assert driver.machine.tick(3_600 * S) == []
    driver.now = 3_600 * S
    assert only(driver.feed(Connected("memory")), SleepUntil).at_us == driver.now + SEED_US_MAX


@pytest.mark.req("ETCD-10")
def test_waits_double_and_each_begins_a_new_pass() -> None:
    driver = Driver(initial_us=S, max_us=5 * S)
    driver.machine.start(0)
    waits = []
    for number in range(2, 7):
        effects = driver.feed(SourceEnded(EndReason.UNREACHABLE, ""))
        assert facts(effects) == [PassEnded("etcd", ("prod",), number - 1, "unreachable")]
        only(effects, Close)
        waits.append(driver.wait_us(effects) // S)
        assert driver.machine.tick(driver.now + driver.wait_us(effects) - 1) == []
        driver.now += driver.wait_us(effects)
        assert facts(driver.machine.tick(driver.now)) == [PassBegan("etcd", ("prod",), number, "ended")]
    assert waits == [1, 2, 4, 5, 5]


@pytest.mark.req("ETCD-11")
@pytest.mark.parametrize(("stood_s", "waits"), [(0, [1, 2, 4]), (4.9, [1, 2, 4]), (5, [1, 1, 1])])
def test_wait_starts_anew_only_after_the_watches_stood_for_max(stood_s: float, waits: list[int]) -> None:
    driver = Driver(initial_us=S, max_us=5 * S)
    driver.machine.start(0)
    seen = []
    for _ in range(3):
        driver.settle({})
        driver.now += int(stood_s * S)
        effects = driver.feed(SourceEnded(EndReason.CANCELLED, ""))
        seen.append(driver.wait_us(effects) // S)
        driver.now += driver.wait_us(effects)
        driver.machine.tick(driver.now)
    assert seen == waits


@pytest.mark.req("ETCD-03", "ETCD-08")
def test_sources_that_may_not_be_read_are_gone_on_without_and_warned_about_once() -> None:
    driver = Driver({(4, "prod", "topic/kv-events/1"): bytes(32)})
    warnings: list[Any] = []
    for _ in range(2):
        effects = driver.machine.start(0) if driver.now == 0 else driver.machine.tick(driver.now)
        effects += driver.feed(Connected("m"), *(NamesEnded(one, 3) for one in WATCHED[:3]), Denied(SOURCES))
        assert [at.watched for at in only(effects, ReadValues).listed] == list(WATCHED[:3])
        effects += driver.feed(ValuesEnded(), WatchesStand())
        settled = [fact for fact in facts(effects) if isinstance(fact, PassSettled)]
        assert [fact.unwatched for fact in settled] == [(4,)]
        assert driver.machine.phase is Phase.WATCHING
        warnings += [effect for effect in effects if isinstance(effect, Notify)]
        driver.feed(SourceEnded(EndReason.STREAM, ""))
        driver.now += 100 * S
    assert len(warnings) == 1
    assert len(driver.machine.held) == 0, "what cannot be watched is not vouched for"


@pytest.mark.parametrize("denied", WATCHED[:3])
def test_any_other_prefix_that_may_not_be_read_ends_the_pass(denied: Watched) -> None:
    driver = Driver()
    driver.machine.start(0)
    effects = driver.feed(Connected("m"), Denied(denied))
    assert facts(effects) == [PassEnded("etcd", ("prod",), 1, "permission")]
    assert driver.machine.phase is Phase.BACKOFF


@pytest.mark.req("ETCD-16")
def test_keys_that_are_no_keys_are_counted_and_warned_about_once() -> None:
    driver = Driver()
    driver.machine.start(0)
    driver.settle({})
    bad = (
        FoundKey(INSTANCES.prefix.encode() + b"\xff", 2, b"", 0),
        FoundKey(INSTANCES.prefix.encode() + b"x" * 3_000, 2, b"", 0),
        FoundKey(INSTANCES.prefix.encode(), 2, b"", 0),
        FoundKey(b"v1/instances/prod2/b/generate/1", 2, b"", 0),
    )
    first = driver.feed(KeysChanged(INSTANCES, bad))
    later = driver.feed(
        KeysChanged(INSTANCES, bad), KeysChanged(INSTANCES, tuple(GoneKey(b.key, 3) for b in bad))
    )
    assert facts(first) == facts(later) == []
    assert sum(effect.notice.times for effect in first if isinstance(effect, Refused)) == 4
    assert [effect.notice.level for effect in first if isinstance(effect, Refused)] == ["warning"] + [
        "debug"
    ] * 3
    assert {effect.notice.level for effect in later if isinstance(effect, Refused)} == {"debug"}
    assert driver.machine.phase is Phase.WATCHING


def test_odd_entries_of_a_store_are_counted() -> None:
    driver = Driver()
    driver.machine.start(0)
    effects = driver.feed(Connected("m"), NamesRefused(Keyspace.CARDS, 3), NamesCut(Keyspace.CHANNELS))
    notices = [effect.notice for effect in effects if isinstance(effect, Refused)]
    assert [(n.kind, n.identity, n.times) for n in notices] == [
        (DiscoveryKind.MALFORMED, "cards", 3),
        (DiscoveryKind.OVER_CAPACITY, "channels", 1),
    ]


@pytest.mark.req("MEM-03", "MEM-05", "MEM-06")
def test_flooded_keyspace_is_counted_and_read_again_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_keys, "KEYS_PER_KEYSPACE_MAX", 8)
    monkeypatch.setattr(discovery_pass, "ROOM_KEYS", 7)
    driver = Driver()
    driver.machine.start(0)
    store = {f"k{number:02}": b"1" for number in range(20)}
    effects = driver.settle(store)
    assert len([fact for fact in facts(effects) if isinstance(fact, KeyPut)]) == 8
    (notice,) = [effect.notice for effect in effects if isinstance(effect, Refused)]
    assert (notice.kind, notice.times) == (DiscoveryKind.OVER_CAPACITY, 12)
    again = driver.feed(KeysChanged(INSTANCES, (put("k15", b"2", 30),)))
    assert facts(again) == [], "what is refused is not in the log, however often it comes"
    effects = driver.feed(KeysChanged(INSTANCES, (put("k03", b"2", 31), GoneKey(key("k00"), 32))))
    assert [type(fact) for fact in facts(effects)] == [KeyPut, KeyDeleted, PassEnded]
    assert facts(effects)[-1].reason == "room"
    del store["k00"]
    driver.now += driver.wait_us(effects)
    driver.machine.tick(driver.now)
    made = facts(driver.settle(store | {"k03": b"2"}))
    assert [fact.key for fact in made if isinstance(fact, KeyPut)] == ["k08"]


def test_stop_ends_an_open_pass_and_later_events_make_nothing() -> None:
    driver = Driver()
    driver.machine.start(0)
    driver.settle({})
    assert facts(driver.machine.stop()) == [PassEnded("etcd", ("prod",), 1, "stopped")]
    assert driver.feed(KeysChanged(INSTANCES, (put("a", b"1"),)), SourceEnded(EndReason.STREAM, "")) == []
    assert driver.machine.tick(10**12) == []
    assert facts(driver.machine.stop()) == []


def test_repeat_takes_over_what_the_fold_holds() -> None:
    driver = Driver()
    driver.machine.start(0)
    driver.settle({"a": b"1"})
    effects = driver.machine.repeat({}, driver.now)
    assert facts(effects) == [PassEnded("etcd", ("prod",), 1, "repeated")]
    driver.now += driver.wait_us(effects)
    driver.machine.tick(driver.now)
    assert [type(fact) for fact in facts(driver.settle({"a": b"1"}))] == [KeyPut, PassSettled]


KEYS = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=30).map(lambda text: f"v1/instances/prod/{text}".encode(errors="replace")),
    st.sampled_from([key("a"), key("b"), b"", INSTANCES.prefix.encode(), b"v1/instances/prod/" + b"%" * 50]),
)
CHANGES = st.lists(
    st.one_of(
        st.builds(
            lambda k, r, v: FoundKey(k, r, v, len(v)), KEYS, st.integers(0, 2**63 - 1), st.binary(max_size=60)
        ),
        st.builds(lambda k, r: FoundKey(k, r, None, 2**25), KEYS, st.integers(0, 2**63 - 1)),
        st.builds(GoneKey, KEYS, st.integers(0, 2**63 - 1)),
    ),
    max_size=10,
)


@pytest.mark.req("ETCD-16", "MEM-08")
@settings(max_examples=150, deadline=None)
@given(batches=st.lists(st.tuples(st.sampled_from(WATCHED), CHANGES), max_size=6))
def test_no_key_and_no_value_stops_the_watch(batches: list[Any]) -> None:
    driver = Driver()
    driver.machine.start(0)
    driver.settle({})
    for watched, changes in batches:
        for fact in facts(driver.feed(KeysChanged(watched, tuple(changes)))):
            encode_record(1, bytes(16), 1, 1, fact)
        assert driver.machine.phase is Phase.WATCHING
