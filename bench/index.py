"""The index against Dynamo's RadixTree, in one process, on the same events and prompts.

Ratios are Dynamo's time or memory over ours, medians over chunks or rounds that take turns; above 1 we are
faster or smaller. The process keeps to one CPU, since Dynamo's binding hands each call to a thread of its
own, which costs it 6 us there and up to 70 us across two; pinned favours Dynamo. The collector is frozen
before what is measured.

| figure | floor | goal |
|---|---|---|
| lookup p50, chat-64, 128 / 512 / 2048 blocks | 5 / 5 / 10 | 8 / 8 / 15 |
| lookup p50, chat-1024, every length | 18 | 25 |
| lookup p99, chat-1024, every length | 5 | 10 |
| apply, chat-64, fill / steady | 3 / 2 | 4 / 3.2 |
| apply at the ceilings | 4 | 6 |
| memory at the ceilings, 8 holders to a node | 2.5 | 3 |
| memory, chat-64 twice, 1.3 holders to a node | 0.77 | 1 |
| clear of a full slot, in chats of 2,048 and of 32 blocks, ms | 5 | 0.3 |
| restart at the ceilings, s | 3 | 1 |

Without Dynamo only our own figures are printed.

    python -m bench.index [--sizes chat-64,chat-1024] [--no-ceilings] [--no-memory] [--json] [--plot FILE]
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench import floor
from bench.index_plot import draw
from bench.index_rivals import Dynamo, Ours, dynamo_is_here
from bench.index_workload import SIZES, BlockEvent, Chats, ceiling_chats, column, mixed
from projections.events.codec import decode_record, encode_record
from projections.events.held import RunHeld
from projections.kv.index import Index

LENGTHS = (32, 128, 512, 2_048)
PROMPTS, ROUNDS, CHUNK = 400, 5, 2_000
CHURN = 1.5
WRITER = b"bench index-----"

TARGETS: dict[str, tuple[float, float]] = {
    **{f"chat-64 lookup p50 {n}": pair for n, pair in ((128, (5, 8)), (512, (5, 8)), (2_048, (10, 15)))},
    **{f"chat-1024 lookup p50 {n}": (18, 25) for n in LENGTHS},
    **{f"chat-1024 lookup p99 {n}": (5, 10) for n in LENGTHS},
    "chat-64 apply fill": (3, 4),
    "chat-64 apply steady": (2, 3.2),
    "ceilings apply": (4, 6),
    "ceilings memory": (2.5, 3),
    "chat-64 twice memory": (1 / 1.3, 1),
}
"""Ratio -> floor and goal, at least."""

LIMITS: dict[str, tuple[float, float]] = {
    "clear of a full slot, ms": (5, 0.3),
    "  in chats of 32 blocks, ms": (5, 0.3),
    "restart at the ceilings, s": (3, 1),
}
"""Absolute figure -> floor and goal, at most."""


class Figure(NamedTuple):
    """ours, theirs: in `unit`; theirs is None without Dynamo."""

    name: str
    ours: float
    theirs: float | None
    ratio: float | None
    unit: str

    def verdict(self) -> str:
        """Met or missed, empty without a target."""
        if self.name in LIMITS:
            most, goal = LIMITS[self.name]
            return _verdict(self.ours <= most, self.ours <= goal, f"at most {most}, goal {goal}")
        if self.name not in TARGETS or self.ratio is None:
            return ""
        least, goal = TARGETS[self.name]
        return _verdict(self.ratio >= least, self.ratio >= goal, f"floor {least:.3g}x, goal {goal:.3g}x")

    def line(self) -> str:
        """As it is printed."""
        theirs = "" if self.theirs is None else f"{self.theirs:10,.2f}"
        ratio = "" if self.ratio is None else f"{self.ratio:7.2f}x"
        line = f"{self.name:34}{self.ours:10,.2f} {self.unit:10}{theirs:>10} {ratio:>8}  {self.verdict()}"
        return line.rstrip()


def _verdict(floor_met: bool, goal_met: bool, words: str) -> str:
    return f"{'goal met' if goal_met else 'floor met' if floor_met else 'MISSED'} ({words})"


def rivals(ranks: int, with_dynamo: bool) -> list[Any]:
    """Ours first."""
    return [Ours(ranks), Dynamo(ranks)] if with_dynamo else [Ours(ranks)]


def chunks(turns: Iterable[list[BlockEvent]], size: int) -> Iterator[list[BlockEvent]]:
    """The events of all turns, `size` together."""
    events = itertools.chain.from_iterable(turns)
    while chunk := list(itertools.islice(events, size)):
        yield chunk


class Row(NamedTuple):
    """A chunk of so many events or blocks: nanoseconds of each side, by the clock and of the processor."""

    events: int
    wall: list[int]
    cpu: list[int]


def timed_apply(sides: list[Any], chunk: list[BlockEvent], events: int) -> Row:
    """Each side applies the chunk."""
    row = Row(events, [], [])
    for side in sides:
        ready = side.ready(chunk)
        used, began = time.process_time_ns(), time.perf_counter_ns()
        side.apply(ready)
        side.settle()
        row.wall.append(time.perf_counter_ns() - began)
        row.cpu.append(time.process_time_ns() - used)
    return row


def apply_figures(name: str, rows: list[Row], unit: str) -> Iterator[Figure]:
    """By the clock, which the targets are for, and of the processor, which neighbours disturb less."""
    for words, which in (("", [row.wall for row in rows]), (" cpu", [row.cpu for row in rows])):
        each = [[taken / row.events for taken in sides] for row, sides in zip(rows, which, strict=True)]
        ours = statistics.median(sides[0] for sides in each)
        if len(each[0]) == 1:
            yield Figure(name + words, ours, None, None, unit)
            continue
        theirs = statistics.median(sides[1] for sides in each)
        yield Figure(name + words, ours, theirs, statistics.median(s[1] / s[0] for s in each), unit)


def chats(name: str, with_dynamo: bool) -> Iterator[Figure]:
    """Apply and lookup on one size."""
    size = SIZES[name]
    workload = Chats(size)
    sides = rivals(size.ranks, with_dynamo)
    rows: dict[str, list[Row]] = {"fill": [], "steady": []}
    events = list(chunks(workload.events(int(size.ranks * size.capacity * CHURN)), CHUNK))
    gc.collect()
    gc.freeze()
    phase = "fill"
    for chunk in events:
        rows[phase].append(timed_apply(sides, chunk, len(chunk)))
        if any(event.tokens is None for event in chunk):
            phase = "steady"
    for phase, measured in rows.items():
        if measured:
            yield from apply_figures(f"{name} apply {phase}", measured, "ns/event")
    for length in LENGTHS:
        prompts = workload.prompts(PROMPTS, length)
        yield from lookups(f"{name} lookup", length, sides, prompts)


def lookups(name: str, length: int, sides: list[Any], prompts: list[bytes]) -> Iterator[Figure]:
    """p50 and p99 of a lookup; the sides take turns."""
    questions = [[side.question(prompt) for prompt in prompts] for side in sides]
    rounds: list[list[list[int]]] = []
    for _ in range(ROUNDS):
        rounds.append([sorted(times(side.find, asked)) for side, asked in zip(sides, questions, strict=True)])
    for percent in (50, 99):
        at = min(len(prompts) - 1, len(prompts) * percent // 100)
        ours = statistics.median(each[0][at] for each in rounds) / 1_000
        full_name = f"{name} p{percent} {length}"
        if len(sides) == 1:
            yield Figure(full_name, ours, None, None, "us")
            continue
        theirs = statistics.median(each[1][at] for each in rounds) / 1_000
        ratio = statistics.median(each[1][at] / each[0][at] for each in rounds)
        yield Figure(full_name, ours, theirs, ratio, "us")


def times(find: Callable[[Any], Any], questions: list[Any]) -> list[int]:
    """Nanoseconds of each."""
    clock = time.perf_counter_ns
    taken = []
    for question in questions:
        began = clock()
        find(question)
        taken.append(clock() - began)
    return taken


def ceilings(with_dynamo: bool) -> Iterator[Figure]:
    """Apply, lookup, clear and restart of as much as the index may hold."""
    sides = rivals(64, with_dynamo)
    rows, prompts = [], []
    for turn in ceiling_chats():
        rows.append(timed_apply(sides, turn, sum(len(event.names) for event in turn)))
        gc.freeze()
        path = [token for event in turn[:16] for token in event.tokens or ()]
        prompts.append(column(path))
    yield from apply_figures("ceilings apply", rows, "ns/block")
    index: Index = sides[0].index
    assert (index.nodes, index.ownerships) == (index.limits.nodes, index.limits.ownerships)
    assert index.stored(0, None, column([1]), column([1])).blocks_refused == 1
    yield from lookups("ceilings lookup", 2_048, sides, prompts)
    yield restart(index)
    taken = [_clear(side) for side in sides]
    ratio = taken[1] / taken[0] if len(taken) > 1 else None
    yield Figure("clear of a shared slot, ms", taken[0], taken[1] if ratio else None, ratio, "ms")


def _clear(side: Any) -> float:
    gc.collect()
    gc.freeze()
    began = time.perf_counter_ns()
    side.clear(5)
    side.settle()
    return (time.perf_counter_ns() - began) / 1e6


def restart(index: Index) -> Figure:
    """Reading the records of a checkpoint, and an index from them; seconds."""
    slots = range(64)
    facts = list(index.held(slots))
    records = [encode_record(1, WRITER, 0, number, fact) for number, fact in enumerate(facts, 1)]
    taken = []
    for _ in range(3):
        fresh = Index()
        for slot in slots:
            fresh.open_slot(slot, slot)
        began = time.perf_counter()
        fresh.restore(_decoded(records), slots)
        taken.append(time.perf_counter() - began)
        assert (fresh.digest, fresh.nodes) == (index.digest, index.nodes)
    return Figure("restart at the ceilings, s", statistics.median(taken), None, None, "s")


def _decoded(records: list[bytes]) -> Iterator[RunHeld]:
    for number, record in enumerate(records):
        fact = decode_record(number, record).fact
        assert isinstance(fact, RunHeld)
        yield fact


def full_slots() -> Iterator[Figure]:
    """Clear of a slot that holds all it may, alone: every node goes. In chats of two lengths, by CPU time."""
    for chat, name in ((2_048, "clear of a full slot, ms"), (32, "  in chats of 32 blocks, ms")):
        taken = []
        for _ in range(3):
            side = Ours(1)
            for start in range(0, side.index.limits.blocks, chat):
                path = column([mixed(number) for number in range(start, start + chat)])
                side.index.stored(0, None, path, path)
            assert side.index.blocks(0) == side.index.limits.blocks
            gc.collect()
            gc.freeze()
            began = time.process_time_ns()
            side.clear(0)
            taken.append((time.process_time_ns() - began) / 1e6)
        yield Figure(name, statistics.median(taken), None, None, "ms")


def memory(name: str, with_dynamo: bool) -> Figure:
    """Bytes per ownership, in processes of their own that get the events one by one."""
    ours, nodes = _memory_apart(name, "ours")
    theirs = _memory_apart(name, "dynamo")[0] if with_dynamo else None
    ratio = None if theirs is None else theirs / ours
    return Figure(f"{name} memory", ours, theirs, ratio, f"B/{nodes:.1f}h")


def _memory_apart(name: str, side: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "bench.index", "--memory-of", side]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin and child.stdout
        held = 8_388_608
        turns: Iterable[list[BlockEvent]] = ceiling_chats()
        if name != "ceilings":
            workload = Chats(SIZES[name])
            turns = workload.events(int(SIZES[name].ranks * SIZES[name].capacity * CHURN))
        for turn in turns:
            pickle.dump([tuple(event) for event in turn], child.stdin, 5)
        if name != "ceilings":
            held = workload.held
        child.stdin.close()
        used, nodes = json.loads(child.stdout.read())
    return used / held, held / nodes if nodes else 0


def memory_of(side: str) -> None:
    """The child of `memory`: prints how much its resident memory grew, and its nodes."""
    index = Ours(64) if side == "ours" else Dynamo(64)
    gc.collect()
    before = _resident()
    while True:
        try:
            turn = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        index.apply(index.ready([BlockEvent(*event) for event in turn]))
    index.settle()
    gc.collect()
    nodes = index.index.nodes if isinstance(index, Ours) else 0
    print(json.dumps([_resident() - before, nodes]))


def _resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def figures(options: argparse.Namespace, with_dynamo: bool) -> Iterator[Figure]:
    """All that was asked for."""
    for name in options.sizes.split(","):
        yield from chats(name, with_dynamo)
    if not options.no_ceilings:
        yield from ceilings(with_dynamo)
        yield from full_slots()
    if not options.no_memory:
        yield memory("ceilings", with_dynamo)
        yield memory("chat-64 twice", with_dynamo)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="chat-64,chat-1024", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--no-ceilings", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", type=Path, help="an SVG of lookups and events")
    parser.add_argument("--memory-of", choices=("ours", "dynamo"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with_dynamo = dynamo_is_here()
    if options.memory_of:
        memory_of(options.memory_of)
        return 0
    if not options.json and not with_dynamo:
        print("Dynamo is not in .venvs: our own figures only (python -m deploy.demo.install_dynamo)")
    shown = []
    for figure in figures(options, with_dynamo):
        shown.append(figure._asdict())
        if not options.json:
            print(figure.line(), flush=True)
    print(json.dumps(shown) if options.json else floor.line())
    if options.plot is not None:
        draw(shown, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
