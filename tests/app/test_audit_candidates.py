"""Where candidate rows come from: the pick's record, or asked again at its as-of, all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.audit_candidates import (
    RecordedCandidates,
    candidates_of,
    needs_all,
    recorded_tables,
)
from app.audit_query import ask
from projections.bounds import PICK_ROWS_MAX
from projections.events.picks import Phase
from tests.app.audit_site import rows, sqlite_url, write
from tests.projections.log_story import pick
from tests.replay.recorded_log import RecordedLog

WORKERS = 20


def busy_world() -> RecordedLog:
    """Many workers, two routers that lag behind the log and behind each other."""
    world = RecordedLog(WORKERS)
    for number in range(WORKERS):
        world.sample(1 + number, 10 * number)
    ahead, behind = world.replica(), world.replica()
    for number in range(6):
        world.pass_time(200_000)
        world.sample(1 + number, 500)
        ahead.read()
        picked = ahead.ask(f"ahead {number}")
        behind.read(world.log.end_offset() - 4)
        behind.ask(f"behind {number}")
        if number % 2:
            ahead.end(picked)
    return world


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, False), (PICK_ROWS_MAX, False), (PICK_ROWS_MAX + 1, True), (None, True)]
)
def test_more_candidates_than_a_record_holds_are_computed(limit: int | None, expected: bool) -> None:
    assert needs_all(limit) is expected
    source = candidates_of(limit, RecordedLog().log, None, -1, frozenset())
    assert isinstance(source, RecordedCandidates) is not expected


async def test_all_candidates_begin_with_those_that_the_records_hold(tmp_path: Path) -> None:
    world = busy_world()
    every, best = sqlite_url(tmp_path, "every.sqlite"), sqlite_url(tmp_path, "best.sqlite")
    await write(world.log, every, candidates=None)
    await write(world.log, best, candidates=PICK_ROWS_MAX)
    found = (await rows(every))["pick_candidates"]
    assert len(found) == 12 * WORKERS
    assert [row for row in found if row["position"] < PICK_ROWS_MAX] == (await rows(best))["pick_candidates"]
    answer = await ask(every, "SELECT log_offset, count(DISTINCT worker) FROM pick_candidates GROUP BY 1")
    assert {count for _, count in answer.rows} == {WORKERS}


async def test_all_candidates_are_the_same_however_the_log_is_split(tmp_path: Path) -> None:
    world = busy_world()
    whole, split = sqlite_url(tmp_path, "whole.sqlite"), sqlite_url(tmp_path, "split.sqlite")
    await write(world.log, whole, candidates=None)
    for cut in range(world.log.end_offset() - 30, world.log.end_offset() + 1, 7):
        await write(world.log, split, cut, candidates=None)
    await write(world.log, split, candidates=None)
    assert await rows(split) == await rows(whole)


async def test_a_pick_that_cannot_be_asked_again_keeps_the_rows_of_its_record(tmp_path: Path) -> None:
    world = RecordedLog(WORKERS)
    world.replica().ask("suspect", suspect=True)
    url = sqlite_url(tmp_path)
    await write(world.log, url, candidates=None)
    assert len((await rows(url))["pick_candidates"]) == PICK_ROWS_MAX


def test_rows_of_another_layout_are_none() -> None:
    fact = pick(1, 1, 0)
    decode = fact.outcome.decode._replace(rows=b"\xff\x01")
    strange = fact._replace(outcome=fact.outcome._replace(decode=decode))
    assert recorded_tables(strange) == {Phase.PREFILL: [], Phase.DECODE: []}
