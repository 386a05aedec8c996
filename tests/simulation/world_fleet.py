"""A simulated fleet: workers with their records in a discovery store, and publishers of samples.

The store behaves like etcd: revisions grow, watchers get what came after a revision, old
revisions are compacted away, and a restored backup counts from a smaller number. Workers
join, leave, change their cards and are copied; what they publish is random.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple

from ingest.discovery.source import (
    Connected,
    EndReason,
    FoundKey,
    GoneKey,
    KeysChanged,
    NamesEnded,
    NamesListed,
    ReadAt,
    SourceEnded,
    SourceEvent,
    ValuesEnded,
    ValuesRead,
    Watched,
    WatchesStand,
)
from ingest.wire.fleet_keys import prefix_of
from projections.events.discovery import Keyspace

NAMESPACES = ("alpha", "beta")
MODELS = ("tiny", "small")


class Change(NamedTuple):
    """One change of the store; value None where the key went."""

    revision: int
    key: str
    value: bytes | None


class Store:
    """Keys with revisions. `watchers` are told each change at once."""

    def __init__(self) -> None:
        self.revision = 10
        self.keys: dict[str, tuple[int, bytes]] = {}
        self.history: list[Change] = []
        self.compacted = 0
        self.watchers: list[Callable[[Change], None]] = []

    def put(self, key: str, value: bytes) -> None:
        """Write a key."""
        self.revision += 1
        self.keys[key] = (self.revision, value)
        self._tell(Change(self.revision, key, value))

    def delete(self, key: str) -> None:
        """Remove a key."""
        if key in self.keys:
            self.revision += 1
            del self.keys[key]
            self._tell(Change(self.revision, key, None))

    def below(self, watched: Watched) -> list[str]:
        """Keys of one watched prefix."""
        return sorted(key for key in self.keys if key.startswith(watched.prefix))

    def compact(self) -> None:
        """Forget all history."""
        self.compacted, self.history = self.revision, []

    def restore(self, backup: tuple[int, dict[str, tuple[int, bytes]]]) -> None:
        """Go back to a backup: smaller revisions, other keys, no watcher stays."""
        self.revision, self.keys = backup[0], dict(backup[1])
        self.history, self.compacted, self.watchers = [], 0, []

    def backup(self) -> tuple[int, dict[str, tuple[int, bytes]]]:
        """What `restore` takes."""
        return self.revision, dict(self.keys)

    def _tell(self, change: Change) -> None:
        self.history.append(change)
        for watcher in list(self.watchers):
            watcher(change)


class StoreSession:
    """The steps of one pass, each event after some time; anything may end it.

    later(delay_us, do): the simulator's clock. tell: where events go.
    """

    def __init__(
        self,
        store: Store,
        rng: Random,
        later: Callable[[int, Callable[[], object]], None],
        tell: Callable[[SourceEvent], None],
    ) -> None:
        self._store, self._rng, self._later, self._deliver = store, rng, later, tell
        self._closed = False
        self._due = 0
        self._told: deque[SourceEvent] = deque()
        self._watched: dict[str, Watched] = {}

    def close(self) -> None:
        """Nothing is told any more."""
        self._closed = True
        if self._watch in self._store.watchers:
            self._store.watchers.remove(self._watch)

    def end(self, reason: EndReason) -> None:
        """The store or the network ends the session."""
        self._say(SourceEnded(reason, "simulated"))

    def connect(self) -> None:
        """Step 1."""
        if self._rng.random() < 0.1:
            self._say(SourceEnded(EndReason.UNREACHABLE, ""))
        else:
            self._say(Connected("store"))

    def names(self, watched: tuple[Watched, ...]) -> None:
        """Step 2: each prefix at a revision of its own."""
        for one in watched:
            self._do(partial(self._list, one))

    def values(self, listed: tuple[ReadAt, ...]) -> None:
        """Step 3: values as they are when read, in pages."""
        for at in listed:
            self._do(partial(self._read, at))
        self._do(lambda: self._say(ValuesEnded()))

    def watches(self, listed: tuple[ReadAt, ...]) -> None:
        """Step 4: all that came after each listing, then what comes."""
        self._do(lambda: self._open(listed))

    def _list(self, one: Watched) -> None:
        keys = self._store.below(one)
        middle = self._rng.randint(0, len(keys))
        for part in (keys[:middle], keys[middle:]):
            self._say(NamesListed(one, tuple(key.encode() for key in part)))
        self._say(NamesEnded(one, self._store.revision))

    def _read(self, at: ReadAt) -> None:
        found = [
            FoundKey(
                key.encode(),
                self._store.keys[key][0],
                self._store.keys[key][1],
                len(self._store.keys[key][1]),
            )
            for key in self._store.below(at.watched)
            if self._store.keys[key][0] <= at.revision or self._rng.random() < 0.5
        ]
        if found:
            self._say(ValuesRead(at.watched, tuple(found)))

    def _open(self, listed: tuple[ReadAt, ...]) -> None:
        if any(at.revision < self._store.compacted for at in listed) or any(
            at.revision > self._store.revision for at in listed
        ):
            self._say(SourceEnded(EndReason.COMPACTED, ""))
            return
        self._watched = {at.watched.prefix: at.watched for at in listed}
        for at in listed:
            for change in self._store.history:
                if change.revision > at.revision and change.key.startswith(at.watched.prefix):
                    self._watch(change)
        self._store.watchers.append(self._watch)
        self._say(WatchesStand())

    def _watch(self, change: Change) -> None:
        for prefix, watched in self._watched.items():
            if change.key.startswith(prefix):
                key = change.key.encode()
                one = (
                    GoneKey(key, change.revision)
                    if change.value is None
                    else FoundKey(key, change.revision, change.value, len(change.value))
                )
                self._say(KeysChanged(watched, (one,)))

    def _do(self, step: Callable[[], None]) -> None:
        self._due += self._rng.randint(100, 5_000)
        self._later(self._due, lambda: None if self._closed else step())

    def _say(self, event: SourceEvent) -> None:
        """In order: no event overtakes another."""
        self._told.append(event)
        self._later(self._rng.randint(0, 50), self._tell_next)

    def _tell_next(self) -> None:
        if not self._closed:
            self._deliver(self._told.popleft())


class SimWorker:
    """One worker: its keys, its publisher and what it says."""

    def __init__(self, number: int, namespace: str, role: str, rng: Random | None) -> None:
        """rng: None for a plain worker of one rank."""
        self.number = number
        self.namespace = namespace
        self.component = {"aggregated": "backend"}.get(role, role)
        self.role = role
        self.model = MODELS[0]
        self.ranks = 1
        self.first_rank = 0
        self.publisher = 1000 + number
        self.sequence = 0
        self.is_alive = True
        self.is_silent_until = 0
        self.engines: list[Any] = []  # see `world_blocks`
        if rng is None:
            runtime = {"total_kv_blocks": 256, "max_num_batched_tokens": 8192}
            self.card: dict[str, Any] = {
                "display_name": self.model,
                "worker_type": role,
                "kv_cache_block_size": 16,
                "runtime_config": runtime,
            }
            return
        self.model = rng.choice(MODELS) if rng.random() < 0.4 else MODELS[0]
        self.ranks = rng.choice((1, 1, 1, 2, 3))
        self.first_rank = rng.choice((0, 0, 2)) if self.ranks > 1 else 0
        self.sequence = rng.randint(0, 3)
        self.card = self._card(rng)

    @property
    def key(self) -> tuple[str, int]:
        """Namespace and instance id."""
        return self.namespace, self.number

    def _card(self, rng: Random) -> dict[str, Any]:
        runtime: dict[str, Any] = {
            "total_kv_blocks": rng.choice((64, 256, 1000, 0)) if rng.random() < 0.2 else 256,
            "max_num_batched_tokens": rng.choice((2048, 8192, 0)) if rng.random() < 0.2 else 8192,
        }
        if self.ranks > 1 or rng.random() < 0.5:
            runtime["data_parallel_size"] = self.ranks
            runtime["data_parallel_start_rank"] = self.first_rank
        else:
            self.first_rank = 0
        card: dict[str, Any] = {
            "display_name": self.model,
            "worker_type": self.role,
            "kv_cache_block_size": 16 if rng.random() < 0.9 else rng.choice((0, 64)),
            "runtime_config": runtime,
        }
        if rng.random() < 0.05:
            card["worker_type"] = "prefill" if self.role != "prefill" else "decode"
        return card

    def change(self, rng: Random) -> None:
        """Another card."""
        self.card = self._card(rng)

    def records(self) -> list[tuple[str, bytes]]:
        """Its keys and values in the order in which it writes them."""
        names = {
            "namespace": self.namespace,
            "component": self.component,
            "endpoint": "generate",
            "instance_id": self.number,
        }
        place = f"{self.component}/generate/{self.number:x}"
        channel = {
            "type": "EventChannel",
            "scope": {"kind": "namespace", "namespace": self.namespace},
            "instance_id": self.publisher,
            "topic": "kv_metrics",
            "transport": {
                "kind": "Zmq",
                "config": {"endpoint": f"tcp://10.0.0.1:{5000 + self.publisher % 1000}"},
            },
        }
        return [
            (
                prefix_of(Keyspace.INSTANCES, self.namespace) + place,
                text({"type": "Endpoint", **names, "transport": {"tcp": "h:1/x"}}),
            ),
            (
                prefix_of(Keyspace.CARDS, self.namespace) + place,
                text({"type": "Model", **names, "card_json": self.card}),
            ),
            (
                prefix_of(Keyspace.CHANNELS, self.namespace) + f"topic/kv_metrics/{self.publisher:x}",
                text(channel),
            ),
        ]

    def block_records(self) -> list[tuple[str, bytes]]:
        """Keys and values of its engines' publishers."""
        return [record for engine in self.engines for record in engine.records()]

    def copy_of_instance(self) -> tuple[str, bytes]:
        """A second key that claims the same id (DUP-01)."""
        (key, value), *_ = self.records()
        return key + "0", value


def text(document: dict[str, Any]) -> bytes:
    """A record's value."""
    return json.dumps(document).encode()
