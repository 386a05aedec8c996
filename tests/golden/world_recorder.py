"""Make a golden log of a fleet whose engines have host memory and disk, and of which some tell nothing.

    python -m tests.golden.world_recorder FOLDER [SEED]

FOLDER gets a log, checkpoints and `expected.json`. One model is served by aggregated workers, of
which two publish no block events, the other one by a pair of pools whose decode workers may prefill
by themselves. Settings change on the way: decay, tiers, predictions, softmax, both policies of
conditional disaggregation. A connection is lost for a second, an event for ever, a device is flushed,
a worker leaves and comes back; picks land again, and a ping of before the first owner. Nothing here
decides a pick: fold, overlay and picker are the product's, and what workers publish goes through the
product's decoders.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from app.checkpoint_store import CheckpointFolder
from ingest.log.segment_log import SegmentLog
from ingest.wire.fleet_keys import full_key, relative_key
from projections.bounds import SECOND_US
from projections.checkpoint import checkpoint_records
from projections.events.codec import encode_record
from projections.events.control import (
    CheckpointDue,
    ClockTicked,
    ConditionalSettings,
    ConfigAdopted,
    FoldModeAdopted,
    KvPickSettings,
    LaneOpened,
    PickSettings,
    Pinged,
    ReplicaStarted,
)
from projections.events.discovery import KeyDeleted, KeyPut, Keyspace
from projections.events.picks import PickMade
from projections.events.signals import Family, SubscriptionChanged, SubscriptionState, Transport
from projections.fold import Fold
from projections.fold_modes import FOLD_MODES, WANTED_ALWAYS, wanted_modes
from projections.identity import RankKey
from router.picker.pick_flags import PICK_FLAGS
from tests.golden.engines import BLOCK, Engine
from tests.golden.engines import Path as BlockPath
from tests.golden.state import state_of
from tests.golden.world_replica import ALONE, PAIRED, REPLICA, Replica, fold_until
from tests.projections.fleet_script import NS, card, channel, channel_key, endpoint, instance_key, source

OWNER = bytes([1]) * 16
COPIES = bytes([3]) * 16  # writer of what lands again: a process goes on under another id
EARLY = bytes([4]) * 16  # a replica that was heard before the first owner, and never again
START_US = 1_800_000_000_000_000
SECONDS = 26
CHECKPOINTS = (10, 20)
LAND_AGAIN = (8.0, 12.05, 15.7, 22.0)  # the second one behind a flush, the third behind a worker's return
BLOCKS_TOTAL = 96  # as cards say


class Placed(NamedTuple):
    """A worker to be: its role as cards spell it, blocks of its tiers, whether it publishes blocks."""

    number: int
    model: str
    role: str
    capacities: tuple[int, int, int]
    publishes: bool


FLEET = (
    Placed(11, ALONE, "aggregated", (10, 60, 0), True),
    Placed(12, ALONE, "aggregated", (8, 10, 160), True),
    Placed(13, ALONE, "aggregated", (60, 0, 0), True),
    Placed(14, ALONE, "aggregated", (60, 0, 0), False),
    Placed(15, ALONE, "aggregated", (60, 0, 0), False),
    Placed(21, PAIRED, "prefill", (12, 16, 90), True),
    Placed(22, PAIRED, "prefill", (24, 0, 0), True),
    Placed(31, PAIRED, "decode", (40, 0, 0), True),
    Placed(32, PAIRED, "decode", (24, 80, 0), True),
)
BY_LENGTH = ConditionalSettings("isl_bounding", 200, 0.6, None, 0.95)
BY_LOAD = ConditionalSettings("isl_or_load", 80, 0.3, 0.02, 0.95)
TERM = KvPickSettings(1.0, 1.0, 0.0, 1.0, 0.75, 0.5, 3 * SECOND_US // 2, 15 * SECOND_US, BY_LENGTH)
TERMS = (  # seconds after the start, and what is adopted then
    (0, TERM),
    (9, TERM._replace(credit_decay=3.0, conditional=BY_LOAD, prefill_scale=1.5)),
    (17, TERM._replace(host_credit=0.0, disk_credit=0.0, temperature=0.2)),
    (20, TERM._replace(temperature=0.4, predicted_ttl_us=SECOND_US, conditional=BY_LOAD)),
)


def settings_of(term: KvPickSettings) -> PickSettings:
    return PickSettings("load_based", "etcd", (NS,), (("alias", ALONE),), 3 * SECOND_US, True, term)


class World:
    """Owner and engines in one virtual time. seed: of all chance here."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.time = START_US
        self.log = SegmentLog.open_owner(folder)
        self.engines: dict[int, Engine] = {}
        self._checkpoints = CheckpointFolder(folder / "checkpoints")
        self._sequences = {OWNER: 0, REPLICA: 0, COPIES: 0, EARLY: 0}
        self._picks: list[PickMade] = []
        self._fold = Fold()
        self._note: tuple[Any, ...] = (-1, (), 0, 0)
        self._due: list[tuple[int, int, partial[object]]] = []
        self._numbered = self._revision = 0
        self._connections: dict[int, int] = {}

    def run(self) -> None:
        """The whole history, on disk at its end."""
        early = self.say(Pinged(EARLY, 1, -1), EARLY)
        self.say(LaneOpened(1, self.time, b"", "new"))
        self.at(2.5, self.log.commit, [early])
        modes = tuple(sorted(FOLD_MODES))
        self.say(ReplicaStarted(REPLICA, "golden", "serve", "0.1.0", "3.11", PICK_FLAGS, 62, modes), REPLICA)
        for version, (second, term) in enumerate(TERMS, 1):
            self.at(second, self.adopt, version, term)
        for placed in FLEET:
            self.at(0.001, self.join, placed)
        for second in range(SECONDS):
            self.at(second + 0.9, self.tick)
        for second in CHECKPOINTS:
            self.at(second + 0.95, self.checkpoint)
        self.at(5, self.subscribed, 12, SubscriptionState.BACKOFF, "closed")
        self.at(6, self.subscribed, 12, SubscriptionState.CONNECTED, "connected")
        self.at(9, self.loses_an_event, 11)
        self.at(12, self.clears, 32)
        self.at(15, self.leaves, 13)
        self.at(15.6, self.join, FLEET[2])
        self.at(15.61, self.subscribed, 13, SubscriptionState.BACKOFF, "closed")
        self.at(18, self.subscribed, 13, SubscriptionState.CONNECTED, "connected")
        for land_again in LAND_AGAIN:
            self.at(land_again, self.lands_again)
        Replica(self).plan(SECONDS)
        while self._due and self._due[0][0] <= START_US + SECONDS * SECOND_US:
            self.time, _, act = heapq.heappop(self._due)
            act()
        self.log.close()

    def at(self, second: float, act: Callable[..., object], *arguments: Any) -> None:
        """Do this so many seconds after the start."""
        self.later(START_US + round(second * SECOND_US) - self.time, act, *arguments)

    def later(self, us: int, act: Callable[..., object], *arguments: Any) -> None:
        """Do this so long after now."""
        self._numbered += 1
        heapq.heappush(self._due, (self.time + us, self._numbered, partial(act, *arguments)))

    def say(self, fact: tuple[Any, ...], writer: bytes = OWNER) -> bytes:
        """Write one record; its bytes."""
        self._sequences[writer] += 1
        epoch = 1 if writer == OWNER else 0
        data = encode_record(self.time, writer, epoch, self._sequences[writer], fact)
        self.log.commit([data])
        if isinstance(fact, PickMade) and writer == REPLICA:
            self._picks.append(fact)
        return data

    def lands_again(self) -> None:
        """A batch of picks of the last seconds is there once more."""
        since = self.time - 3 * SECOND_US
        for fact in self._picks:
            if fact.question.asked_at >= since:
                self.say(fact, COPIES)

    # -- the owner ---------------------------------------------------------------------

    def adopt(self, version: int, term: KvPickSettings) -> None:
        """Settings, after the fold modes that they want."""
        settings = PickSettings("load_based", "etcd", (NS,), (("alias", ALONE),), 3 * SECOND_US, True, term)
        self.say(FoldModeAdopted(tuple(sorted({*wanted_modes(settings), *WANTED_ALWAYS}))))
        digest = blake3(repr(settings).encode()).digest()[:16]
        self.say(ConfigAdopted(version, "start" if version == 1 else "file", digest, "{}", settings))

    def tick(self) -> None:
        """With what was noted at the tick before."""
        self.say(ClockTicked(self.time, *self._note))
        fold_until(self.log, self._fold, self.log.end_offset())
        status = self._fold.state.status
        self._note = (status.tick_offset, self._fold.digests(), *status.closed_tick)

    def checkpoint(self) -> None:
        """The state of that very record, as the follower writes it."""
        self.say(CheckpointDue("time"))
        fold_until(self.log, self._fold, self.log.end_offset())
        mark = self._fold.mark
        records = checkpoint_records(self._fold, self.log.log_id)
        self._checkpoints.write(self.log.log_id, mark.offset, mark.check, mark.time, records)

    # -- workers -----------------------------------------------------------------------

    def join(self, placed: Placed) -> None:
        """A worker registers, and its publishers are heard."""
        component = "prefill" if placed.role == "prefill" else "backend"
        rank = RankKey(NS, placed.number, 0)
        engine = Engine(rank, placed.number, placed.capacities, placed.publishes)
        self.engines[placed.number] = engine
        place = instance_key(placed.number, component)
        runtime = {"total_kv_blocks": BLOCKS_TOTAL, "max_num_batched_tokens": 2048}
        of_card: dict[str, Any] = {"worker_type": placed.role, "model": placed.model, "runtime": runtime}
        self.put(Keyspace.INSTANCES, place, endpoint(placed.number, component))
        self.put(Keyspace.CARDS, place, card(placed.number, component, **of_card))
        for publisher, topic in ((engine.load_publisher, "kv_metrics"), (engine.kv_publisher, "kv-events")):
            if publisher is not None:
                announced = channel_key(publisher, component, topic)
                self.put(Keyspace.CHANNELS, announced, channel(publisher, component, topic))
        if engine.kv_publisher is not None:
            announced = channel_key(engine.kv_publisher, component, "kv-events")
            bound = source(engine.kv_publisher, placed.number, component=component)
            self.put(Keyspace.SOURCES, announced, bound)
        self.subscribed(placed.number, SubscriptionState.CONNECTED, "connected")
        self.later(self.chance.randrange(400_000), self.samples, placed.number)

    def put(self, keyspace: Keyspace, relative: str, value: bytes) -> None:
        """A key as it is read off etcd."""
        self._revision += 1
        key = relative_key(keyspace, NS, full_key(keyspace, NS, relative))
        assert key is not None
        digest = blake3(value).digest()
        self.say(KeyPut(int(keyspace), NS, key, self._revision, value, len(value), digest))

    def subscribed(self, number: int, state: SubscriptionState, reason: str) -> None:
        """Both subscriptions to a worker are there now."""
        engine = self.engines[number]
        if state is SubscriptionState.CONNECTED:
            self._connections[number] = self._connections.get(number, 0) + 1
        engine.is_heard = state is SubscriptionState.CONNECTED
        for family, publisher in ((Family.LOAD, engine.load_publisher), (Family.KV, engine.kv_publisher)):
            if publisher is not None:
                where = (int(family), NS, publisher, "", int(state), self._connections[number])
                self.say(SubscriptionChanged(*where, int(Transport.DIRECT), reason))

    def samples(self, number: int) -> None:
        """A worker reports its load, now and from now on."""
        engine = self.engines.get(number)
        if engine is not None:
            sample = engine.sample(self.time // 1_000, self._connections[number])
            if engine.is_heard:
                self.say(sample)
            self.later(self.chance.choice((300_000, 500_000, 900_000)), self.samples, number)

    def publishes(self, number: int, events: list[dict[str, Any]]) -> None:
        """A frame of block events, which is lost where nobody is connected."""
        engine = self.engines[number]
        batch = engine.batch(events, self.time // 1_000, self._connections[number])
        if batch is not None and engine.is_heard:
            self.say(batch)

    def clears(self, number: int) -> None:
        """The device of a worker is flushed."""
        self.publishes(number, self.engines[number].clear())

    def loses_an_event(self, number: int) -> None:
        """An event that nobody hears: the next one shows a gap."""
        self.engines[number].forget_quietly()

    def leaves(self, number: int) -> None:
        """A worker without a role in a pair is gone, with its keys."""
        del self.engines[number]
        for keyspace in (Keyspace.INSTANCES, Keyspace.CARDS):
            self._revision += 1
            self.say(KeyDeleted(int(keyspace), NS, instance_key(number), self._revision))

    # -- work --------------------------------------------------------------------------

    def serve(self, fact: PickMade, path: BlockPath, ended: Callable[[], object]) -> None:
        """A picked request reaches its workers; `ended` is called when it is answered or lost."""
        decode, prefill = fact.outcome.decode.chosen, fact.outcome.prefill.chosen
        assert decode is not None
        first = self.engines.get((prefill or decode).instance_id)
        second = self.engines.get(decode.instance_id)
        if first is None or second is None:
            self.later(20_000, ended)
            return
        tokens = fact.question.isl_tokens
        blocks = -(-tokens // BLOCK)
        second.decoding += blocks
        computed_at, new_tokens = first.admit(self.time, tokens, path)

        def compute() -> None:
            self._keeps(first, path, new_tokens)
            if second is not first:
                self._keeps(second, path, 0)

        def answer() -> None:
            second.decoding -= blocks
            ended()

        wait_us = computed_at - self.time
        self.later(wait_us, compute)
        self.later(wait_us + self.chance.randrange(200_000, 1_500_000), answer)

    def _keeps(self, engine: Engine, path: BlockPath, new_tokens: int) -> None:
        events = engine.computed(path, new_tokens)
        if self.engines.get(engine.rank.instance_id) is engine:
            self.publishes(engine.rank.instance_id, events)


def main() -> None:
    """Write the log, and what it is held to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int, nargs="?", default=8)
    chosen = parser.parse_args()
    World(chosen.folder, chosen.seed).run()
    (chosen.folder / "expected.json").write_text(json.dumps(state_of(chosen.folder)))


if __name__ == "__main__":
    main()
