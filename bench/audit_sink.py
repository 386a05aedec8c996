"""How many picks a second the audit's sink takes, from the log's bytes to rows in SQLite.

Two logs are made with the real picker, each pick over 64 workers with fresh samples and with its end: one is
written with every candidate, computed again at each pick's as-of, the other with the best
8 that the record holds. A third figure is how far behind the sink is at 500 picks/s: records
are appended at that pace and the time until their rows are committed is taken.

    python -m bench.audit_sink [--picks N] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path

from app.audit_database import database_url
from app.audit_sink import AuditSink
from app.sql_rows import SinkSettings
from bench import floor
from projections.events.codec import encode_record
from projections.events.control import (
    ClockTicked,
    ConfigAdopted,
    LaneOpened,
    PickSettings,
    Pinged,
    ReplicaStarted,
)
from projections.events.discovery import KeyPut, Keyspace
from projections.events.picks import DispatchEnded, EndStatus, Fault, PickMade, Question
from projections.events.ports import MemoryLog
from projections.events.signals import (
    Family,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from projections.fold import Fold
from projections.view import Overlay
from router.picker.pick import pick

PICKS = 6_000
WORKERS = 64
LIVE_PICKS_PER_S = 500
GOAL_ALL_PER_S = 500
GOAL_BEST_PER_S = 3_000
GOAL_BEHIND_S = 1.0
SAMPLES_PER_PICK = 4
OWNER, REPLICA = b"owner-----------", b"replica---------"
SETTINGS = PickSettings("load_based", "file", ("bench",), (), 3_000_000)
ALL = None
BEST = 8


class Story:
    """Writes what an owner and one router write, picks made by the real picker on the real fold."""

    def __init__(self) -> None:
        self.log = MemoryLog(bytes(16))
        self.fold = Fold()
        self._sequences = {OWNER: 0, REPLICA: 0}
        self._time = 1_790_000_000_000_000
        self._picks = self._own = self._sample = 0
        self._say(OWNER, LaneOpened(1, self._time, b"", "new"))
        self._say(OWNER, ConfigAdopted(1, "start", b"d", "{}", SETTINGS))
        for number in range(WORKERS):
            self._worker(number + 1)
        state = SubscriptionState.CONNECTED
        self._say(
            OWNER,
            SubscriptionChanged(Family.LOAD, "bench", 9, "backend", state, 1, Transport.DIRECT, "connected"),
        )
        self._say(REPLICA, ReplicaStarted(REPLICA, "bench:1", "serve", "0", "3", (), 62, ()))

    def tell(self, picks: int) -> None:
        """So many picks with their ends, samples in between, two hundred picks a second of log time."""
        for _ in range(picks):
            self._time += 5_000
            for _ in range(SAMPLES_PER_PICK):
                self._sample += 1
                worker, used = 1 + self._sample % WORKERS, self._sample * 7 % 900
                sequence = self._sample
                self._say(
                    OWNER, SampleReceived("bench", 9, 1, sequence, sequence, worker, 0, None, None, used, 0)
                )
            if self._picks % 100 == 0:
                self._say(OWNER, ClockTicked(self._time, -1, (), 0, 0))
                self._say(REPLICA, Pinged(REPLICA, self._picks, self.fold.mark.offset))
            self._pick()

    def _pick(self) -> None:
        at, number = self._time, self._picks
        question = Question(f"bench-{number}", 0, "m", "m", at, at, ("bench",), (), 400, 0, number)
        outcome = pick(self.fold.view(Overlay()), question, SETTINGS)
        pick_id = number.to_bytes(16, "big")
        self._say(REPLICA, PickMade(pick_id, REPLICA, self._own, self.fold.mark.offset, 1, question, outcome))
        self._own += 2
        end = (EndStatus.OK, Fault.NONE, 200, "shim", 20_000, 90_000, 400, 60, 128)
        self._say(REPLICA, DispatchEnded(pick_id, REPLICA, self._own, at, *end))
        self._picks += 1

    def _say(self, writer: bytes, fact: tuple[object, ...]) -> None:
        self._sequences[writer] += 1
        epoch = 1 if writer == OWNER else 0
        data = encode_record(self._time, writer, epoch, self._sequences[writer], fact)
        self.fold.apply(self.log.commit([data]), data, [])

    def _worker(self, number: int) -> None:
        key = f"backend/generate/{number:x}"
        names = {"namespace": "bench", "component": "backend", "endpoint": "generate", "instance_id": number}
        capacity = {"total_kv_blocks": 1000, "max_num_batched_tokens": 8192}
        card = {
            "display_name": "m",
            "worker_type": "aggregated",
            "kv_cache_block_size": 16,
            "runtime_config": capacity,
        }
        for keyspace, document in (
            (Keyspace.INSTANCES, {"type": "Endpoint", **names, "transport": {"tcp": "h:1/x"}}),
            (Keyspace.CARDS, {"type": "Model", **names, "card_json": {**card, "runtime_config": capacity}}),
        ):
            value = json.dumps(document).encode()
            self._say(OWNER, KeyPut(keyspace, "bench", key, number, value, len(value), bytes(32)))


async def sustained(log: MemoryLog, picks: int, folder: Path, candidates: int | None) -> tuple[float, int]:
    """Picks a second from an empty database to the last row, and how many rows that were."""
    url = database_url(str(folder / f"audit-{candidates}.sqlite"))
    sink = AuditSink(log, None, SinkSettings(url, None, None, candidates), patient=False)
    began = time.perf_counter()
    await sink.follow(log.end_offset())
    seconds = time.perf_counter() - began
    await sink.close()
    return picks / seconds, sink.rows


async def behind(story: Story, picks: int, folder: Path) -> list[float]:
    """Seconds from a record's append to the commit of its rows, at LIVE_PICKS_PER_S."""
    records = [data for batch in story.log.read(0, 1 << 40) for data in batch.records]
    log = MemoryLog(bytes(16))
    appended: deque[tuple[int, float]] = deque()
    delays: list[float] = []

    def on_written(offset: int) -> None:
        now = time.perf_counter()
        while appended and appended[0][0] <= offset:
            delays.append(now - appended.popleft()[1])

    url = database_url(str(folder / "live.sqlite"))
    sink = AuditSink(log, None, SinkSettings(url, None, None, BEST), on_written=on_written)
    following = asyncio.create_task(sink.run())
    began, made, seconds = time.perf_counter(), 0, picks / LIVE_PICKS_PER_S
    while made < len(records):
        share = min(1.0, (time.perf_counter() - began) / seconds)
        due = int(share * len(records)) - made
        if due:
            log.commit(records[made : made + due])
            made += due
            appended.append((made - 1, time.perf_counter()))
        await asyncio.sleep(0.02)
    while appended:  # noqa: ASYNC110  # measured from outside
        await asyncio.sleep(0.02)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await sink.close()
    return delays


def measure(picks: int) -> dict[str, float]:
    """Figures by name."""
    story = Story()
    story.tell(picks)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        every, every_rows = asyncio.run(sustained(story.log, picks, folder, ALL))
        best, best_rows = asyncio.run(sustained(story.log, picks, folder, BEST))
        delays = asyncio.run(behind(story, picks, folder))
    cuts = statistics.quantiles(delays, n=100)
    return {
        "all_picks_per_s": every,
        "all_rows_per_pick": every_rows / picks,
        "best_picks_per_s": best,
        "best_rows_per_pick": best_rows / picks,
        "behind_p50_s": cuts[49],
        "behind_p99_s": cuts[98],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picks", type=int, default=PICKS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = measure(max(200, arguments.picks))
    if arguments.json:
        print(json.dumps(figures | {"floor_loops_per_s": floor.loops_per_second()}))
        return 0
    share = floor.loops_per_second() / floor.REFERENCE_LOOPS_PER_S
    for name, goal in (("all", GOAL_ALL_PER_S), ("best", GOAL_BEST_PER_S)):
        speed, per_pick = figures[f"{name}_picks_per_s"], figures[f"{name}_rows_per_pick"]
        what = f"all {WORKERS} candidates" if name == "all" else f"the best {BEST}"
        print(
            f"{what}: {speed:,.0f} picks/s, {speed * per_pick:,.0f} rows/s; at the reference machine's speed"
            f" {speed / share:,.0f} picks/s ({speed / share / goal:.2f} of the goal of {goal:,})"
        )
    print(
        f"behind at {LIVE_PICKS_PER_S} picks/s: p50 {figures['behind_p50_s']:.2f} s,"
        f" p99 {figures['behind_p99_s']:.2f} s (goal: under {GOAL_BEHIND_S:.0f} s)"
    )
    print(floor.line())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
