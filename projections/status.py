"""What operators look at, and what a later pick may still name: subscriptions, replicas, settings.

Nothing here decides what a record does to the fleet or the load. But it is state of the
fold like the rest: a pick names a settings version and a replica, and both must be found
at its as-of, also in a replay that starts from a checkpoint.

A replica is known by any record of its own; `ReplicaGone` marks it until its next record.
Gone ones are forgotten after 24 h of log time, beyond REPLICAS_MAX the one that was silent
longest. Settings are kept up to SETTINGS_KEPT_MAX versions, oldest out.

When another process opens the lane, nobody is connected any more until it says so: all
subscriptions read `pending`.

Sources: decisions 7, 10, 28, 34, 60; architecture 7.5, 7.6; requirement rows ADM-05, RED-23.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import xxhash

from projections.bounds import (
    KEYS_PER_KEYSPACE_MAX,
    REPLICAS_MAX,
    SETTINGS_KEPT_MAX,
    WRITER_FORGOTTEN_US,
)
from projections.events.codec import encode_value
from projections.events.control import ClockTicked, ConfigAdopted, LaneOpened, ReplicaGone, ReplicaStarted
from projections.events.held import OwnerHeld, PublisherHeld, ReplicaHeld, SettingsHeld
from projections.events.signals import SubscriptionChanged, SubscriptionContinued, SubscriptionState
from projections.identity import U64_MAX
from projections.notices import Notice, StatusNotice

SUBSCRIPTIONS_HELD_MAX = 2 * KEYS_PER_KEYSPACE_MAX  # one a publisher and family
CONTINUED = "continued"  # reason of a connection that another owner has taken over
SubscriptionKey = tuple[int, str, int]  # family, namespace, publisher id


class Status:
    """See the module's text.

    tick_offset: offset of the newest tick, -1 before the first. tick_records and
    tick_check_sum: records folded since it, and the sum modulo 2^64 of their check words.
    closed_tick: what both were when the newest tick ended them, itself included. For those who
    compare notes; no part of the state.
    """

    def __init__(self) -> None:
        self.subscriptions: dict[SubscriptionKey, PublisherHeld] = {}
        self.tick_offset = -1
        self.tick_records = 0
        self.tick_check_sum = 0
        self.closed_tick = 0, 0
        self.tick_wall_us = 0  # to show and to look up times; 0 after a restore, until the next tick
        self._replicas: dict[bytes, ReplicaHeld] = {}
        self._settings: dict[int, SettingsHeld] = {}
        self._settings_now: SettingsHeld | None = None
        self._settings_digest = 0

    # -- reading -----------------------------------------------------------------------

    def replica(self, replica: bytes) -> ReplicaHeld | None:
        """What is known of a process that picks; None where it never spoke or was forgotten."""
        return self._replicas.get(replica)

    def replicas(self) -> Iterable[ReplicaHeld]:
        """All known replicas in id order."""
        return [self._replicas[replica] for replica in sorted(self._replicas)]

    def settings(self, version: int) -> SettingsHeld | None:
        """An adopted version, None where it is unknown or was dropped."""
        return self._settings.get(version)

    @property
    def settings_now(self) -> SettingsHeld | None:
        """The settings in force, None before the first adoption."""
        return self._settings_now

    def is_enabled(self) -> bool:
        """Whether discovery is on, as the settings in force say (RED-23)."""
        return self._settings_now is not None and self._settings_now.enabled

    @property
    def digest(self) -> int:
        """Digest of all of it, 64 bits. Replicas and subscriptions are walked, they are few."""
        total = self._settings_digest
        for held in self._replicas.values():
            total += _word(held)
        for subscription in self.subscriptions.values():
            total += _word(subscription)
        total += _word((self.tick_offset, self.tick_records, self.tick_check_sum))
        return total & U64_MAX

    def unable_to_read(self, kind: int) -> tuple[str, ...]:
        """Labels of processes that may read a record of this kind without knowing it, in id order.

        To them it would be a record that nobody wrote, and their digests would differ. Gone ones
        do not count; one that never said what it reads does, by its id (architecture 7.7).
        """
        return tuple(
            held.label or held.replica.hex()
            for held in self.replicas()
            if held.gone_at is None and held.kinds < kind
        )

    # -- records -----------------------------------------------------------------------

    def count_record(self, check: int) -> None:
        """One more record since the newest tick."""
        self.tick_records += 1
        self.tick_check_sum = (self.tick_check_sum + check) & U64_MAX

    def apply_tick(self, offset: int, fact: ClockTicked, stamp: int) -> None:
        """A second went by: counting starts anew, replicas long gone are forgotten."""
        self.closed_tick = self.tick_records, self.tick_check_sum
        self.tick_offset, self.tick_records, self.tick_check_sum = offset, 0, 0
        self.tick_wall_us = fact.wall_us
        horizon = stamp - WRITER_FORGOTTEN_US
        for held in [held for held in self._replicas.values() if held.gone_at is not None]:
            if held.seen_at < horizon:
                del self._replicas[held.replica]

    def apply_opened(self, fact: LaneOpened, writer: bytes, notices: list[Notice]) -> None:
        """Another owner: nobody is connected until it says so."""
        for key, held in self.subscriptions.items():
            self.subscriptions[key] = held._replace(
                state=int(SubscriptionState.PENDING), reason="owner_changed"
            )
        notices.append(StatusNotice("lane opened", f"epoch {fact.epoch} by {writer.hex()}, {fact.cause}"))

    def apply_subscription(self, fact: SubscriptionChanged | SubscriptionContinued, stamp: int) -> bool:
        """A subscription changed state or owner; whether there was room to hold it. Ended ones go."""
        if isinstance(fact, SubscriptionContinued):
            connected = int(SubscriptionState.CONNECTED)
            fact = SubscriptionChanged(*fact[:4], connected, *fact[4:], CONTINUED)
        if fact.state == SubscriptionState.ENDED:
            self.subscriptions.pop((fact.family, fact.namespace, fact.publisher_id), None)
            return True
        key = (fact.family, fact.namespace, fact.publisher_id)
        if key not in self.subscriptions and len(self.subscriptions) >= SUBSCRIPTIONS_HELD_MAX:
            return False
        self.subscriptions[key] = PublisherHeld(*fact, None, stamp)
        return True

    def apply_adopted(self, offset: int, fact: ConfigAdopted, stamp: int, notices: list[Notice]) -> bool:
        """Settings in force from here on; whether the version is newer than the one in force."""
        if self._settings_now is not None and fact.version <= self._settings_now.version:
            return False
        self._hold_settings(
            SettingsHeld(
                fact.version,
                fact.proposed_by,
                fact.digest,
                fact.settings,
                fact.pick,
                fact.enabled,
                offset,
                stamp,
            )
        )
        notices.append(StatusNotice("settings adopted", f"version {fact.version} by {fact.proposed_by}"))
        return True

    def apply_started(self, fact: ReplicaStarted, stamp: int, notices: list[Notice]) -> None:
        """A process that picks has started, or says again what it is."""
        known = self._replicas.get(fact.replica)
        own_seq = known.own_seq if known is not None else 0
        self._hold_replica(
            ReplicaHeld(
                fact.replica,
                fact.label,
                fact.role,
                fact.version,
                fact.python,
                fact.flags,
                fact.kinds,
                fact.fold_modes,
                stamp,
                stamp,
                None,
                own_seq,
            )
        )
        notices.append(StatusNotice("replica started", f"{fact.label} {fact.role} {fact.replica.hex()}"))

    def apply_gone(self, fact: ReplicaGone, stamp: int, notices: list[Notice]) -> None:
        """The owner heard nothing of a replica for 30 s."""
        known = self._replicas.get(fact.replica)
        if known is None or known.gone_at is not None:
            return
        self._replicas[fact.replica] = known._replace(gone_at=stamp)
        notices.append(StatusNotice("replica gone", f"{known.label} {fact.replica.hex()}", "warning"))

    def hear(self, replica: bytes, stamp: int, own_seq: int = 0) -> None:
        """A record of a replica: it is there, and has numbered its picks and ends up to own_seq."""
        known = self._replicas.get(replica)
        if known is None:
            self._hold_replica(ReplicaHeld(replica, "", "", "", "", (), 0, (), stamp, stamp, None, own_seq))
        elif known.seen_at != stamp or known.gone_at is not None or own_seq > known.own_seq:
            self._replicas[replica] = known._replace(
                seen_at=stamp, gone_at=None, own_seq=max(own_seq, known.own_seq)
            )

    # -- checkpoints -------------------------------------------------------------------

    def held(self) -> Iterator[SettingsHeld | ReplicaHeld]:
        """Settings by version, replicas by id. Subscriptions ride in PublisherHeld, see checkpoint."""
        for version in sorted(self._settings):
            yield self._settings[version]
        yield from self.replicas()

    def restore(self, fact: SettingsHeld | ReplicaHeld | PublisherHeld | OwnerHeld) -> None:
        """Take one held fact; settings by ascending version."""
        if isinstance(fact, SettingsHeld):
            self._hold_settings(fact)
        elif isinstance(fact, ReplicaHeld):
            self._hold_replica(fact)
        elif isinstance(fact, PublisherHeld):
            key = (fact.family, fact.namespace, fact.publisher_id)
            self.subscriptions[key] = fact._replace(last_sequence=None, sampled_connection=0)
        else:
            self.tick_offset = fact.tick_offset
            self.tick_records = fact.tick_records
            self.tick_check_sum = fact.tick_check_sum

    # -- inside ------------------------------------------------------------------------

    def _hold_settings(self, held: SettingsHeld) -> None:
        self._settings[held.version] = held
        self._settings_now = held
        self._settings_digest = (self._settings_digest + _word(held)) & U64_MAX
        if len(self._settings) > SETTINGS_KEPT_MAX:
            oldest = self._settings.pop(min(self._settings))
            self._settings_digest = (self._settings_digest - _word(oldest)) & U64_MAX

    def _hold_replica(self, held: ReplicaHeld) -> None:
        if held.replica not in self._replicas and len(self._replicas) >= REPLICAS_MAX:
            silent = min(self._replicas.values(), key=lambda known: (known.seen_at, known.replica))
            del self._replicas[silent.replica]
        self._replicas[held.replica] = held


def _word(value: tuple[object, ...]) -> int:
    word: int = xxhash.xxh3_64_intdigest(encode_value(value))
    return word
