"""How fast a log is verified: records of kv_metrics traffic, and picks that are asked again.

Two logs are written: samples with a pick in a thousand records, and picks with their ends
between few samples, 8 workers of 8 ranks each. Rates are per second of one core's time, and by
the clock with one process and with one for each core.

    python -m bench.replay_verify [--records N] [--picks N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from app.collector import reading_collector
from app.log_places import open_log
from app.verify_processes import verify_by_processes
from bench import floor, replay_log
from replay.verify import Report, verify

RECORDS, PICKS = 400_000, 6_000
RECORDS_GOAL_PER_S, PICKS_GOAL_PER_S = 200_000, 5_000


def verified(data: Path) -> tuple[Report, float, float]:
    """The report, processor seconds and seconds by the clock of one process."""
    with open_log(data) as opened:
        began, worked = time.perf_counter(), time.process_time()
        report = verify(opened.reader, opened.checkpoints)
        return report, time.process_time() - worked, time.perf_counter() - began


def by_processes(data: Path, count: int) -> tuple[Report, int, float]:
    """The report, processes that had work, and seconds by the clock."""
    with open_log(data) as opened:
        end = opened.reader.end_offset()
        began = time.perf_counter()
        report, used = verify_by_processes(opened, opened.reader.first_offset(), end, count, lambda _: None)
        return report, used, time.perf_counter() - began


def measure(records: int, picks: int) -> dict[str, float]:
    """Figures of both logs. Ends the benchmark where a pick is not repeated."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        samples, asked = Path(place, "samples"), Path(place, "picks")
        replay_log.build(samples, records, 1_000, workers=64, ranks=8)
        replay_log.build(asked, 3 * picks, 1, workers=8, ranks=8)
        for data, name, count in ((samples, "records", "records"), (asked, "picks", "picks")):
            report, worked, seconds = verified(data)
            if report.equal != report.picks or not report.picks:
                raise SystemExit(f"{report.equal} of {report.picks} picks were repeated")
            figures[f"{name}_per_core_second"] = getattr(report, count) / worked
            figures[f"{name}_per_second"] = getattr(report, count) / seconds
        report, used, seconds = by_processes(samples, len(os.sched_getaffinity(0)))
        figures |= {"processes": used, "records_per_second_by_processes": report.records / seconds}
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--picks", type=int, default=PICKS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    reading_collector()  # as the command does
    figures = measure(given.records, given.picks)
    if given.json:
        print(json.dumps(figures))
        return 0
    print(
        f"verify of kv_metrics traffic: {figures['records_per_core_second']:,.0f} records/s of one core"
        f" (goal {RECORDS_GOAL_PER_S:,}), {figures['records_per_second']:,.0f}/s by the clock,"
        f" {figures['records_per_second_by_processes']:,.0f}/s by {figures['processes']:.0f} processes"
    )
    print(
        f"picks asked again, 64 candidates: {figures['picks_per_core_second']:,.0f} picks/s of one core"
        f" (goal {PICKS_GOAL_PER_S:,}), {figures['picks_per_second']:,.0f}/s by the clock"
    )
    print(floor.line())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
