"""What operators look at, and what a later pick may still name."""

from __future__ import annotations

import pytest

from projections import status as module
from projections.bounds import WRITER_FORGOTTEN_US
from projections.events.control import (
    ConfigAdopted,
    ConfigProposed,
    PickSettings,
    Pinged,
    ReplicaGone,
    ReplicaStarted,
)
from projections.events.signals import (
    Family,
    SubscriptionChanged,
    SubscriptionContinued,
    SubscriptionState,
    Transport,
)
from projections.notices import IntakeNotice, StatusNotice
from tests.projections.fleet_script import NS, REPLICA, Script

PICK = PickSettings("load_based", "etcd", (NS,), (), 3_000_000)


def started(replica: bytes = REPLICA, label: str = "host-1") -> ReplicaStarted:
    return ReplicaStarted(replica, label, "router", "0.1.0", "3.11", (1, 2), 62, ())


def adopted(version: int, enabled: bool = True) -> ConfigAdopted:
    return ConfigAdopted(version, "file", b"d" * 32, "{}", PICK, enabled)


def subscription(
    publisher_id: int, state: SubscriptionState, family: Family = Family.LOAD, connection: int = 1
) -> SubscriptionChanged:
    return SubscriptionChanged(
        int(family), NS, publisher_id, "backend", int(state), connection, int(Transport.DIRECT), "word"
    )


@pytest.mark.req("EVS-16")
def test_a_subscription_that_another_owner_continues_is_connected_again() -> None:
    script = Script()
    script.say(subscription(7, SubscriptionState.CONNECTED))
    script.say(SubscriptionContinued(int(Family.LOAD), NS, 7, "backend", 8, int(Transport.DIRECT)))
    held = script.fold.state.status.subscriptions[(int(Family.LOAD), NS, 7)]
    assert (held.state, held.connection, held.reason) == (SubscriptionState.CONNECTED, 8, "continued")


def words(script: Script) -> list[str]:
    return [n.what for n in script.notices if isinstance(n, StatusNotice)]


def test_settings_are_found_by_the_version_that_a_pick_names() -> None:
    script = Script()
    assert script.fold.settings_now is None
    for version in (1, 2):
        script.say(adopted(version))
    found = script.fold.settings(1)
    assert found is not None and (found.version, found.pick, found.offset) == (1, PICK, 1)
    assert script.fold.settings_now is script.fold.settings(2) and script.fold.settings(3) is None


def test_a_version_that_is_not_newer_takes_no_effect() -> None:
    script = Script()
    script.say(adopted(2))
    before = script.fold.digests()
    assert script.say(adopted(2)) is None and script.say(adopted(1)) is None
    assert script.fold.settings(1) is None
    assert dict(script.fold.digests())["status"] != dict(before)["status"], "records since the tick count"


def test_the_oldest_settings_go_beyond_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTINGS_KEPT_MAX", 3)
    script = Script()
    for version in range(1, 6):
        script.say(adopted(version))
    assert [version for version in range(1, 6) if script.fold.settings(version)] == [3, 4, 5]


@pytest.mark.req("RED-23")
def test_discovery_is_enabled_as_the_settings_in_force_say() -> None:
    script = Script()
    status = script.fold.state.status
    assert not status.is_enabled()
    for version, enabled in ((1, False), (2, True), (3, False)):
        script.say(adopted(version, enabled))
        assert status.is_enabled() is enabled


def test_a_replica_is_known_from_its_first_record_and_keeps_its_numbers() -> None:
    script = Script()
    status = script.fold.state.status
    script.say(Pinged(REPLICA, 1, -1))
    held = status.replica(REPLICA)
    assert held is not None and held.label == "" and held.own_seq == 0
    status.hear(REPLICA, 5, own_seq=9)
    status.hear(REPLICA, 5, own_seq=3)
    script.say(started())
    held = status.replica(REPLICA)
    assert held is not None and (held.own_seq, held.flags, held.label) == (9, (1, 2), "host-1")
    assert status.replica(b"nobody") is None


@pytest.mark.req("EVS-05")
def test_any_later_record_lifts_that_a_replica_is_gone() -> None:
    script = Script()
    status = script.fold.state.status
    script.say(started())
    script.say(ReplicaGone(REPLICA, 0))
    assert words(script) == ["replica gone"]
    held = status.replica(REPLICA)
    assert held is not None and held.gone_at == script.time
    script.say(ReplicaGone(REPLICA, 0))
    assert words(script) == []
    script.say(ConfigProposed(REPLICA, b"", "{}", PICK))
    held = status.replica(REPLICA)
    assert held is not None and held.gone_at is None
    script.say(ReplicaGone(b"nobody", 0))
    assert words(script) == []


def test_gone_replicas_are_forgotten_after_a_day_and_silent_ones_are_not() -> None:
    script = Script()
    for replica in (b"b", b"a"):
        script.say(started(replica), writer=replica.ljust(16))
    script.say(ReplicaGone(b"a", 0))
    script.tick(step=WRITER_FORGOTTEN_US + 10_000)
    assert [held.replica for held in script.fold.state.status.replicas()] == [b"b"]


def test_replicas_are_bounded_and_listed_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPLICAS_MAX", 2)
    script = Script()
    for replica in (b"c", b"a", b"b"):
        script.say(started(replica), writer=replica.ljust(16))
        script.tick()
    assert [held.replica for held in script.fold.state.status.replicas()] == [b"a", b"b"]


@pytest.mark.req("ADM-05")
def test_subscriptions_show_their_newest_state_until_they_end() -> None:
    script = Script()
    rows = script.fold.state.status.subscriptions
    script.say(subscription(9, SubscriptionState.CONNECTING))
    script.say(subscription(9, SubscriptionState.CONNECTED, connection=2))
    script.say(subscription(9, SubscriptionState.PENDING, Family.KV))
    assert {key: (held.state, held.connection) for key, held in rows.items()} == {
        (1, NS, 9): (SubscriptionState.CONNECTED, 2),
        (2, NS, 9): (SubscriptionState.PENDING, 1),
    }
    script.say(subscription(9, SubscriptionState.ENDED))
    assert list(rows) == [(2, NS, 9)]


def test_nobody_is_connected_to_a_new_owner_until_it_says_so() -> None:
    script = Script()
    script.say(subscription(9, SubscriptionState.CONNECTED))
    script.open(b"another owner---")
    (held,) = script.fold.state.status.subscriptions.values()
    assert (held.state, held.reason) == (SubscriptionState.PENDING, "owner_changed")


def test_subscriptions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SUBSCRIPTIONS_HELD_MAX", 2)
    script = Script()
    for publisher_id in (1, 2, 3):
        script.say(subscription(publisher_id, SubscriptionState.PENDING))
    assert [n.result.label for n in script.notices if isinstance(n, IntakeNotice)] == ["over_capacity"]
    script.say(subscription(1, SubscriptionState.CONNECTED))
    assert len(script.fold.state.status.subscriptions) == 2 and not script.notices


def test_records_are_counted_from_tick_to_tick() -> None:
    script = Script()
    status = script.fold.state.status
    script.tick()
    tick = script.fold.mark.offset
    assert (status.tick_offset, status.tick_records, status.tick_check_sum) == (tick, 0, 0)
    checks = []
    for _ in range(3):
        script.say(Pinged(REPLICA, 1, -1))
        checks.append(script.fold.mark.check)
    script.fold_bytes(b"rubbish that is no record")
    checks.append(script.fold.mark.check)
    assert status.tick_records == 4
    assert status.tick_check_sum == (checks[0] + checks[1] + checks[2] + checks[3]) % (1 << 64)


def test_who_may_read_a_kind_without_knowing_it_is_told_by_what_live_processes_said() -> None:
    script = Script()
    old, new, unknown = b"o" * 16, b"n" * 16, b"u" * 16
    script.say(started(old, "old"), writer=old)
    script.say(started(new, "new")._replace(kinds=80), writer=new)
    status = script.fold.state.status
    assert status.unable_to_read(62) == () and status.unable_to_read(80) == ("old",)
    script.say(Pinged(unknown, 1, -1), writer=unknown)
    assert status.unable_to_read(80) == ("old", unknown.hex()), "it never said what it reads"
    for replica in (old, unknown):
        script.say(ReplicaGone(replica, 1))
    assert status.unable_to_read(80) == ()
