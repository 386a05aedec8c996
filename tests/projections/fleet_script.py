"""A small fleet in a few words: values as workers write them, and a log that is folded as it grows."""

from __future__ import annotations

import json
from typing import Any

import xxhash
from blake3 import blake3

from projections.events.codec import encode_record
from projections.events.control import ClockTicked, LaneOpened
from projections.events.discovery import KeyDeleted, KeyPut, Keyspace, PassBegan, PassSettled
from projections.events.kinds import FACT_KINDS, KIND_OF_FACT, Speaker
from projections.events.signals import (
    Family,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from projections.fold import Fold
from projections.notices import Notice
from projections.registry.fleet import Fleet
from projections.registry.keyspace import key_digest_input

OWNER = b"owner-----------"
REPLICA = b"replica---------"
NS = "dynamo"


def text(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def endpoint(instance_id: object, component: str = "backend", name: str = "generate", **more: Any) -> bytes:
    return text(
        {
            "type": "Endpoint",
            "namespace": NS,
            "component": component,
            "endpoint": name,
            "instance_id": instance_id,
            "transport": {"tcp": f"10.0.0.1:4000/{name}"},
            **more,
        }
    )


def card(
    instance_id: object,
    component: str = "backend",
    name: str = "generate",
    worker_type: object = "aggregated",
    model: object = "tiny",
    runtime: dict[str, Any] | None = None,
    suffix: object = None,
    **more: Any,
) -> bytes:
    body = {
        "display_name": model,
        "worker_type": worker_type,
        "kv_cache_block_size": 16,
        "runtime_config": {
            "total_kv_blocks": 256,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 64,
            **(runtime or {}),
        },
        **more,
    }
    document = {
        "type": "Model",
        "namespace": NS,
        "component": component,
        "endpoint": name,
        "instance_id": instance_id,
        "card_json": body,
    }
    if suffix is not None:
        document["model_suffix"] = suffix
    return text(document)


def channel(
    publisher_id: object, component: str = "backend", topic: str = "kv_metrics", port: int = 5000, **more: Any
) -> bytes:
    return text(
        {
            "type": "EventChannel",
            "scope": {
                "kind": "endpoint",
                "endpoint": {"namespace": NS, "component": component, "name": "generate"},
            },
            "topic": topic,
            "instance_id": publisher_id,
            "transport": {"kind": "Zmq", "config": {"endpoint": f"tcp://10.0.0.1:{port}"}},
            **more,
        }
    )


def source(publisher_id: int, worker_id: object, dp_rank: object = 0, component: str = "backend") -> bytes:
    return text(
        {
            "type": "EventSource",
            "scope": {
                "kind": "endpoint",
                "endpoint": {"namespace": NS, "component": component, "name": "generate"},
            },
            "topic": "kv-events",
            "publisher_id": publisher_id,
            "metadata": {
                "worker": {"worker_id": worker_id, "dp_rank": dp_rank},
                "publisher_id": publisher_id,
                "recovery_target": None,
            },
        }
    )


def instance_key(instance_id: int, component: str = "backend", name: str = "generate") -> str:
    return f"{component}/{name}/{instance_id:x}"


def channel_key(publisher_id: int, component: str = "backend", topic: str = "kv_metrics") -> str:
    return f"component/{component}/endpoint/generate/topic/{topic}/{publisher_id:x}"


def put(keyspace: Keyspace, key: str, value: bytes, revision: int = 1, namespace: str = NS) -> KeyPut:
    return KeyPut(int(keyspace), namespace, key, revision, value, len(value), blake3(value).digest())


def deleted(keyspace: Keyspace, key: str, revision: int = 1, namespace: str = NS) -> KeyDeleted:
    return KeyDeleted(int(keyspace), namespace, key, revision)


class Script:
    """Writes records as an owner and its replicas would, and folds each at once.

    Time goes on by a millisecond a record. `notices` holds those of the last record.
    """

    def __init__(self, fold: Fold | None = None, opened: bool = True) -> None:
        self.fold = fold if fold is not None else Fold()
        self.records: list[bytes] = []
        self.notices: list[Notice] = []
        self.all_notices: list[Notice] = []
        self.time = 1_000_000
        self.sequences: dict[bytes, int] = {}
        self.epoch = 0
        self.owner = OWNER
        if opened:
            self.open()

    @property
    def fleet(self) -> Fleet:
        return self.fold.state.registry.fleet

    def open(self, writer: bytes = OWNER) -> None:
        self.owner = writer
        self.epoch += 1
        self.say(LaneOpened(self.epoch, 0, b"", "new"), writer=writer, epoch=self.epoch)

    def say(
        self,
        fact: tuple[Any, ...],
        *,
        writer: bytes | None = None,
        epoch: int | None = None,
        time: int | None = None,
        step: int = 1_000,
    ) -> tuple[Any, ...] | None:
        """Encode and fold one fact; owner's facts come from the owner unless said otherwise."""
        self.time += step
        owns = FACT_KINDS[KIND_OF_FACT[type(fact)]].speaker in (Speaker.OWNER, Speaker.CLAIMANT)
        writer = writer if writer is not None else (self.owner if owns else REPLICA)
        epoch = epoch if epoch is not None else (self.epoch if owns else 0)
        self.sequences[writer] = self.sequences.get(writer, 0) + 1
        data = encode_record(self.time if time is None else time, writer, epoch, self.sequences[writer], fact)
        return self.fold_bytes(data)

    def fold_bytes(self, data: bytes) -> tuple[Any, ...] | None:
        self.records.append(data)
        self.notices = []
        offset = self.fold.mark.offset + 1
        try:
            return self.fold.apply(offset, data, self.notices)
        finally:
            self.all_notices += self.notices

    # shorthands

    def put(self, keyspace: Keyspace, key: str, value: bytes, revision: int = 1, namespace: str = NS) -> None:
        self.say(put(keyspace, key, value, revision, namespace))

    def delete(self, keyspace: Keyspace, key: str, revision: int = 1, namespace: str = NS) -> None:
        self.say(deleted(keyspace, key, revision, namespace))

    def worker(
        self, instance_id: int, component: str = "backend", namespace: str = NS, **of_card: Any
    ) -> None:
        """An endpoint and its card."""
        key = instance_key(instance_id, component)
        self.put(Keyspace.INSTANCES, key, endpoint(instance_id, component), namespace=namespace)
        self.put(Keyspace.CARDS, key, card(instance_id, component, **of_card), namespace=namespace)

    def publisher(self, publisher_id: int, component: str = "backend", topic: str = "kv_metrics") -> None:
        self.put(
            Keyspace.CHANNELS,
            channel_key(publisher_id, component, topic),
            channel(publisher_id, component, topic),
        )

    def sample(
        self, worker_id: int, sequence: int, blocks: int | None = 3, dp_rank: int = 0, publisher_id: int = 77
    ) -> None:
        self.say(
            SampleReceived(
                NS, publisher_id, 1, sequence, sequence, worker_id, dp_rank, None, None, blocks, 0, None
            )
        )

    def subscribed(self, publisher_id: int, connection: int = 1) -> None:
        self.say(
            SubscriptionChanged(
                int(Family.LOAD),
                NS,
                publisher_id,
                "backend",
                int(SubscriptionState.CONNECTED),
                connection,
                int(Transport.DIRECT),
                "connected",
            )
        )

    def tick(self, step: int = 1_000_000) -> None:
        self.say(ClockTicked(0, -1, (), 0, 0), step=step)

    def pass_began(self, number: int = 1, reason: str = "start", namespaces: tuple[str, ...] = (NS,)) -> None:
        self.say(PassBegan("etcd", namespaces, number, reason))

    def pass_settled(
        self,
        number: int = 1,
        revision: int = 1,
        namespaces: tuple[str, ...] = (NS,),
        keys: int | None = None,
    ) -> None:
        """Settle with the count and digest of what the fold holds, or with another count."""
        held = self.fold.state.registry.held_digests(namespaces)
        digest = 0
        for (keyspace, namespace, key), value_digest in held.items():
            entry = key_digest_input(keyspace, namespace, key, value_digest)
            digest = (digest + xxhash.xxh3_64_intdigest(entry)) & ((1 << 64) - 1)
        count = len(held) if keys is None else keys
        self.say(PassSettled("etcd", namespaces, number, count, digest, revision))
