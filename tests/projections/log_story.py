"""A made-up log that says a bit of everything: the same seed tells the same story.

It holds what a healthy log holds and what a sick one may: conflicts, rubbish values, drops,
repetitions, two owners, gaps, reconnects, lost picks, ends of unknown picks.
"""

from __future__ import annotations

import random
from typing import Any

import xxhash

from projections.events.codec import encode_record
from projections.events.control import (
    ClockTicked,
    ConfigAdopted,
    LaneOpened,
    PickSettings,
    Pinged,
    ReplicaGone,
    ReplicaStarted,
    WriterContinued,
)
from projections.events.discovery import KeysDropped, Keyspace, PassBegan, PassEnded, PassSettled
from projections.events.kinds import FACT_KINDS, KIND_OF_FACT, Speaker
from projections.events.picks import (
    Chosen,
    DispatchEnded,
    EndStatus,
    LostPick,
    Outcome,
    PhaseOutcome,
    PickMade,
    PickReason,
    PicksDistrusted,
    PicksLost,
    Question,
)
from projections.events.signals import Family, SampleReceived, SubscriptionChanged, SubscriptionState
from projections.fold import Fold
from projections.registry.keyspace import key_digest_input
from tests.projections.fleet_script import (
    NS,
    REPLICA,
    card,
    channel,
    channel_key,
    deleted,
    endpoint,
    instance_key,
    put,
    source,
)

SPACES = (NS, "other")


def pick(number: int, worker: int | None, at: int, replica: bytes = REPLICA, namespace: str = NS) -> PickMade:
    """A pick of one decode rank, or of nobody."""
    chosen = Chosen(worker, 0, False, 100, 7) if worker is not None else None
    nobody = PhaseOutcome(int(PickReason.NO_PREFILL_POOL), None, 0, None, b"")
    decode = PhaseOutcome(int(PickReason.LOAD), chosen, 1, None, b"")
    question = Question(f"r{number}", 1, "tiny", "tiny", at, at, (namespace,), (), 100, 0, 0)
    outcome = Outcome(namespace if chosen else None, nobody, decode, 0, 1, bytes(16))
    return PickMade(number.to_bytes(16, "big"), replica, number - 1, -1, 1, question, outcome)


class _Teller:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.time = 5_000_000
        self.records: list[bytes] = []
        self.sequences: dict[bytes, int] = {}
        self.owner = b"owner 1---------"
        self.epoch = 0
        self.revision = 0
        self.own = 0
        self.frames: dict[int, int] = {}
        self.fold = Fold()

    def say(self, fact: tuple[Any, ...], writer: bytes | None = None, epoch: int | None = None) -> None:
        speaker = FACT_KINDS[KIND_OF_FACT[type(fact)]].speaker
        owns = speaker in (Speaker.OWNER, Speaker.CLAIMANT)
        writer = writer if writer is not None else (self.owner if owns else REPLICA)
        epoch = epoch if epoch is not None else (self.epoch if owns else 0)
        self.time += self.dice.choice((1, 50, 1_000, 200_000))
        self.sequences[writer] = self.sequences.get(writer, 0) + 1
        data = encode_record(self.time, writer, epoch, self.sequences[writer], fact)
        self.fold.apply(len(self.records), data, [])
        self.records.append(data)

    def again(self) -> None:
        """A record that was said before is sent again."""
        data = self.dice.choice(self.records)
        self.fold.apply(len(self.records), data, [])
        self.records.append(data)

    def open(self) -> None:
        self.epoch += 1
        self.owner = f"owner {self.epoch}".encode().ljust(16, b"-")
        self.say(LaneOpened(self.epoch, 0, b"", "takeover"))

    def discovery(self) -> None:
        dice = self.dice
        self.revision += dice.randint(0, 2)
        worker = dice.randint(1, 6)
        space = dice.choice((NS, NS, NS, "other"))
        usual = dice.random() < 0.8
        component = "backend" if usual else dice.choice(("prefill", "decode", ""))
        role = "decode" if usual else dice.choice(("aggregated", "prefill", None, "planner"))
        of_card: dict[str, Any] = {
            "worker_type": role,
            "runtime": {"data_parallel_size": dice.choice((0, 1, 2, 2))},
        }
        values = [
            (Keyspace.INSTANCES, instance_key(worker, component), endpoint(worker, component)),
            (
                Keyspace.CARDS,
                instance_key(worker, component),
                card(worker, component, **of_card),
            ),
            (Keyspace.CARDS, f"legacy{worker}", card(worker, "", "", model=dice.choice(("tiny", "large")))),
            (Keyspace.CHANNELS, channel_key(70 + worker, component), channel(70 + worker, component)),
            (Keyspace.SOURCES, channel_key(70 + worker, component, "kv-events"), source(70 + worker, worker)),
            (Keyspace.INSTANCES, f"rubbish{worker}", b"\xff rubbish"),
        ]
        keyspace, key, value = dice.choice(values)
        if dice.random() < 0.12:
            self.say(deleted(keyspace, key, self.revision, space))
        else:
            self.say(put(keyspace, key, value, self.revision, space))

    def passes(self) -> None:
        number = self.dice.randint(1, 4)
        space = (self.dice.choice(SPACES),)
        self.say(
            self.dice.choice(
                (
                    PassBegan("etcd", space, number, "ended"),
                    PassSettled("etcd", space, number, 3, 5, self.revision, (4,)),
                    self.settled(space, number),
                    self.settled(space, number),
                    PassEnded("etcd", space, number, "compacted"),
                )
            )
        )

    def settled(self, space: tuple[str, ...], number: int) -> PassSettled:
        held = self.fold.state.registry.held_digests(space)
        digest = 0
        for name, value_digest in held.items():
            digest += xxhash.xxh3_64_intdigest(key_digest_input(*name, value_digest))
        return PassSettled("etcd", space, number, len(held), digest % (1 << 64), self.revision)

    def signals(self) -> None:
        dice = self.dice
        publisher = dice.randint(71, 74)
        if dice.random() < 0.1:
            state = dice.choice(
                (SubscriptionState.CONNECTED, SubscriptionState.CONNECTING, SubscriptionState.ENDED)
            )
            connection = dice.randint(1, 3)
            self.say(
                SubscriptionChanged(
                    int(dice.choice((Family.LOAD, Family.KV))),
                    NS,
                    publisher,
                    "backend",
                    int(state),
                    connection,
                    1,
                    "x",
                )
            )
            return
        last = self.frames.get(publisher, 0)
        sequence = last + dice.choice((0, 1, 1, 1, 3))
        covers = dice.choice((last + 1, sequence)) if sequence > last else sequence
        self.frames[publisher] = sequence
        worker, rank = dice.randint(1, 6), dice.randint(0, 2)
        used = dice.choice((None, 0, 5, 200))
        self.say(
            SampleReceived(
                NS,
                publisher,
                dice.randint(1, 2),
                covers,
                sequence,
                worker,
                rank,
                used,
                None,
                used,
                0,
                dice.choice((None, 7)),
            )
        )

    def picks(self) -> None:
        dice = self.dice
        choice = dice.random()
        if choice < 0.5:
            self.own += 1
            worker = dice.choice((1, 2, 3, None))
            self.say(pick(self.own, worker, self.time, namespace=dice.choice(SPACES)))
        elif choice < 0.9:
            ended = dice.randint(1, max(1, self.own)).to_bytes(16, "big")
            fault = dice.choice((0, 0, 1, 2))
            self.own += 1
            status = int(dice.choice(list(EndStatus)))
            self.say(DispatchEnded(ended, REPLICA, self.own, self.time, status, fault, 200, "b", None, 5))
        else:
            self.own += 2
            chosen = Chosen(dice.randint(1, 4), 0, True, 10, None)
            ends = dice.choice(((None, None), (self.own, self.time)))
            line = LostPick(
                self.own.to_bytes(16, "big"), self.own - 2, self.time, self.time, NS, chosen, None, *ends
            )
            self.say(PicksLost(REPLICA, (line,)))

    def control(self) -> None:
        dice = self.dice
        other = b"replica 2-------"
        settings = PickSettings("load_based", "etcd", SPACES, (), 3_000_000)
        facts: tuple[tuple[Any, ...], ...] = (
            ClockTicked(self.time, -1, (), 0, 0),
            ClockTicked(self.time, -1, (), 0, 0),
            ConfigAdopted(dice.randint(1, 9), "file", b"d", "{}", settings, dice.random() < 0.5),
            ReplicaStarted(REPLICA, "host", "router", "0", "3", (1,), 62, ()),
            ReplicaGone(dice.choice((REPLICA, other)), self.time),
            Pinged(REPLICA, 1, -1),
            WriterContinued(b"w", 3),
        )
        self.say(dice.choice(facts))
        if dice.random() < 0.2:
            self.say(Pinged(other, 1, -1), writer=other)
            self.say(KeysDropped((), "all"), writer=b"nobody----------", epoch=self.epoch)
        if dice.random() < 0.05:
            self.time += 90_000_000_000  # a day and an hour of silence
            self.say(ClockTicked(self.time, -1, (), 0, 0))
        if dice.random() < 0.05:
            self.say(KeysDropped(dice.choice(((), (NS,), ("other",))), "namespaces"))
        if dice.random() < 0.08:
            self.open()
        if dice.random() < 0.05:
            self.say(PicksDistrusted(REPLICA, -1, self.own))


def story(seed: int, records: int) -> list[bytes]:
    """About `records` encoded records, the first one opening the lane."""
    teller = _Teller(seed)
    teller.open()
    while len(teller.records) < records:
        step = teller.dice.random()
        if step < 0.35:
            teller.discovery()
        elif step < 0.40:
            teller.passes()
        elif step < 0.70:
            teller.signals()
        elif step < 0.85:
            teller.picks()
        else:
            teller.control()
        if teller.dice.random() < 0.03:
            teller.again()
    return teller.records[:records]
