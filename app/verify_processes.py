"""Verifying a long log on several processors: one process a part, cut at checkpoints.

Each process opens the log by itself and reads nothing that another one wrote but the
segments; what comes back is a report. Parts are more than processes, so that none of them
waits long for the slowest, and their totals are those of one walk.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from app.collector import reading_collector
from app.log_places import OpenLog, open_log
from app.replay_steps import with_steps
from projections.events.ports import LogCorrupt, LogError
from replay.condemned import condemned_of
from replay.engine import Part, parts_of
from replay.log_walk import Progress
from replay.verify import Report, joined, verify

PARTS_PER_PROCESS = 4
RECORDS_PER_PROCESS_MIN = 200_000  # starting a process costs half a second
POLL_S = 0.2


def processes_for(records: int, wanted: int | None) -> int:
    """How many processes to use: as asked, else one a core as far as the range is worth it."""
    if wanted is not None:
        return wanted
    return max(1, min(len(os.sched_getaffinity(0)), records // RECORDS_PER_PROCESS_MIN))


def verify_by_processes(
    opened: OpenLog, start: int, stop: int, processes: int, on_progress: Progress
) -> tuple[Report, int]:
    """Verify [start, stop) of an open log; the report, and how many processes had work.

    Raises what reading the log raises, LogError when a process died.
    """
    count = 1 if processes == 1 else processes * PARTS_PER_PROCESS
    checkpoints = with_steps(opened.checkpoints, opened.data)
    parts = parts_of(opened.reader, checkpoints, start, stop, count)
    if processes == 1 or len(parts) == 1:
        return verify(opened.reader, checkpoints, start, stop, on_progress), 1
    condemned = condemned_of(opened.reader, checkpoints, parts[0].start)
    processes = min(processes, len(parts))
    context = multiprocessing.get_context("spawn")
    done = context.Array("q", len(parts), lock=False)
    pool = ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(done,))
    try:
        futures = [
            pool.submit(_verify_part, opened.name, part, condemned, place) for place, part in enumerate(parts)
        ]
        _watch(futures, lambda: on_progress(start + sum(done)))
        return joined([future.result() for future in futures]), processes
    except BrokenProcessPool as problem:
        raise LogError("a verifying process died: try again with --processes 1") from problem
    finally:
        pool.shutdown(cancel_futures=True)


def _watch(futures: list[Future[Report]], tell: Callable[[], None]) -> None:
    waiting = set(futures)
    while waiting:
        finished, waiting = wait(waiting, timeout=POLL_S)
        for future in finished:
            if future.exception() is not None:
                return  # its result tells
        tell()


_done: dict[str, object] = {}


def _begin(done: object) -> None:
    """In a new process: an interrupt is the parent's to handle."""
    reading_collector()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _done["array"] = done


def _verify_part(where: str, part: Part, condemned: frozenset[int], place: int) -> Report:
    def advance(offset: int) -> None:
        _done["array"][place] = max(0, offset - part.start)  # type: ignore[index]

    report: Report | None = None
    try:
        with open_log(Path(where)) as opened:
            report = verify(
                opened.reader,
                with_steps(opened.checkpoints, opened.data),
                on_progress=advance,
                condemned=condemned,
                part=part,
            )
    except LogCorrupt:  # behind the part, and the parent's to tell
        if report is None:
            raise
    return report
