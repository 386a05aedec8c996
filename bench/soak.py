"""Churn for as long as you like: memory, tasks and sockets must stay flat.

    python -m bench.soak [SECONDS]        default 3600, or SOAK_SECONDS

A process of its own plays publishers on loopback: honest ones, floods, gaps, garbage, giant
lengths, messages without an end, endless ranks, some that hang up at once and some that say
nothing. Here a closed loop runs: a fleet whose workers come, go and change as keys, the fold of
these facts, subscriptions that follow the folded fleet, the fold of what they say, and picks
with their ends. `PARTS` lists what is stirred and how often; a new part is a function more.

A line is printed every 10 s. At the end the fleet is emptied. Fails (exit 1) where

    resident memory grew by more than GROWTH_BYTES_MAX between the first and the last quarter
    after the warm-up (a fifth of the time, 20 to 120 s), or
    tasks or sockets did not return to where they began.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final

from blake3 import blake3

from ingest.subscriptions.connectors import SubscriptionSettings
from ingest.subscriptions.supervisor import Subscriptions
from ingest.wire.fleet_keys import CardKey, InstanceKey, PublisherKeyParts, ScopeKind, key_of, relative_key
from ingest.wire.publisher_frames import Sample, encode_sample_message
from ingest.wire.zmtp_frames import GREETING, MORE, encode_frame, encode_message, encode_ready
from projections.bounds import MIB
from projections.events.codec import encode_record
from projections.events.control import ClockTicked, LaneOpened, PickSettings
from projections.events.discovery import KeyDeleted, KeyPut, Keyspace
from projections.events.kinds import FACT_KINDS, KIND_OF_FACT, Speaker
from projections.events.picks import DispatchEnded, EndStatus, Fault, PickMade, Question
from projections.fold import Fold
from projections.notices import Notice
from projections.view import Overlay
from router.picker.pick import pick

GROWTH_BYTES_MAX: Final = 8 * MIB
LINE_EVERY_S: Final = 10.0
SLOTS: Final = 96  # publishers that listen
DEAD: Final = 32  # further ones whose address nobody listens at
NAMESPACE: Final = "dynamo"
OWNER, REPLICA = b"soak owner------", b"soak replica----"
SETTINGS: Final = PickSettings("load_based", "file", (NAMESPACE,), (), 3_000_000)

BEHAVIOURS: Final = (
    *("honest",) * 12, "flood", "gaps", "garbage", "bad payloads", "giant length", "endless message",
    "endless ranks", "hangs up", "silent",
)  # fmt: skip


# The publishers' process


class Publishers:
    """Listens on SLOTS ports; every connection to a slot behaves as chance will have it."""

    def __init__(self) -> None:
        self.ids = dict.fromkeys(range(SLOTS), 0)
        self._draw = random.Random(1)

    async def run(self, control: Connection) -> None:
        """Tell the ports, then take (slot, publisher id) until None comes."""
        servers = []
        for slot in range(SLOTS):

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slot: int = slot
            ) -> None:
                await self._serve(slot, reader, writer)

            servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        control.send([server.sockets[0].getsockname()[1] for server in servers])
        while (told := await asyncio.to_thread(control.recv)) is not None:
            self.ids[told[0]] = told[1]
        os._exit(0)

    async def _serve(self, slot: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behaviour = self._draw.choice(BEHAVIOURS)
        try:
            async with asyncio.timeout(self._draw.uniform(5, 40)):
                if behaviour != "silent":
                    writer.write(GREETING + encode_ready(b"PUB"))
                while behaviour != "hangs up":
                    writer.write(self._words(behaviour, self.ids[slot]))
                    await writer.drain()
                    await asyncio.sleep(0 if "endless" in behaviour else self._draw.uniform(0.01, 0.1))
        except (OSError, TimeoutError):
            pass
        finally:
            writer.close()

    def _words(self, behaviour: str, publisher_id: int) -> bytes:
        """What it says next; sequences grow with time, so that each connection begins beyond the last."""
        sequence = time.monotonic_ns() // 1000
        draw = self._draw
        if behaviour == "silent":
            return b""
        if behaviour == "garbage":
            return draw.randbytes(draw.randrange(1, 5000))
        if behaviour == "giant length":
            return encode_frame(b"kv_metrics", MORE) + b"\x02" + (2**63 - 1).to_bytes(8, "big")
        if behaviour == "endless message":
            return encode_frame(b"", MORE) * 1000
        if behaviour == "bad payloads":
            numbered = (b"kv_metrics", publisher_id.to_bytes(8, "big"), sequence.to_bytes(8, "big"))
            return encode_message((*numbered, b"\x01\0\0\0\x05" + draw.randbytes(5))) * 20
        count = {"flood": 2000, "endless ranks": 1000}.get(behaviour, 2)
        step = 2 if behaviour == "gaps" else 1
        ranks = 2**31 if behaviour == "endless ranks" else 2
        return b"".join(
            encode_message(
                encode_sample_message(
                    publisher_id,
                    Sample(sequence + step * n, 0, publisher_id, draw.randrange(ranks), None, None, n % 900),
                )
            )
            for n in range(count)
        )


def publish(control: Connection) -> None:
    """Entry of the publishers' process."""
    asyncio.run(Publishers().run(control))


# The loop under test


class Soak:
    """Log in memory (each record is folded at once and forgotten), fold, subscriptions, picks."""

    def __init__(self, control: Connection, ports: list[int]) -> None:
        self.fold = Fold()
        self.counts: Counter[str] = Counter()
        self.subscriptions = Subscriptions(self.say, SubscriptionSettings(), on_notice=self.notice)
        self._control = control
        self._ports = ports
        self._draw = random.Random(2)
        self._written: Counter[bytes] = Counter()
        self._offset = 0
        self._notices: list[Notice] = []
        self._workers: dict[int, int] = {}  # slot -> id of the worker and its publisher
        self._next_id = 0
        self._own_seq = 0
        self._open: list[tuple[bytes, int]] = []
        self.say(LaneOpened(1, 0, b"", "new"))

    def say(self, fact: tuple[Any, ...]) -> None:
        """Encode, fold, count."""
        speaker = FACT_KINDS[KIND_OF_FACT[type(fact)]].speaker
        writer = REPLICA if speaker is Speaker.ANYBODY else OWNER
        self._written[writer] += 1
        epoch = 0 if speaker is Speaker.ANYBODY else 1
        data = encode_record(self.now_us(), writer, epoch, self._written[writer], fact)
        self.fold.apply(self._offset, data, self._notices)
        self._offset += 1
        self.counts[type(fact).__name__] += 1
        self._notices.clear()

    def notice(self, notice: Notice) -> None:
        self.counts["notices"] += 1
        if getattr(notice, "level", "") == "error":
            raise SystemExit(f"an error was noticed: {notice}")

    @staticmethod
    def now_us() -> int:
        return time.monotonic_ns() // 1000

    # parts

    def change_fleet(self) -> None:
        """Some workers leave, some come back under another id."""
        for _ in range(self._draw.choice((1, 1, 1, 40))):
            slot = self._draw.randrange(SLOTS + DEAD)
            if slot in self._workers:
                self._put_worker(self._workers.pop(slot), None)
            if self._draw.random() < 0.8:
                self._next_id += 1
                self._workers[slot] = self._next_id
                port = self._ports[slot] if slot < SLOTS else 1
                if slot < SLOTS:
                    self._control.send((slot, self._next_id))
                self._put_worker(self._next_id, port)
        self.subscriptions.follow(self.fold.state.registry.fleet)

    def empty_fleet(self) -> None:
        for slot in list(self._workers):
            self._put_worker(self._workers.pop(slot), None)
        self.subscriptions.follow(self.fold.state.registry.fleet)

    def route(self) -> None:
        """A pick, and the end of an older one."""
        now_us = self.now_us()
        question = Question("r", 0, "m", "m", now_us, now_us, (NAMESPACE,), (), 500, 0, self._own_seq)
        outcome = pick(self.fold.view(Overlay()), question, SETTINGS)
        pick_id = self._draw.randbytes(16)
        self.say(PickMade(pick_id, REPLICA, self._own_seq, self._offset - 1, 1, question, outcome))
        self._own_seq += 1
        self._open.append((pick_id, now_us))
        if len(self._open) > 50:
            ended, began_us = self._open.pop(self._draw.randrange(50))
            self._own_seq += 1
            ok, none = int(EndStatus.OK), int(Fault.NONE)
            took_us = now_us - began_us
            self.say(DispatchEnded(ended, REPLICA, self._own_seq, now_us, ok, none, 200, "b", 1, took_us))

    def tick(self) -> None:
        """A second went by; as an owner does, with the fold's digests."""
        noted = self.fold.mark.offset
        self.say(ClockTicked(time.time_ns() // 1000, noted, self.fold.digests(), 0, 0))

    def _put_worker(self, worker_id: int, port: int | None) -> None:
        """Write or delete the three keys of a worker."""
        names: dict[str, Any] = {"namespace": NAMESPACE, "component": "backend", "endpoint": "generate"}
        own = {**names, "instance_id": worker_id}
        scope = {**names, "name": "generate"}
        runtime = {"total_kv_blocks": 1000, "data_parallel_size": 2}
        body = {"display_name": "m", "worker_type": "aggregated", "runtime_config": runtime}
        transport = {"kind": "Zmq", "config": {"endpoint": f"tcp://127.0.0.1:{port}"}}
        parts = (NAMESPACE, "backend", "generate")
        documents: tuple[tuple[Keyspace, Any, dict[str, Any]], ...] = (
            (Keyspace.INSTANCES, InstanceKey(*parts, worker_id), {"type": "Endpoint", **own}),
            (Keyspace.CARDS, CardKey(*parts, worker_id, None), {"type": "Model", **own, "card_json": body}),
            (
                Keyspace.CHANNELS,
                PublisherKeyParts(ScopeKind.ENDPOINT, *parts, "kv_metrics", worker_id),
                {
                    "type": "EventChannel",
                    "scope": {"kind": "endpoint", "endpoint": scope},
                    "topic": "kv_metrics",
                    "instance_id": worker_id,
                    "transport": transport,
                },
            ),
        )
        for keyspace, key_parts, document in documents:
            key = relative_key(keyspace, NAMESPACE, key_of(keyspace, key_parts))
            assert key is not None
            if port is None:
                self.say(KeyDeleted(int(keyspace), NAMESPACE, key, self._offset))
                continue
            value = json.dumps(document).encode()
            digest = blake3(value).digest()
            self.say(KeyPut(int(keyspace), NAMESPACE, key, self._offset, value, len(value), digest))


PARTS: Final[tuple[tuple[Callable[[Soak], None], float], ...]] = (
    (Soak.change_fleet, 0.2),
    (Soak.route, 0.02),
    (Soak.tick, 1.0),
)


# Measuring and judging


def resident_bytes() -> int:
    """Resident memory, garbage collected before."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def standing() -> tuple[int, int]:
    """Tasks of the loop and open descriptors."""
    return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))


def line(soak: Soak, at_s: float, resident: int) -> str:
    """What is printed every LINE_EVERY_S."""
    tasks, files = standing()
    states = Counter(row.state.label for row in soak.subscriptions.rows())
    figures = [
        f"{at_s:6.0f} s",
        f"rss {resident / MIB:6.1f} MiB",
        f"tasks {tasks:4}",
        f"files {files:4}",
        f"workers {len(soak.fold.state.registry.fleet.workers):3}",
    ]
    figures += [
        f"{what} {count}" for counts in (states, soak.counts) for what, count in sorted(counts.items())
    ]
    return "  ".join(figures)


async def stir(soak: Soak, seconds: float) -> list[tuple[float, int]]:
    """Run the parts; returns (seconds since the begin, resident bytes) every LINE_EVERY_S."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    async def repeat(part: Callable[[Soak], None], every_s: float) -> None:
        while True:
            part(soak)
            await asyncio.sleep(every_s)

    series: list[tuple[float, int]] = []
    async with asyncio.TaskGroup() as group:
        parts = [group.create_task(repeat(*part)) for part in PARTS]
        while (passed_s := loop.time() - began_s) < seconds:
            await asyncio.sleep(min(LINE_EVERY_S, seconds - passed_s))
            series.append((loop.time() - began_s, resident_bytes()))
            print(line(soak, *series[-1]), flush=True)
        for part in parts:
            part.cancel()
    return series


def growth_bytes(series: list[tuple[float, int]], seconds: float) -> int | None:
    """Median of the last quarter less median of the first, warm-up left out; None for too few points."""
    warm_up_s = min(120.0, max(20.0, seconds / 5))
    points = [resident for at_s, resident in series if at_s >= warm_up_s]
    quarter = len(points) // 4
    if quarter == 0:
        return None
    return round(statistics.median(points[-quarter:]) - statistics.median(points[:quarter]))


async def soak_for(seconds: float, control: Connection) -> int:
    """0 where all stayed flat."""
    ports = await asyncio.to_thread(control.recv)
    before = standing()
    soak = Soak(control, ports)
    series = await stir(soak, seconds)
    soak.empty_fleet()
    await soak.subscriptions.stop()
    await asyncio.sleep(0.5)
    after = standing()
    grown = growth_bytes(series, seconds)
    complaints = []
    if grown is None:
        complaints.append("too short to judge memory: give it 100 s or more")
    elif grown > GROWTH_BYTES_MAX:
        complaints.append(f"resident memory grew by {grown / MIB:.1f} MiB")
    if after[0] > before[0] or after[1] > before[1]:
        complaints.append(f"tasks and files were {before} and are {after}")
    if not soak.counts["SampleReceived"]:
        complaints.append("no sample came")
    held = len(soak.fold.state.load)
    if held:
        complaints.append(f"the fold still holds {held} samples of an empty fleet")
    if grown is not None:
        print(
            f"growth after warm-up {grown / MIB:+.1f} MiB, at most {GROWTH_BYTES_MAX / MIB:.0f} MiB allowed"
        )
    print("\n".join(complaints) or "flat")
    return 1 if complaints else 0


def main() -> int:
    seconds = float(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SOAK_SECONDS", "3600"))
    here, there = get_context("spawn").Pipe()
    child = get_context("spawn").Process(target=publish, args=(there,), daemon=True)
    child.start()
    try:
        return asyncio.run(soak_for(seconds, here))
    finally:
        here.send(None)
        child.join(10)


if __name__ == "__main__":
    sys.exit(main())
