"""What a fleet of any size needs, on paper: processor, bytes, memory, restart, and which limit comes first.

Nothing is run. Costs are those of `docs/performance.md`, stated for one core of the reference
machine; bytes of a record are counted by encoding one; ceilings are those of
`projections.bounds`. A fleet grows by copies of the reference fleet's ranks: each sends the
same samples and kv-events and gets the same requests, whatever their number.

    python -m bench.scaling_model [--json] [--plot FOLDER]

Assumed, not measured: everything in `Assumed`. `docs/scaling.md` says what follows.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from projections import bounds
from projections.events.codec import encode_record
from projections.events.signals import (
    KV_EVENT_HEAD,
    KvBatchReceived,
    KvOperation,
    SampleReceived,
    StorageTier,
)

US: Final = 1e-6
EVENTS_PER_BATCH: Final = 4
BLOCKS_PER_BATCH: Final = 10
ANSWER_EVENTS: Final = 300  # one event a token


class Costs(NamedTuple):
    """Seconds of one core, each with its row of docs/performance.md."""

    fold_sample: float = 3.5 * US  # replay of a plain segment: read and folded
    fold_kv_event: float = 1 / 233_000  # kv_fold, 4 events in a record
    fold_request: float = 0.10 * 402 * US  # a request's time: folding both records, 7 to 13 %
    request: float = 402 * US  # CPU per request, 16 events
    relayed_event: float = 21.7 * US  # CPU per event
    pick_row: float = 1.3 * US  # pick: a row at any size
    receive_frame: float = 1 / 124_400  # load samples received over ZMTP
    kv_frame: float = 3.1 * US  # kv-events to columns, 234,000/s alone and 756,000/s in frames of 16,
    kv_event: float = 1.1 * US  # solved for a frame and an event
    append: float = 1 / 1_011_000  # append of ready facts, not synced
    kafka_write: float = 1.7 * US  # bench.kafka_topic, a record in commits of 500
    kafka_read: float = 1.8 * US  # bench.kafka_fold, without the fold
    sql_pick: float = 1 / 5_232  # audit, the best 8 of each phase
    ownership_bytes: float = 13.8  # memory at the ceilings
    worker_bytes: float = 89 * 1024**2 / 16_384  # registry of 16,384 workers
    process_bytes: float = 70e6  # a small fleet, docs/operating.md
    load_ownership: float = 0.6 / 8_388_608  # restart at the ceilings from a checkpoint


class Assumed(NamedTuple):
    """What no benchmark here measures."""

    busy_max: float = 0.7  # of its one core that a process may use before delays grow
    partition_bytes_per_s: float = 100e6  # that one partition's leader takes
    broker_bytes_per_s: float = 25e9 / 8  # that the leader's network card gives to readers
    blocks_per_rank: int = 16_384  # cached blocks of 16 tokens, as Dynamo's own benchmark has
    pool_ranks: int = 512  # candidates of one model; a larger fleet serves more models
    pick_record_bytes: int = 4_600  # a prompt of 8k tokens, four fifths cached: 400 hashes, 16 rows
    end_record_bytes: int = 130
    sample_kept_share: float = 0.36  # after compression; packed hashes do not compress
    checkpoint_every_s: float = 60.0


COSTS: Final = Costs()
ASSUMED: Final = Assumed()


class Fleet(NamedTuple):
    """A fleet's traffic, per second. replicas: router processes that read one log."""

    name: str
    workers: int
    ranks: int
    samples: float
    kv_events: float
    requests: float
    replicas: int


REFERENCE: Final = Fleet("reference", 64, 512, 7_000, 20_000, 200, 3)


def grown(name: str, ranks: float, ranks_per_worker: float, replicas: int) -> Fleet:
    """A fleet whose ranks each behave as those of the reference fleet."""
    share = ranks / REFERENCE.ranks
    rates = (REFERENCE.samples * share, REFERENCE.kv_events * share, REFERENCE.requests * share)
    return Fleet(name, math.ceil(ranks / ranks_per_worker), round(ranks), *rates, replicas)


TARGET: Final = grown("target", 25_600, 2.56, 100)
"""10,000 workers that send 1,000,000 kv-events/s together, read by 100 replicas."""
FLEETS: Final = (REFERENCE, grown("x 4", 2_048, 8, 8), grown("x 16", 8_192, 8, 32), TARGET)


class Needs(NamedTuple):
    """What one log of a fleet needs, on Kafka. Cores of one process each; a process has one."""

    read: float
    fold_samples: float
    fold_kv: float
    fold_requests: float
    replica: float
    owner: float
    follower: float
    log_bytes_per_s: float
    kept_bytes_per_day: float
    leader_bytes_per_s: float
    replica_memory_bytes: float
    restart_s: float

    @property
    def following(self) -> float:
        """Cores of reading and folding, the same in every process."""
        return self.read + self.fold_samples + self.fold_kv + self.fold_requests


def record_bytes() -> tuple[int, int]:
    """Bytes of a record of one sample and of one batch of kv-events, as the codec writes them."""
    writer = bytes(16)
    sample = SampleReceived("dynamo", 1 << 52, 1, 1 << 20, 1 << 20, 1 << 60, 3, 512, None, 8_192, 1 << 50)
    stored = KV_EVENT_HEAD.pack(1 << 60, 3, 1 << 20, KvOperation.STORED, StorageTier.DEVICE, True, 3)
    removed = KV_EVENT_HEAD.pack(1 << 60, 3, 1 << 20, KvOperation.REMOVED, StorageTier.DEVICE, False, 2)
    stored_blocks, removed_blocks = 2 * 3, 2 * 2
    assert stored_blocks + removed_blocks == BLOCKS_PER_BATCH
    columns = bytes(8 * (2 + 2 * stored_blocks + removed_blocks))  # a parent each; tokens and engine hashes
    heads = 2 * stored + 2 * removed
    batch = KvBatchReceived("dynamo", 1 << 52, 1, 1 << 20, 1 << 20, heads, columns, 1 << 50)
    return tuple(len(encode_record(1 << 50, writer, 1, 1 << 20, fact)) for fact in (sample, batch))  # type: ignore[return-value]


def request_seconds(fleet: Fleet) -> float:
    """Core seconds of one request at the replica that relays it, without following the log."""
    events = COSTS.relayed_event * (ANSWER_EVENTS - 16)  # 16 are part of the request's own figure
    return COSTS.request + events + COSTS.pick_row * min(fleet.ranks, ASSUMED.pool_ranks)


def replicas_needed(fleet: Fleet) -> int | None:
    """So many that none is busier than `busy_max`; None where following the log alone is."""
    left = ASSUMED.busy_max - needs(fleet).following
    return math.ceil(fleet.requests * request_seconds(fleet) / left) if left > 0 else None


def needs(fleet: Fleet) -> Needs:
    """Of a fleet with one log."""
    costs, assumed = COSTS, ASSUMED
    sample_bytes, batch_bytes = record_bytes()
    batches = fleet.kv_events / EVENTS_PER_BATCH
    fold_samples = fleet.samples * costs.fold_sample
    fold_kv = fleet.kv_events * costs.fold_kv_event
    fold_requests = fleet.requests * costs.fold_request
    received = costs.receive_frame * (fleet.samples + batches)
    decoded = batches * costs.kv_frame + fleet.kv_events * costs.kv_event
    records = fleet.samples + batches + 2 * fleet.requests
    read = costs.kafka_read * records
    following = read + fold_samples + fold_kv + fold_requests
    request_bytes = fleet.requests * (assumed.pick_record_bytes + assumed.end_record_bytes)
    log_bytes = fleet.samples * sample_bytes + batches * batch_bytes + request_bytes
    kept = fleet.samples * sample_bytes * assumed.sample_kept_share + batches * batch_bytes + request_bytes
    readers = fleet.replicas + 2  # the standby and the follower; the owner folds what it wrote
    ownerships = fleet.ranks * assumed.blocks_per_rank
    memory = costs.process_bytes + costs.worker_bytes * fleet.workers + costs.ownership_bytes * ownerships
    behind = _checkpoint_spacing_s(records + fleet.kv_events) * following
    restart = costs.load_ownership * ownerships + (behind / (1 - following) if following < 1 else math.inf)
    return Needs(
        read,
        fold_samples,
        fold_kv,
        fold_requests,
        following + fleet.requests / fleet.replicas * request_seconds(fleet),
        following + received + decoded + (costs.append + costs.kafka_write) * records,
        following + fleet.requests * costs.sql_pick,
        log_bytes,
        kept * 86_400,
        log_bytes * readers,
        memory,
        restart,
    )


def _checkpoint_spacing_s(folded_per_s: float) -> float:
    """Log time between checkpoints of a fleet that writes so many records and kv-events a second."""
    soonest = bounds.CHECKPOINT_SPACING_US / bounds.SECOND_US
    return min(ASSUMED.checkpoint_every_s, max(soonest, bounds.CHECKPOINT_TAIL_MAX / folded_per_s))


class Limit(NamedTuple):
    """Something that ends growth. used: its share that a fleet uses, 1 where it is reached."""

    name: str
    kind: str
    used: Callable[[Fleet, Needs], float]


def _index(fleet: Fleet, _: Needs) -> float:
    return fleet.ranks * ASSUMED.blocks_per_rank / bounds.KV_OWNERSHIPS_MAX


def _ledger(fleet: Fleet, _: Needs) -> float:
    return fleet.requests * bounds.DISPATCH_AGE_US_MAX * US / bounds.LEDGER_LINES_MAX


LIMITS: Final = (
    Limit("blocks that the index holds", "ceiling", _index),
    Limit("subscriptions of a family", "ceiling", lambda fleet, _: fleet.workers / bounds.SUBSCRIPTIONS_MAX),
    Limit("keys of a keyspace", "ceiling", lambda fleet, _: fleet.workers / bounds.KEYS_PER_KEYSPACE_MAX),
    Limit("lines of the ledger", "ceiling", _ledger),
    Limit("owner", "processor", lambda _, need: need.owner / ASSUMED.busy_max),
    Limit("following, every process", "processor", lambda _, need: need.following / ASSUMED.busy_max),
    Limit("follower", "processor", lambda _, need: need.follower / ASSUMED.busy_max),
    Limit(
        "into the partition", "Kafka", lambda _, need: need.log_bytes_per_s / ASSUMED.partition_bytes_per_s
    ),
    Limit("out of its leader", "Kafka", lambda _, need: need.leader_bytes_per_s / ASSUMED.broker_bytes_per_s),
)
"""Those of the leader's network are for as many replicas as the fleet has."""


def reached_at(limit: Limit, ranks_per_worker: float = 2.56) -> float:
    """Ranks of the fleet at which a limit is reached; every limit grows with the fleet."""
    low, high = 1.0, 1e9
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        fleet = grown("", middle, ranks_per_worker, 100)
        low, high = (low, middle) if limit.used(fleet, needs(fleet)) >= 1 else (middle, high)
    return high


class Split(NamedTuple):
    """A fleet over several logs, each with its own namespaces, owner and follower. fleet: one part."""

    logs: int
    fleet: Fleet
    needs: Needs


def split(fleet: Fleet, with_ceilings: bool = True) -> Split:
    """The least number of logs at which no part of the fleet reaches a limit.

    with_ceilings: False leaves the compiled-in ceilings out, which are numbers to be raised.
    """
    for logs in range(1, 10_000):
        part = _part(fleet, logs)
        replicas = replicas_needed(part)
        if replicas is None:
            continue
        part = part._replace(replicas=replicas)
        need = needs(part)
        if all(one.used(part, need) < 1 for one in LIMITS if with_ceilings or one.kind != "ceiling"):
            return Split(logs, part, need)
    raise ValueError(f"{fleet} fits no number of logs")


def _part(fleet: Fleet, logs: int) -> Fleet:
    rates = (fleet.samples / logs, fleet.kv_events / logs, fleet.requests / logs)
    workers, ranks = math.ceil(fleet.workers / logs), math.ceil(fleet.ranks / logs)
    return Fleet(f"{fleet.name} / {logs}", workers, ranks, *rates, 1)


def document() -> dict[str, Any]:
    """Everything as one document."""
    sample_bytes, batch_bytes = record_bytes()
    return {
        "record_bytes": {"sample": sample_bytes, "kv_batch": batch_bytes},
        "fleets": [
            {**one._asdict(), "needs": needs(one)._asdict(), "replicas_needed": replicas_needed(one)}
            for one in FLEETS
        ],
        "limits": [
            {"name": one.name, "kind": one.kind, "ranks": round(at), "workers": round(at / 2.56)}
            for at, one in sorted((reached_at(one), one) for one in LIMITS)
        ],
        "split": {
            name: {"logs": found.logs, "part": found.fleet._asdict(), "needs": found.needs._asdict()}
            for name, found in (
                ("with today's ceilings", split(TARGET)),
                ("ceilings raised", split(TARGET, with_ceilings=False)),
            )
        },
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The document as the tables of docs/scaling.md."""
    titles = [one["name"] for one in found["fleets"]]
    rows = ["| | " + " | ".join(titles) + " |", "|---" * (len(titles) + 1) + "|"]
    columns = [_column(one) for one in found["fleets"]]
    rows += [f"| {title} | " + " | ".join(column[title] for column in columns) + " |" for title in columns[0]]
    rows += ["", "| limit | kind | ranks | workers |", "|---|---|---|---|"]
    rows += [
        f"| {one['name']} | {one['kind']} | {one['ranks']:,} | {one['workers']:,} |"
        for one in found["limits"]
    ]
    titles = ["split", "logs", "workers each", "replicas each; all", "owner, replica, follower", "log each"]
    rows += ["", "| " + " | ".join([*titles, "restart"]) + " |"]
    rows.append("|---" * 7 + "|")
    for name, one in found["split"].items():
        part, need, logs = one["part"], one["needs"], one["logs"]
        cores = ", ".join(f"{need[who]:.2f}" for who in ("owner", "replica", "follower"))
        rows.append(
            f"| {name} | {logs} | {part['workers']:,} | {part['replicas']}; {part['replicas'] * logs} "
            f"| {cores} | {need['log_bytes_per_s'] / 1e6:.1f} MB/s | {need['restart_s']:.0f} s |"
        )
    return rows


def _column(one: dict[str, Any]) -> dict[str, str]:
    need = one["needs"]
    restart, replicas = need["restart_s"], one["replicas_needed"]
    return {
        "workers; ranks": f"{one['workers']:,}; {one['ranks']:,}",
        "kv-events/s; samples/s; requests/s": "; ".join(
            f"{one[name]:,.0f}" for name in ("kv_events", "samples", "requests")
        ),
        "replicas": str(one["replicas"]),
        "reading the log, cores": f"{need['read']:.2f}",
        "fold of kv-events, cores": f"{need['fold_kv']:.2f}",
        "fold of samples, cores": f"{need['fold_samples']:.2f}",
        "fold of picks and ends, cores": f"{need['fold_requests']:.2f}",
        "**replica**: following and its requests, cores": f"**{need['replica']:.2f}**",
        "**owner**, cores": f"**{need['owner']:.2f}**",
        "**follower**, cores": f"**{need['follower']:.2f}**",
        "replicas that would do": "no number" if replicas is None else str(replicas),
        "log, MB/s": f"{need['log_bytes_per_s'] / 1e6:,.1f}",
        "log kept a day, GB": f"{need['kept_bytes_per_day'] / 1e9:,.0f}",
        "leader to its readers, MB/s": f"{need['leader_bytes_per_s'] / 1e6:,.0f}",
        "memory of a replica, GB": f"{need['replica_memory_bytes'] / 1e9:.1f}",
        "restart from a checkpoint, s": "never" if math.isinf(restart) else f"{restart:.0f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What a fleet of any size needs, on paper.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--plot", type=Path, metavar="FOLDER", help="draw scaling_cpu.svg and scaling_log.svg"
    )
    options = parser.parse_args()
    found = document()
    if options.plot is not None:
        from bench.scaling_plot import draw

        draw(options.plot)
    print(json.dumps(found, indent=1, default=str) if options.json else "\n".join(lines(found)))


if __name__ == "__main__":
    main()
