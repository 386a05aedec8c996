"""Blocks in a simulated fleet: prompts that share beginnings, engines that keep and forget blocks.

An engine publishes what it stores, drops and clears, in frames of one or several events. Now
and then an event is lost, a publisher starts anew under another id, or a second one speaks
for the same rank. Names of blocks are the engine's own or shared, as a seed decides.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import xxhash

from ingest.subscriptions.supervisor import SubscriptionRow
from ingest.wire.fleet_keys import prefix_of
from projections.events.control import ConditionalSettings, KvPickSettings
from projections.events.discovery import Keyspace
from projections.events.picks import KvResult
from projections.events.signals import (
    KV_EVENT_HEAD,
    Family,
    KvBatchReceived,
    KvOperation,
    StorageTier,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from projections.identity import PublisherKey
from projections.registry.fleet import Fleet
from router.question import NO_PROMPT, PromptFacts
from tests.simulation.world_fleet import SimWorker, text

if TYPE_CHECKING:
    from projections.fold import Fold
    from tests.simulation.world_owner import OwnerProcess

Prompt = tuple[int, ...]  # contents of its blocks of 16 tokens
DEVICE, HOST, DISK = StorageTier.DEVICE, StorageTier.HOST_PINNED, StorageTier.DISK


def a_prompt(rng: Random) -> Prompt:
    """One of a few beginnings, and up to twelve blocks of it or of another ending."""
    beginning = rng.choice(((1, 2, 3, 4), (1, 2, 5, 5, 5), (6,), ()))
    ending = rng.choice((0, 1, 2)) * 100
    return (*beginning, *(ending + place for place in range(rng.randint(0, 8))))


def tokens_hashes(prompt: Prompt, size: int) -> list[bytes]:
    """The tokens hashes of a prompt's whole blocks of 16 or 64 tokens."""
    step = size // 16
    parts = (prompt[at : at + step] for at in range(0, len(prompt) // step * step, step))
    return [xxhash.xxh3_64_digest(repr((size, part)).encode()) for part in parts]


def facts_of(prompt: Prompt | None, rng: Random) -> PromptFacts:
    """What reading this prompt gives; sometimes nothing."""
    if prompt is None or rng.random() < 0.1:
        return rng.choice((NO_PROMPT, PromptFacts(KvResult.TOKENIZER_UNAVAILABLE)))
    isl = 16 * len(prompt) + rng.randint(0, 15)
    sizes = (16, 64) if rng.random() < 0.5 else (16,)
    packed = tuple((size, b"".join(tokens_hashes(prompt, size))) for size in sizes)
    return PromptFacts(KvResult.READY, isl, packed)


def kv_settings(rng: Random) -> KvPickSettings:
    """Any settings of the prefix term."""
    conditional = None
    if rng.random() < 0.4:
        conditional = ConditionalSettings(
            rng.choice(("isl_bounding", "prefill_load", "isl_or_load")),
            rng.choice((50, 2_048)),
            rng.choice((0.3, 0.7, 1.0)),
            rng.choice((None, 0.001, 0.5)),
            rng.choice((None, 0.05, 0.9)),
        )
    lower = rng.random() < 0.4
    return KvPickSettings(
        rng.choice((0.0, 0.5, 1.0, 1.0, 2.0)),
        rng.choice((0.0, 1.0, 1.0, 3.0)),
        rng.choice((0.0, 0.0, 0.0, 0.2, 2.0)),
        rng.choice((0.0, 0.0, 0.5, 4.0)),
        0.75 if lower else 0.0,
        0.25 if lower else 0.0,
        rng.choice((0, 0, 200_000, 3_000_000)),
        rng.choice((0, 0, 2_000_000, 20_000_000)),
        conditional,
    )


class SimEngine:
    """What one rank keeps in one tier, and the publisher that says so.

    held: names of blocks by their path. is_bound: an event source names the rank, and events say 0.
    """

    def __init__(self, worker: SimWorker, rank: int, number: int, tier: StorageTier, rng: Random) -> None:
        self.worker, self.rank, self.rng = worker, rank, rng
        self.tier = tier
        self.publisher = 20_000 + worker.number * 100 + number
        self.is_bound = worker.ranks > 1 and rng.random() < 0.5
        self.has_own_names = rng.random() < 0.5
        self.event_id = rng.choice((0, 1, 7))
        self.sequence = 0
        self.held: dict[tuple[bytes, ...], bytes] = {}

    @property
    def key(self) -> tuple[str, int]:
        """Namespace and publisher id."""
        return self.worker.namespace, self.publisher

    def records(self) -> list[tuple[str, bytes]]:
        """Its keys and values."""
        space, place = self.worker.namespace, f"topic/kv-events/{self.publisher:x}"
        scope = {"kind": "namespace", "namespace": space}
        channel = {
            "type": "EventChannel",
            "scope": scope,
            "instance_id": self.publisher,
            "topic": "kv-events",
            "transport": {"kind": "Zmq", "config": {"endpoint": "tcp://10.0.0.2:6000"}},
        }
        found = [(prefix_of(Keyspace.CHANNELS, space) + place, text(channel))]
        if self.is_bound:
            bound = {"worker_id": self.worker.number, "dp_rank": self.rank}
            source = {
                "type": "EventSource",
                "scope": scope,
                "topic": "kv-events",
                "publisher_id": self.publisher,
                "metadata": {"worker": bound, "publisher_id": self.publisher},
            }
            found.append((prefix_of(Keyspace.SOURCES, space) + place, text(source)))
        return found

    def restart(self) -> None:
        """Another publisher, which knows of nothing."""
        self.publisher += 50
        self.event_id, self.sequence, self.held = 0, 0, {}

    def stores(self, prompt: Prompt) -> list[tuple[bytes, bytes]]:
        """It keeps a prompt: at most one event, of what it did not have yet."""
        size = self.worker.card["kv_cache_block_size"]
        hashes = tokens_hashes(prompt, size) if size in (16, 64) else []
        have = 0
        while have < len(hashes) and tuple(hashes[: have + 1]) in self.held:
            have += 1
        if have == len(hashes):
            return []
        names = []
        for depth in range(have, len(hashes)):
            path = tuple(hashes[: depth + 1])
            owner = (self.worker.number, self.rank) if self.has_own_names else None
            names.append(xxhash.xxh3_64_digest(repr((owner, path)).encode()))
            self.held[path] = names[-1]
        parent = self.held[tuple(hashes[:have])] if have else b""
        return [self._event(KvOperation.STORED, parent, hashes[have:], names)]

    def forgets(self) -> list[tuple[bytes, bytes]]:
        """It drops some blocks, any of them, or all."""
        if self.rng.random() < 0.1:
            self.held = {}
            return [self._event(KvOperation.CLEARED, b"", [], [])]
        paths = sorted(self.held)
        gone = [path for path in paths if self.rng.random() < 0.3]
        names = [self.held.pop(path) for path in gone]
        return [self._event(KvOperation.REMOVED, b"", [], names)] if names else []

    def _event(
        self, operation: KvOperation, parent: bytes, tokens: list[bytes], names: list[bytes]
    ) -> tuple[bytes, bytes]:
        """Head and columns."""
        self.event_id += 2 if self.rng.random() < 0.03 else 1  # one was lost before it was sent
        worker = self.worker.number if self.rng.random() > 0.02 else 4_000  # of nobody
        claimed = 0 if self.is_bound else self.rank
        head = KV_EVENT_HEAD.pack(
            worker, claimed, self.event_id, operation, self.tier, bool(parent), len(names)
        )
        return head, parent + b"".join(tokens) + b"".join(names)


def engines_of(worker: SimWorker, rng: Random) -> list[SimEngine]:
    """Engines of a worker's ranks: most publish, some twice, some their host memory too."""
    found: list[SimEngine] = []
    for rank in range(worker.first_rank, worker.first_rank + worker.ranks):
        kinds = rng.choice(
            ((), (DEVICE,), (DEVICE,), (DEVICE,), (DEVICE, DEVICE), (DEVICE, HOST), (DEVICE, DISK))
        )
        for tier in kinds:
            found.append(SimEngine(worker, rank, len(found), tier, rng))
    return found


def row_of(family: Family, key: tuple[str, int], line: Any, connections: dict[tuple[str, int], int]) -> Any:
    """Where a simulated subscription stands."""
    state = SubscriptionState.CONNECTED if line.is_connected else SubscriptionState.BACKOFF
    reason = "connected" if line.is_connected else "closed"
    place = ("", "", state, Transport.DIRECT, connections.get(key, 0), reason)
    return SubscriptionRow(family, PublisherKey(*key), *place)


class SimBlockSubscriptions:
    """Subscriptions to block events, as the supervisor keeps them."""

    def __init__(self, process: OwnerProcess, fold: Fold) -> None:
        self._process = process
        self._connections: dict[tuple[str, int], int] = {}
        self._held = [key[1:] for key in fold.state.status.subscriptions if key[0] == Family.KV]
        for key, held in fold.state.status.subscriptions.items():
            if key[0] == Family.KV:
                self._connections[key[1:]] = held.connection
        self.lines: dict[tuple[str, int], SimBlockLine] = {}

    def follow(self, fleet: Fleet) -> None:
        """Start and end lines as the folded fleet says."""
        wanted = {(*one.key,) for one in fleet.publishers if one.topic == "kv-events"}
        held, self._held = self._held, []
        for key in sorted(held):
            if key not in wanted:
                self.say(key, SubscriptionState.ENDED, "departed")
        for key in sorted(set(self.lines) - wanted):
            self.lines.pop(key).is_closed = True
            self.say(key, SubscriptionState.ENDED, "departed")
        for key in sorted(wanted - set(self.lines)):
            self.say(key, SubscriptionState.CONNECTING, "started")
            self.lines[key] = SimBlockLine(self, self._process, key)

    def cut(self, reason: str) -> None:
        """All connections end."""
        for line in self.lines.values():
            line.cut(reason)

    def connect(self, key: tuple[str, int]) -> int:
        """The number of a new connection."""
        self._connections[key] = self._connections.get(key, 0) + 1
        self.say(key, SubscriptionState.CONNECTED, "connected")
        return self._connections[key]

    def rows(self) -> list[SubscriptionRow]:
        """As the supervisor tells them."""
        return [row_of(Family.KV, key, line, self._connections) for key, line in self.lines.items()]

    def renumber(self, key: tuple[str, int], shift: int) -> None:
        """As the supervisor does."""
        self._connections[key] = self._connections.get(key, 0) + shift
        if key in self.lines:
            self.lines[key].connection += shift

    def say(self, key: tuple[str, int], state: SubscriptionState, reason: str) -> None:
        """Tell the log."""
        connection = self._connections.get(key, 0)
        self._process.say_ingest(
            SubscriptionChanged(
                int(Family.KV), *key, "", int(state), connection, int(Transport.DIRECT), reason
            )
        )


class SimBlockLine:
    """One publisher's subscription: connect, listen, wait, again."""

    def __init__(self, owner: SimBlockSubscriptions, process: OwnerProcess, key: tuple[str, int]) -> None:
        self._owner, self._process, self.key = owner, process, key
        self.connection = self.session = 0
        self.is_connected = self.is_closed = False
        self._dial()

    def cut(self, reason: str) -> None:
        """The connection ends."""
        if self.is_connected:
            self.is_connected = False
            self._owner.say(self.key, SubscriptionState.BACKOFF, reason)
            self._dial()

    def frame(self, session: int, sequence: int, events: list[tuple[bytes, bytes]]) -> None:
        """A frame of events arrived."""
        if not self.is_connected or self.is_closed or session != self.session:
            return
        heads, columns = (b"".join(part) for part in zip(*events, strict=True))
        self._process.say_ingest(
            KvBatchReceived(*self.key, self.connection, sequence, sequence, heads, columns, 0)
        )

    def _dial(self) -> None:
        self._process.later(self._process.sim.kv_rng.choice((1_000, 50_000, 1_500_000)), self._connect)

    def _connect(self) -> None:
        if self.is_closed or self.is_connected:
            return
        if not self._process.sim.has_engine(self.key):
            self._dial()
            return
        self.is_connected = True
        self.session += 1
        self.connection = self._owner.connect(self.key)
