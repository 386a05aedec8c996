"""A prefix-aware pick from a prompt's tokens, against Dynamo's SelectionService, and its parts.

A prompt of 8,000 tokens in blocks of 16. The ranks hold parts of it as in a chat or, as the worst
case, every one another part, and all have a fresh sample. Ours begins with packed tokens, as the
tokenizer leaves them, and ends with the chosen ranks: hash, find, read loads, cost, choose.
Dynamo's `select` does the same on its own index and loads, from a list of tokens, which is what
its binding takes; it is fed with the same blocks over ZeroMQ as engines send them, and asked in
this process through the site-packages of `.venvs/dynamo-1.6.1`. Before anything is measured both
must say the same overlap for every rank. The two take turns in chunks; ratios are medians over
chunks, Dynamo's time over ours. All times are CPU time of the process with all its threads, so
that other processes do not count. It keeps to one CPU, which favours Dynamo: its calls change
threads.

| figure, 64 ranks, chat | floor | goal |
|---|---|---|
| hash, find and cost step, loads read, another prompt each time | 10 | 15 |

`choice` is all that decides, loads read included; `whole pick` also makes the recorded rows,
the digest over all rows and the outcome. These hash all of the prompt each time. A router remembers hashes
of what a chat began with (`router/prompt/hash_memo.py`), so `next turn` stands beside them: 500 tokens
are new each time and the others were hashed before. Parts are measured by themselves, on one prompt;
`prompts in turns` is the three together, another prompt each time, in turns with Dynamo's calls, so that
memory has forgotten both; by it the target is judged. Without Dynamo only our own figures are printed.

    python -m bench.pick_kv_aware [--json]
"""

from __future__ import annotations

import argparse
import array
import asyncio
import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from struct import pack
from typing import Any

import msgpack
import xxhash

from bench import floor
from bench.index_rivals import dynamo_is_here
from bench.pick_load_based import NOW, Publishers, a_fleet, a_worker
from projections.events.control import KvPickSettings, PickSettings
from projections.events.picks import BlockHashes, KvResult, Question
from projections.fold_modes import KV_INDEX
from projections.identity import RankKey
from projections.kv.block_hash import SEED, block_hashes
from projections.kv.state import KvState
from projections.load.ledger import Ledger
from projections.registry.fleet import Fleet, Role
from projections.view import Overlay, View
from router.picker import prefix_costs
from router.picker.candidates import pools_of
from router.picker.kv_aware import decide
from router.picker.pick import pick
from router.picker.prefix_costs import Asked, Leg
from router.picker.rank_table import RankTable, roster_of
from router.prompt.hash_memo import HashMemo

TOKENS, SIZE = 8_000, 16
BLOCKS = TOKENS // SIZE
PROMPTS, CHUNKS, CHUNK = 40, 21, 20
SOURCES = 64  # publishers; ranks beyond share them
NEW_TOKENS = 500
ROUNDS = 15
FLOOR, GOAL = 10.0, 15.0
KV = KvPickSettings(1.0, 1.0, 0.0)
SETTINGS = PickSettings("load_based", "file", ("dynamo",), (), 3_000_000, kv=KV)


Depths = Callable[[int], int]  # blocks of the common beginning that a rank holds, by its number


def of_a_chat(rank: int) -> int:
    """All hold a system prompt of 64 blocks, three of each 64 ranks served turns of the chat."""
    return {5: 180, 17: 300, 40: 460}.get(rank % SOURCES, 64)


def all_apart(rank: int) -> int:
    """Every one of 64 ranks holds another part."""
    return rank % SOURCES * 7 % BLOCKS


def prompts() -> list[bytes]:
    """Packed tokens of prompts that share a beginning of different lengths."""
    common = [(place * 7_919) % 100_000 for place in range(TOKENS)]
    found = []
    for number in range(PROMPTS):
        kept = TOKENS * (number + 1) // PROMPTS
        tail = [(number + 2) * 100_003 + place for place in range(TOKENS - kept)]
        found.append(array.array("I", [*common[:kept], *tail]).tobytes())
    return found


def next_turns(tokens: bytes) -> Iterator[bytes]:
    """The prompt with other last NEW_TOKENS each time, made beforehand."""
    numbers = range(NEW_TOKENS, NEW_TOKENS * (ROUNDS * CHUNK + 1), NEW_TOKENS)
    ends = [array.array("I", range(number, number + NEW_TOKENS)).tobytes() for number in numbers]
    return iter([tokens[: -4 * NEW_TOKENS] + end for end in ends])


class Ours:
    """A fleet with samples and an index, and the steps of a pick on it."""

    def __init__(self, workers: int, ranks: int, depth_of: Depths) -> None:
        self.fleet: Fleet = a_fleet([a_worker(1 + n, Role.AGGREGATED, ranks) for n in range(workers)])
        self.load = Publishers(self.fleet)
        self.load.publish_all(NOW)
        self.kv = KvState()
        self.kv.set_modes((KV_INDEX,))
        whole = block_hashes(prompts()[-1], SIZE, SEED)
        keys = [
            RankKey(*worker.key, rank) for worker in self.fleet.workers.values() for rank in worker.ranks()
        ]
        for number, key in enumerate(keys):
            rank = self.kv.live_rank(key)
            assert rank is not None
            tokens = whole[: 8 * depth_of(number)]
            if tokens:
                self.kv.indexes[0].stored(rank.slot, None, tokens, tokens)
        self.keys = keys
        self.ledger, self.overlay = Ledger(), Overlay()

    def view(self) -> View:
        """As a router makes one for each pick."""
        return View(0, self.fleet, self.load.load, self.ledger, self.overlay, self.kv, NOW)

    def question(self, tokens: bytes) -> Question:
        """Hash a prompt into a question."""
        return self.asked(block_hashes(tokens, SIZE, SEED), len(tokens) >> 2)

    @staticmethod
    def asked(packed: bytes, isl: int) -> Question:
        """The question of a hashed prompt."""
        known = BlockHashes(SIZE, len(packed) >> 3, xxhash.xxh3_64_intdigest(packed), packed)
        return Question(
            "r", 0, "m", "m", NOW + 1_000, NOW + 1_800, ("dynamo",), (), TOKENS, 0, 0, (), (),
            int(KvResult.READY), isl, (known,),
        )  # fmt: skip

    def choice(self, tokens: bytes) -> object:
        """Hash, find, read, cost, choose."""
        return decide(self.view(), self.question(tokens), SETTINGS, ())

    def whole(self, tokens: bytes) -> object:
        """And rows, digest, outcome."""
        return pick(self.view(), self.question(tokens), SETTINGS)

    def narrow(self) -> Callable[[bytes], object]:
        """Hash, find, cost and choose, with loads that were read before."""
        view = self.view()
        _, competing = pools_of(self.fleet, self.question(b""), SETTINGS)
        asked = Asked(view, self.question(b""), SETTINGS, KV, {})
        table = RankTable(roster_of(self.fleet, competing, ("bench",)))
        loads = prefix_costs.read_loads(asked, Leg.AGGREGATED, competing, table)
        everyone = range(len(table))

        def step(tokens: bytes) -> object:
            question = self.question(tokens)
            depths = view.device_depths(question)
            assert depths is not None
            whole = Asked(view, question, SETTINGS, KV, depths)
            table.costs = prefix_costs.price(whole, Leg.AGGREGATED, table, loads, everyone, True)
            return prefix_costs.choose(table, everyone, 0.0, (), 0, True)

        return step

    def parts(self, tokens: bytes) -> dict[str, Callable[[], object]]:
        """The steps by themselves."""
        view, question = self.view(), self.question(tokens)
        _, competing = pools_of(self.fleet, question, SETTINGS)
        depths = view.device_depths(question)
        assert depths is not None
        asked = Asked(view, question, SETTINGS, KV, depths)
        roster = roster_of(self.fleet, competing, ("bench",))
        leg = Leg.AGGREGATED
        table = RankTable(roster)
        loads = prefix_costs.read_loads(asked, leg, competing, table)
        everyone = range(len(table))

        def cost_step() -> object:
            table.costs = prefix_costs.price(asked, leg, table, loads, everyone, True)
            return prefix_costs.choose(table, everyone, 0.0, (), 0, True)

        memo, turns = HashMemo(1 << 24), next_turns(tokens)
        memo.block_hashes(tokens, SIZE, SEED)
        cost_step()
        return {
            "hash": lambda: self.question(tokens),
            "hash of the next turn": lambda: self.asked(memo.block_hashes(next(turns), SIZE, SEED), TOKENS),
            "find": lambda: view.device_depths(question),
            "depth to record": lambda: view.deepest(question, KV),
            "read loads": lambda: prefix_costs.read_loads(asked, leg, competing, RankTable(roster)),
            "cost step": cost_step,
            "pack rows": table.pack,
        }


class Dynamo:
    """SelectionService with the same ranks."""

    def __init__(self) -> None:
        self._zmq: Any = importlib.import_module("zmq")
        self._service = importlib.import_module("dynamo.llm").SelectionService(indexer_threads=1)
        self._context = self._zmq.Context()
        self._sockets: list[Any] = []

    async def feed(self, workers: int, ranks: int, depth_of: Depths) -> None:
        """Announce the workers and publish what their ranks hold."""
        ports = []
        for _ in range(SOURCES):
            socket = self._context.socket(self._zmq.PUB)
            ports.append(socket.bind_to_random_port("tcp://127.0.0.1"))
            self._sockets.append(socket)
        for worker in range(workers):
            places = {rank: ports[(worker * ranks + rank) % SOURCES] for rank in range(ranks)}
            await self._service.upsert_worker(
                {
                    "worker_id": worker + 1,
                    "endpoint": "http://127.0.0.1:1/",
                    "block_size": SIZE,
                    "data_parallel_size": ranks,
                    "kv_events_endpoints": {r: f"tcp://127.0.0.1:{port}" for r, port in places.items()},
                    "total_kv_blocks": 16_384,
                    "max_num_batched_tokens": 8_192,
                }
            )
        await asyncio.sleep(2.0)
        whole = [*array.array("I", prompts()[-1])]
        for number, socket in enumerate(self._sockets):
            blocks = depth_of(number)
            names = [1_000_000 * number + place + 1 for place in range(blocks)]
            event = ["BlockStored", names, None, whole[: blocks * SIZE], SIZE, None]
            body = msgpack.packb([0.0, [event] if blocks else [], None])
            socket.send_multipart([b"", pack(">Q", 0), body])
        await asyncio.sleep(2.0)

    async def overlaps(self, tokens: list[int]) -> dict[tuple[int, int], int]:
        """Blocks by (worker, rank)."""
        found = await self._service.overlap_scores({"token_ids": tokens})
        return {(row["worker_id"], row["dp_rank"]): row["device_blocks"] for row in found["workers"]}

    async def select(self, tokens: list[int]) -> object:
        """Its pick."""
        return await self._service.select({"token_ids": tokens})

    def close(self) -> None:
        """End its threads."""
        shutdown: Any = self._service.shutdown
        shutdown()
        for socket in self._sockets:
            socket.close(linger=0)
        self._context.term()


def timed(step: Callable[[], object], rounds: int = CHUNK) -> float:
    """Microseconds of one call."""
    began = time.process_time_ns()
    for _ in range(rounds):
        step()
    return (time.process_time_ns() - began) / rounds / 1_000


def timed_over(step: Callable[[bytes], object], prompts: list[bytes]) -> float:
    """Microseconds of a step, each prompt once."""
    began = time.process_time_ns()
    for tokens in prompts:
        step(tokens)
    return (time.process_time_ns() - began) / len(prompts) / 1_000


async def against(ours: Ours, workers: int, ranks: int, depth_of: Depths) -> dict[str, float]:
    """Ratios to Dynamo."""
    dynamo = Dynamo()
    try:
        await dynamo.feed(workers, ranks, depth_of)
        asked = prompts()
        lists = [[*array.array("I", tokens)] for tokens in asked]
        for tokens, as_list in zip(asked, lists, strict=True):
            mine = ours.view().prefixes(ours.question(tokens), KV)
            theirs = await dynamo.overlaps(as_list)
            for key in ours.keys:
                held = mine[key].device if key in mine else 0
                told = theirs[(key.instance_id, key.dp_rank)]
                assert held == told, f"{key}: {held} here, {told} there"
        narrow = ours.narrow()
        steps: dict[str, Callable[[int], object]] = {
            "the same, prompts in turns": lambda place: narrow(asked[place]),
            "choice": lambda place: ours.choice(asked[place]),
            "choice from a list": lambda place: ours.choice(array.array("I", lists[place]).tobytes()),
            "whole pick": lambda place: ours.whole(asked[place]),
        }
        ratios: dict[str, list[float]] = {name: [] for name in (*steps, "select")}
        for chunk in range(CHUNKS):
            places = [(chunk * CHUNK + n) % PROMPTS for n in range(CHUNK)]
            began = time.process_time_ns()
            for place in places:
                await dynamo.select(lists[place])
            theirs_us = (time.process_time_ns() - began) / CHUNK / 1_000
            ratios["select"].append(theirs_us)
            for name, step in steps.items():
                began = time.process_time_ns()
                for place in places:
                    step(place)
                ratios[name].append(theirs_us / ((time.process_time_ns() - began) / CHUNK / 1_000))
        return {name: statistics.median(values) for name, values in ratios.items()}
    finally:
        dynamo.close()


def measure(workers: int, ranks: int, depth_of: Depths, with_dynamo: bool) -> dict[str, Any]:
    """All figures of one fleet."""
    ours = Ours(workers, ranks, depth_of)
    asked = prompts()
    figures: dict[str, Any] = {}
    for name, step in (("choice", ours.choice), ("whole pick", ours.whole)):
        figures[name] = statistics.median(timed_over(step, asked) for _ in range(ROUNDS))
    middle = asked[PROMPTS // 2]
    for name, part in ours.parts(middle).items():
        figures[name] = statistics.median(timed(part) for _ in range(ROUNDS))
    figures["hash, find, cost step"] = figures["hash"] + figures["find"] + figures["cost step"]
    figures["the same of a next turn"] = (
        figures["hash of the next turn"] + figures["find"] + figures["cost step"]
    )
    if with_dynamo:
        ratios = asyncio.run(against(ours, workers, ranks, depth_of))
        figures["select"] = ratios.pop("select")
        figures["ratios"] = ratios
        for name in ("hash, find, cost step", "the same of a next turn"):
            ratios[name] = figures["select"] / figures[name]
        figures["the same, prompts in turns"] = figures["select"] / ratios["the same, prompts in turns"]
    return figures


def main() -> int:
    """Measure three fleets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with_dynamo = dynamo_is_here()
    found: dict[str, Any] = {}
    gc.freeze()
    fleets = [(64, 1, of_a_chat), (64, 8, of_a_chat), (128, 8, of_a_chat), (64, 1, all_apart)]
    for workers, ranks, depth_of in fleets:
        name = f"{workers * ranks} ranks, {depth_of.__name__.rpartition('_')[2]}"
        figures = found[name] = measure(workers, ranks, depth_of, with_dynamo)
        if as_json:
            continue
        ratios = figures.get("ratios", {})
        select = f", select {figures['select']:.0f} us" if with_dynamo else ""
        print(f"{name}: {workers} workers of {ranks}{select}")
        for part, value in figures.items():
            if part not in ("ratios", "select"):
                ratio = f"   {ratios[part]:5.1f}x" if part in ratios else ""
                print(f"  {part:<24} {value:8.1f} us{ratio}")
        if "choice from a list" in ratios:
            print(f"  {'choice from a list':<24} {'':>8}      {ratios['choice from a list']:5.1f}x")
    if with_dynamo:
        reached = found["64 ranks, chat"]["ratios"]["the same, prompts in turns"]
        verdict = "goal met" if reached >= GOAL else "floor met" if reached >= FLOOR else "MISSED"
        found["target"] = {"ratio": reached, "floor": FLOOR, "goal": GOAL, "verdict": verdict}
        if not as_json:
            print(
                f"hash, find, cost step, 64 ranks, prompts in turns: {reached:.1f}x,"
                f" floor {FLOOR:g}, goal {GOAL:g}: {verdict}"
            )
    print(json.dumps(found) if as_json else floor.line())
    return int(found.get("target", {}).get("verdict") == "MISSED")


if __name__ == "__main__":
    sys.exit(main())
