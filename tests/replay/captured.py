"""Logs of which captures are made, and a capture kept in memory, for tests of both."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import xxhash
from blake3 import blake3

from projections.checkpoint import checkpoint_records
from projections.events.codec import decode_record
from projections.events.control import CheckpointDue, ConfigAdopted
from projections.events.discovery import KeyPut, Keyspace, PassBegan, PassSettled
from projections.events.ports import CheckpointInfo, CheckpointStore, MemoryLog
from projections.fold import Fold
from projections.registry.keyspace import key_digest_input
from replay.log_walk import records_of
from tests.replay.recorded_log import SETTINGS, RecordedLog

ADDRESS = "tcp://10.11.12.13:5557"
HOST = "node-17.example.net"
SECRETS = (ADDRESS, "10.11.12.13", HOST, "bootstrap.example.net", "https://frontend.example.net")


class MemoryCheckpoints:
    """A CheckpointStore that keeps record lists."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[CheckpointInfo, list[bytes]]] = {}

    def list(self) -> Sequence[CheckpointInfo]:
        return [info for info, _ in self.kept.values()]

    def read(self, info: CheckpointInfo) -> Iterator[bytes]:
        return iter(self.kept[info.name][1])

    def write(
        self, log_id: bytes, offset: int, check: int, time: int, records: Iterator[bytes]
    ) -> CheckpointInfo:
        info = CheckpointInfo(offset, check, time, 0, str(offset))
        self.kept[info.name] = (info, [*records])
        return info


class MemoryCapture:
    """A CaptureWriter whose capture can be read as a log with one checkpoint."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.checkpoints = MemoryCheckpoints()
        self.manifest: dict[str, Any] | None = None
        self._begun = False

    def base(self, log_id: bytes, time: int, records: Iterable[bytes]) -> None:
        held = [*records]
        opened: Any = decode_record(0, held[0]).fact
        self.checkpoints.write(log_id, opened.offset, opened.check, time, iter(held))

    def records(self, first_offset: int, records: Sequence[bytes]) -> None:
        if not self._begun:
            self.log = MemoryLog(start=first_offset)
            self._begun = True
        self.log.jump(first_offset)
        self.log.commit(records)

    def finish(self, manifest: dict[str, Any]) -> None:
        self.manifest = manifest


def checkpoint_at(world: RecordedLog, store: CheckpointStore, offset: int) -> None:
    """Write the state of an offset."""
    fold = Fold()
    for at, data in records_of(world.log, 0, offset + 1):
        fold.apply(at, data, [])
    mark = fold.mark
    store.write(world.log.log_id, offset, mark.check, mark.time, checkpoint_records(fold, world.log.log_id))


def busy_log(picks: int = 12) -> RecordedLog:
    """Two replicas that lag behind each other, samples, ends, addresses in many places."""
    world = RecordedLog()
    settings = json.dumps(
        {
            "backends": [{"name": "frontend-a", "url": "https://frontend.example.net"}],
            "server": {"bind_address": [HOST]},
            "log": {"retention": {"age": "7d"}, "raw": {"enabled": True}},
        }
    )
    world.say(ConfigAdopted(2, "file", b"e" * 16, settings, SETTINGS))
    world.say(PassBegan("file", ("dynamo",), 1, "start"))
    put_channel(world, 9, ADDRESS)
    put_card(world, 1)
    _settle(world)
    first, second = world.replica(), world.replica()
    for number in range(picks):
        world.pass_time(200_000)
        world.sample(1 + number % 3, 100 * number)
        asking, other = (first, second) if number % 2 else (second, first)
        fact = asking.ask(f"request-{number}", tokens=50 + number)
        if number % 3 == 0:
            asking.read()
        other.ask(f"other-{number}")
        asking.end(fact)
        if number % 4 == 3:
            first.read()
            second.read()
            world.say(CheckpointDue("time"))
    return world


def put_channel(world: RecordedLog, publisher: int, address: str) -> None:
    """A publisher at an address."""
    document = {
        "type": "EventChannel",
        "namespace": "dynamo",
        "component": "backend",
        "topic": "kv_metrics",
        "instance_id": publisher,
        "transport": {"kind": "Zmq", "config": {"endpoint": address}},
    }
    _put(world, Keyspace.CHANNELS, f"kv_metrics/{publisher:x}", document)


def put_card(world: RecordedLog, number: int) -> None:
    """A card with the address of a bootstrap server, and text that no pick reads."""
    card = {
        "display_name": "tiny",
        "worker_type": "aggregated",
        "kv_cache_block_size": 16,
        "chat_template": f"secret of {HOST}",
        "runtime_config": {
            "total_kv_blocks": 1000,
            "max_num_batched_tokens": 8192,
            "data_parallel_size": 1,
            "disaggregated_endpoint": {
                "bootstrap_host": "bootstrap.example.net",
                "bootstrap_port": 8998,
            },
        },
    }
    names = {"namespace": "dynamo", "component": "backend", "endpoint": "generate", "instance_id": number}
    _put(world, Keyspace.CARDS, f"backend/generate/{number:x}", {"type": "Model", **names, "card_json": card})


def _put(world: RecordedLog, keyspace: Keyspace, key: str, document: dict[str, Any]) -> None:
    value = json.dumps(document).encode()
    world.say(
        KeyPut(keyspace, "dynamo", key, world.log.end_offset(), value, len(value), blake3(value).digest())
    )


def _settle(world: RecordedLog) -> None:
    """The pass settles on exactly the keys that are held."""
    fold = Fold()
    for at, data in records_of(world.log, 0):
        fold.apply(at, data, [])
    held = fold.state.registry.keyspaces.held_digests(("dynamo",))
    digest = sum(xxhash.xxh3_64_intdigest(key_digest_input(*name, value)) for name, value in held.items())
    world.say(PassSettled("file", ("dynamo",), 1, len(held), digest % 2**64, world.log.end_offset()))
