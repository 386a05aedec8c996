"""How long one look at a long log takes, cold: `replay explain` and `replay state --at`.

Each command is a process of its own, its start included. The log has a checkpoint an hour,
steps each fifty thousand records, as a follower writes them, and an index for each sealed segment;
places are spread over all of it. `--data` uses a log that `bench.replay_log` wrote.

    python -m bench.replay_explain [--records N] [--data DIR] [--json]
    python -m bench.replay_explain --sizes N1,N2,... --plot FILE.svg
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from app.log_places import open_log
from app.pick_index import PickIndex
from bench import floor, replay_log
from projections.events.picks import PickMade
from replay.log_walk import record_at, records_of

RECORDS = 600_000
PLACES = 9
EXPLAIN_GOAL_S, STATE_GOAL_S = 1.0, 2.0


def places_in(data: Path) -> tuple[list[str], list[int], float]:
    """Ids of picks and offsets spread over the log, and the seconds that indexing took."""
    with open_log(data) as opened:
        reader = opened.reader
        began = time.perf_counter()
        PickIndex(data, reader)
        seconds = time.perf_counter() - began
        end = reader.end_offset()
        offsets = [end * (2 * place + 1) // (2 * PLACES) for place in range(PLACES)]
        ids = []
        for offset in offsets:
            for at, record_bytes in records_of(reader, offset, end):
                record = record_at(at, record_bytes)
                if record is not None and isinstance(record.fact, PickMade):
                    ids.append(record.fact.question.request_id)
                    break
    return ids, offsets, seconds


def seconds_of(*words: str) -> float:
    """Seconds of one command, which must succeed."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "app", "replay", *words], check=True, capture_output=True)
    return time.perf_counter() - began


def measure(data: Path) -> dict[str, float]:
    """Median and longest seconds of both commands."""
    ids, offsets, indexing = places_in(data)
    explains = [seconds_of("explain", name, "--log", str(data), "--json") for name in ids]
    states = [seconds_of("state", "--at", str(at), "--log", str(data), "--json") for at in offsets]
    with open_log(data) as opened:
        records = opened.reader.end_offset()
    return {
        "records": records,
        "explain_s": statistics.median(explains),
        "explain_longest_s": max(explains),
        "state_s": statistics.median(states),
        "state_longest_s": max(states),
        "indexing_s": indexing,
    }


def built_and_measured(records: int) -> dict[str, float]:
    """The figures of a log of that length, which is written for it and removed again."""
    with tempfile.TemporaryDirectory() as place:
        data = Path(place, "data")
        replay_log.build(data, records, 500, workers=64, ranks=8)
        return measure(data)


def draw(rows: list[dict[str, float]], file: Path) -> None:
    """Seconds against the log's length, medians as lines, longest as marks."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    records = [row["records"] for row in rows]
    for name, colour in (("explain", "C0"), ("state", "C1")):
        axes.plot(records, [row[f"{name}_s"] for row in rows], "o-", color=colour, label=f"{name}, median")
        axes.plot(
            records, [row[f"{name}_longest_s"] for row in rows], "x", color=colour, label=f"{name}, longest"
        )
    axes.set(xscale="log", xlabel="records in the log", ylabel="seconds, the command's start included")
    axes.set_ylim(bottom=0)
    axes.legend()
    with rc_context({"svg.hashsalt": "picklog"}):
        figure.savefig(file, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.plot is not None:
        rows = []
        for size in given.sizes or [RECORDS]:
            rows.append(built_and_measured(size))
            print(json.dumps(rows[-1]), flush=True)
        draw(rows, given.plot)
        print(floor.line())
        return 0
    figures = measure(given.data) if given.data is not None else built_and_measured(given.records)
    if given.json:
        print(json.dumps(figures))
        return 0
    print(
        f"a log of {figures['records']:,.0f} records: explain {figures['explain_s']:.2f} s, longest"
        f" {figures['explain_longest_s']:.2f} s (goal {EXPLAIN_GOAL_S:.0f}); state at an offset"
        f" {figures['state_s']:.2f} s, longest {figures['state_longest_s']:.2f} s (goal {STATE_GOAL_S:.0f});"
        f" indexing once {figures['indexing_s']:.1f} s"
    )
    print(floor.line())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
