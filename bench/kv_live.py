"""How many kv-events a second one core takes live: frames in, records to the log, read back, folded.

What an owner does to a fleet's block events, all of it on one thread and with the product's own parts: the
four frames of each message, in the form that Dynamo 1.6.1 writes them, go through the event stream of
their publisher into the writer's step machine; a batch is cut when its interval of log time is over; the
segment log commits it, with fdatasync; a reader reads it back, and the fold decodes and applies it.
The socket, the event loop and the commit thread are left out: `bench.zmtp_decode` and `bench.tail_latency`
have them.

The events are those of `bench.kv_fold`, chats on 64 ranks, 1, 4 or 16 events of a rank in a frame. The
writer's clock goes as if they came at the rate of the floor, so that a commit of 2 ms holds as many as it
would then. Figures are CPU time of the process, waiting
for the disk not counted; seconds by the clock are printed beside. Dynamo's RadixTree, in the same run and
in turns, takes the same events from memory, applied alone.

Target at 4 events a frame: 180,000 events/s, goal 350,000.

    python -m bench.kv_live [--blocks N] [--rounds N] [--json]
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from app.collector import serving_collector
from bench import floor
from bench.index_rivals import Dynamo, dynamo_is_here
from bench.index_workload import SIZES, BlockEvent, Chats
from bench.kv_fold import BLOCKS, NAMESPACE, REFERENCE_RECORD, WRITER, fleet_facts, floor_speed, rival_speed
from ingest.log.appender import Appender
from ingest.log.appends import Importance, Send
from ingest.log.log_clock import OwnerClock
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_settings import SegmentSettings
from ingest.subscriptions.event_stream import EventStream
from ingest.subscriptions.reasons import Reason
from ingest.wire.publisher_frames import Opened, encode_envelope_message
from ingest.wire.router_events import KV_EVENTS_TOPIC
from ingest.wire.zmtp_frames import Message
from projections.events.control import ClockTicked, LaneOpened
from projections.fold import Fold
from projections.identity import PublisherKey
from projections.notices import FrameResult, KvEventResult, KvNotice, Notice

SIZE = SIZES["chat-64"]
PER_FRAME = (1, 4, 16)
FLOOR_PER_S, GOAL_PER_S = 180_000, 350_000
COMMIT_EVERY_US = 2_000
TICK_EVERY_US = 1_000_000
READ_BYTES = 1 << 20


class Owner:
    """An owner's writer, log, reader and fold. now: its clock, microseconds."""

    def __init__(self, folder: Path) -> None:
        self.now = 0
        self.notices: list[Notice] = []
        self.fold = Fold()
        self._log = SegmentLog.open_owner(folder, SegmentSettings(reserve_bytes=0))
        self._reader = SegmentReader.open(folder)
        self._appender = Appender(WRITER, is_owner=True, every_us=COMMIT_EVERY_US)
        self._appender.on_urgent(0, LaneOpened(1, 0, b"", "bench"), 1)
        self._position = 0
        self.turn()
        self._appender.on_claimed(0, 1, OwnerClock(0, 1))
        for fact in fleet_facts(SIZE.ranks):
            self.append(fact)
        self.turn()

    def append(self, fact: tuple[Any, ...], importance: Importance = Importance.CONTROL) -> None:
        """A fact of the owner."""
        self._appender.on_submitted(self.now, fact, importance)

    def tick(self) -> None:
        """A second has passed."""
        self.append(ClockTicked(self.now, -1, (), 0, 0))

    def turn(self) -> None:
        """Commit what is due, and fold what became visible."""
        for effect in self._appender.on_tick(self.now):
            if isinstance(effect, Send):
                first = self._log.commit(effect.records, effect.critical)
                self._appender.on_committed(self.now, effect.number, first)
                self._follow()

    def close(self) -> None:
        """Commit the rest."""
        self.now += COMMIT_EVERY_US
        self.turn()
        self._reader.close()
        self._log.close()

    def _follow(self) -> None:
        for batch in self._reader.read(self._position, READ_BYTES):
            self.fold.apply_batch(batch, self.notices)
            self._position = batch.first_offset + len(batch.records)


class Subscription:
    """What a publisher's event stream asks of its subscriber. See StreamHost."""

    def __init__(self, owner: Owner, publisher_id: int) -> None:
        self.key = PublisherKey(NAMESPACE, publisher_id)
        self.connection = 1
        self.peer: str | None = None
        self.keeps_raw = False
        self._owner = owner
        self.stream = EventStream(self)
        self.stream.begin()

    def append(self, fact: tuple[Any, ...]) -> None:
        """To the log."""
        self._owner.append(fact, Importance.KV)

    def keep_raw(self, frames: Message) -> int | None:
        """Nothing is kept."""
        return None

    def is_shedding(self) -> bool:
        """Never."""
        return False

    def count(self, result: FrameResult, times: int = 1) -> None:
        """Every frame must be taken."""
        raise SystemExit(f"{times} frames: {result.label}")

    def notice(self, notice: Notice) -> None:
        """Nothing to read."""

    def hold(self) -> None:
        """Nothing to hold."""

    def release(self) -> None:
        """Nothing to release."""

    def renew(self, reason: Reason, *, is_end: bool = False) -> None:
        """The peer stays the same."""


class Frames:
    """Writes events as a publisher of Dynamo 1.6.1 does, one publisher for each rank."""

    def __init__(self) -> None:
        self._ids = [0] * SIZE.ranks
        self._sequences = [0] * SIZE.ranks

    def of_turn(self, turn: list[BlockEvent], per_frame: int) -> Iterator[tuple[int, int, Message]]:
        """(rank, events, message) for the events of a turn, which are all of one rank."""
        for start in range(0, len(turn), per_frame):
            some = turn[start : start + per_frame]
            rank = some[0].rank
            payload = msgpack.packb([self._said(event) for event in some])
            opened = Opened(self._sequences[rank], 1_790_000_000_000, payload)
            self._sequences[rank] += 1
            message = encode_envelope_message(KV_EVENTS_TOPIC, publisher_of(rank), opened)
            yield rank, len(some), message

    def _said(self, event: BlockEvent) -> dict[str, Any]:
        self._ids[event.rank] += 1
        data: dict[str, Any]
        if event.tokens is None:
            data = {"removed": {"block_hashes": event.names}}
        else:
            blocks = [
                {"block_hash": name, "tokens_hash": token, "mm_extra_info": None}
                for name, token in zip(event.names, event.tokens, strict=True)
            ]
            data = {"stored": {"parent_hash": event.parent, "start_position": None, "blocks": blocks}}
        return {
            "worker_id": event.rank + 1,
            "storage_tier": "device",
            "residency_domain": "worker",
            "event": {"event_id": self._ids[event.rank], "data": data, "dp_rank": 0},
        }


def publisher_of(rank: int) -> int:
    """Id of the publisher of a rank."""
    return (1 << 52) + rank


def live_speed(folder: Path, frames: list[tuple[int, int, Message]], events: int) -> tuple[float, float]:
    """Events a second of CPU time and by the clock."""
    owner = Owner(folder)
    streams = [Subscription(owner, publisher_of(rank)).stream for rank in range(SIZE.ranks)]
    owner.notices.clear()
    per_event_us = 1_000_000 / FLOOR_PER_S
    said = ticked = committed = applied = 0
    used, began = time.process_time(), time.perf_counter()
    for rank, count, message in frames:
        said += count
        owner.now = int(said * per_event_us)
        if owner.now - ticked >= TICK_EVERY_US:
            ticked = owner.now
            owner.tick()
        streams[rank].receive([message])
        if owner.now - committed < COMMIT_EVERY_US:
            continue
        committed = owner.now
        owner.turn()
        for notice in owner.notices:
            if type(notice) is KvNotice and notice.result is KvEventResult.APPLIED:
                applied += notice.times
        owner.notices.clear()
    owner.close()
    speeds = events / (time.process_time() - used), events / (time.perf_counter() - began)
    applied += sum(n.times for n in owner.notices if isinstance(n, KvNotice) and n.result == 1)  # integers
    if applied != events:
        raise SystemExit(f"{applied} of {events} events were applied")
    return speeds


def measure(blocks: int, rounds: int, work: Path) -> dict[str, Any]:
    """Medians over rounds, in which every kind has its turn."""
    turns = [*Chats(SIZE).events(blocks)]
    frames = {}
    for per_frame in PER_FRAME:
        writer = Frames()
        frames[per_frame] = [one for turn in turns for one in writer.of_turn(turn, per_frame)]
    events, total = sum(map(len, turns)), sum(len(event.names) for turn in turns for event in turn)
    ready = [*map(Dynamo(SIZE.ranks).ready, turns)] if dynamo_is_here() else []
    del turns
    speeds: dict[int, list[tuple[float, float]]] = {per_frame: [] for per_frame in PER_FRAME}
    rival, floors = list[float](), list[float]()
    gc.collect()
    gc.freeze()
    for number in range(rounds):
        floors.append(floor_speed())
        for per_frame in PER_FRAME:
            folder = work / f"{number}-{per_frame}"
            speeds[per_frame].append(live_speed(folder, frames[per_frame], events))
            shutil.rmtree(folder)
        if ready:
            rival.append(rival_speed(ready, events))
    loops = statistics.median(floors)
    found: dict[str, Any] = {"events": events, "blocks": total, "floor_loops_per_s": loops}
    for per_frame, some in speeds.items():
        used = [one for one, _ in some]
        speed = statistics.median(used)
        ratios = [one / other for one, other in zip(used, rival, strict=True)] if rival else []
        found[f"{per_frame}_per_frame"] = {
            "events_per_s": speed,
            "best_events_per_s": max(used),
            "by_the_clock_per_s": statistics.median(clock for _, clock in some),
            "blocks_per_s": speed * total / events,
            "of_dynamo": statistics.median(ratios) if ratios else None,
        }
    return found


def lines(found: dict[str, Any]) -> Iterator[str]:
    """What people read of it."""
    mean = found["blocks"] / found["events"]
    yield f"{found['events']:,} kv-events of {mean:.1f} blocks in the mean, {SIZE.ranks} publishers"
    for per_frame in PER_FRAME:
        one = found[f"{per_frame}_per_frame"]
        rival = f", {one['of_dynamo']:.2f}x Dynamo's apply alone" if one["of_dynamo"] else ""
        yield (
            f"  {per_frame:>2} events a frame: {one['events_per_s']:>9,.0f} events/s of CPU "
            f"(best {one['best_events_per_s']:,.0f}), {one['by_the_clock_per_s']:,.0f} by the clock, "
            f"{one['blocks_per_s']:,.0f} blocks/s{rival}"
        )
    reached = found[f"{REFERENCE_RECORD}_per_frame"]["events_per_s"]
    for name, target in (("floor", FLOOR_PER_S), ("goal", GOAL_PER_S)):
        verdict = "met" if reached >= target else "missed"
        yield f"  {name} {target:,} events/s at {REFERENCE_RECORD} events a frame: {verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    serving_collector()
    work = Path(tempfile.mkdtemp(prefix="picklog-kv-live-"))
    try:
        found = measure(options.blocks, options.rounds, work)
    finally:
        shutil.rmtree(work)
    if options.json:
        print(json.dumps(found))
        return 0
    for line in lines(found):
        print(line)
    loops = found["floor_loops_per_s"]
    print(f"floor loop: {loops:,.0f} rounds/s here, {floor.REFERENCE_LOOPS_PER_S:,} on the reference machine")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
