"""Roll-ups are computed from all rows of their minute, again when one comes late, and told until heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from app.audit_database import AuditAway, AuditRefused, connected, upgrade, writing_engine
from app.audit_query import plain
from app.audit_rows import AuditRows
from app.audit_writer import AuditWriter
from app.rollup_writer import RollupWriter, tell_on
from projections.audit.rollups import MINUTE_US, RolledPick, RollupRow, minute_of, roll_up
from projections.audit.rows import EndRow, PickRow
from tests.app.audit_site import rows, sqlite_url
from tests.app.stream_site import LOG, Story, rolled_up

AFTER = 1 << 60


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = writing_engine(sqlite_url(tmp_path))
    await upgrade(engine)
    yield engine
    await engine.dispose()


def pick(offset: int, at: int, model: str = "tiny") -> PickRow:
    chosen = ("dynamo", "1", 0, "load", None, None, "no_prefill_pool", None, None)
    return PickRow(
        f"{offset:032x}", "r", 0, at, "aa", 0, offset, 1, 1, None, model, *chosen, 64, 16, None, 2, False
    )


def end(of: PickRow, offset: int, first_byte_us: int = 900) -> EndRow:
    at = of.asked_at + 5
    return EndRow(of.pick_id, at, "ok", "none", 200, "a", first_byte_us, 9, 60, 5, 32, 0, offset)


async def write(engine: AsyncEngine, rollups: RollupWriter, picks: list[PickRow], ends: list[EndRow]) -> None:
    found = AuditRows()
    found.picks, found.ends = picks, ends
    offsets = [row.log_offset for row in picks] + [row.log_offset for row in ends]
    found.last = (max(offsets), 1)
    await AuditWriter(engine, LOG, touch=rollups.touch).write(found)


async def rolled(tmp_path: Path) -> list[tuple[int, int, int]]:
    """Picks, ended and to_offset of each roll-up."""
    found = (await rows(sqlite_url(tmp_path)))["rollups"]
    return [(row["picks"], row["ended"], row["to_offset"]) for row in found]


async def test_a_minute_is_rolled_up_behind_its_grace(engine: AsyncEngine, tmp_path: Path) -> None:
    rollups = RollupWriter(engine, 5)
    first = pick(10, MINUTE_US)
    await write(engine, rollups, [first, pick(11, 2 * MINUTE_US - 1), pick(12, 2 * MINUTE_US)], [])
    assert not await rollups.roll_up(2 * MINUTE_US + 4)
    assert await rolled(tmp_path) == []
    assert await rollups.roll_up(2 * MINUTE_US + 5)
    assert not await rollups.roll_up(2 * MINUTE_US + 5)
    assert await rolled(tmp_path) == [(2, 0, 11)]


async def test_an_end_that_comes_late_rolls_its_minute_up_again(engine: AsyncEngine, tmp_path: Path) -> None:
    rollups = RollupWriter(engine, 0)
    first, other = pick(10, MINUTE_US), pick(11, MINUTE_US + 1)
    await write(engine, rollups, [first, other], [])
    await rolled_up(rollups)
    await write(engine, rollups, [], [end(first, 20)])
    assert await rolled(tmp_path) == [(2, 0, 11)]
    await rolled_up(rollups)
    assert await rolled(tmp_path) == [(2, 1, 20)]
    (row,) = (await rows(sqlite_url(tmp_path)))["rollups"]
    assert (row["cached_tokens"], row["first_bytes"], row["first_byte_p50_us"]) == (32, 1, 911)


async def test_rows_in_the_database_are_those_of_the_pure_function(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    story, rollups = Story(21, 200).rows, RollupWriter(engine, 0)
    await AuditWriter(engine, LOG, touch=rollups.touch).write(story)
    await rolled_up(rollups)
    ends = {row.pick_id: row for row in story.ends}
    windows: dict[tuple[int, str], list[RolledPick]] = {}
    for row in story.picks:
        found = ends.get(row.pick_id)
        of_end = (None,) * 6 if found is None else (
            found.log_offset, found.status, found.first_byte_us, found.prompt_tokens,
            found.completion_tokens, found.cached_tokens,
        )  # fmt: skip
        windows.setdefault((minute_of(row.asked_at), row.model), []).append(
            RolledPick(
                row.log_offset,
                row.decode_reason,
                row.prefill_worker is not None,
                row.estimated_tokens,
                row.overlap_blocks,
                row.block_size,
                *of_end,
            )
        )
    wanted = [roll_up(minute, model, picks) for (minute, model), picks in sorted(windows.items())]
    told = (await rows(sqlite_url(tmp_path)))["rollups"]
    columns = [name for name in RollupRow._fields if name != "minute"]
    assert [[row[name] for name in columns] for row in told] == [
        [plain(getattr(row, name)) for name in columns] for row in wanted
    ]


async def test_picks_that_retention_took_leave_their_roll_up_as_it_is(
    engine: AsyncEngine, tmp_path: Path
) -> None:
    rollups = RollupWriter(engine, 0)
    first, other = pick(10, MINUTE_US), pick(11, MINUTE_US + 1)
    await write(engine, rollups, [first, other], [])
    await rolled_up(rollups)
    async with connected(engine) as connection:
        await connection.execute(text("DELETE FROM picks WHERE log_offset = 10"))
    await write(engine, rollups, [], [end(other, 20)])
    await rolled_up(rollups)
    assert await rolled(tmp_path) == [(2, 0, 11)]
    assert (await rows(sqlite_url(tmp_path)))["rollup_windows"] == []


class Ear:
    """Hears roll-ups; deaf at first if told so."""

    def __init__(self, deaf: int = 0) -> None:
        self.deaf = deaf
        self.heard: list[RollupRow] = []

    async def __call__(self, told: Sequence[RollupRow]) -> None:
        if self.deaf:
            self.deaf -= 1
            raise AuditAway("Kafka is away")
        self.heard += told


async def test_what_was_computed_is_told_until_it_is_heard(engine: AsyncEngine, tmp_path: Path) -> None:
    ear = Ear(deaf=1)
    rollups = RollupWriter(engine, 0, ear)
    first = pick(10, MINUTE_US)
    await write(engine, rollups, [first, pick(11, MINUTE_US, "small")], [])
    with capture_logs() as lines:
        await rollups.due(AFTER)
    assert [line["event"] for line in lines] == ["minutes could not be rolled up"]
    assert ear.heard == [] and len(await rolled(tmp_path)) == 2
    again = RollupWriter(engine, 0, ear)  # as after a crash
    await again.due(AFTER)
    assert [(row.model, row.picks) for row in ear.heard] == [("small", 1), ("tiny", 1)]
    await again.tell()
    assert len(ear.heard) == 2
    assert (await rows(sqlite_url(tmp_path)))["rollup_windows"] == []


async def test_a_window_with_news_since_it_was_told_is_told_again(engine: AsyncEngine) -> None:
    ear = Ear()
    rollups = RollupWriter(engine, 0, ear)
    first = pick(10, MINUTE_US)
    await write(engine, rollups, [first], [])
    await rollups.roll_up(AFTER)
    await write(engine, rollups, [], [end(first, 20)])
    await rollups.tell()
    assert ear.heard == []  # it has news, so it is computed anew first
    await rollups.roll_up(AFTER)
    await rollups.tell()
    assert [(row.picks, row.ended) for row in ear.heard] == [(1, 1)]


async def test_it_looks_at_most_once_a_second(engine: AsyncEngine, tmp_path: Path) -> None:
    rollups = RollupWriter(engine, 0)
    await rollups.due(AFTER)
    await write(engine, rollups, [pick(10, MINUTE_US)], [])
    await rollups.due(AFTER)
    assert await rolled(tmp_path) == []


async def test_a_row_that_is_computed_anew_while_it_is_told_is_told_too(engine: AsyncEngine) -> None:
    """Rows do not wait for whoever is told, so both may happen at the same time."""
    heard: list[RollupRow] = []
    first = pick(10, MINUTE_US)

    async def slow(told: Sequence[RollupRow]) -> None:
        heard.extend(told)
        if len(heard) == 1:
            await write(engine, rollups, [], [end(first, 20)])
            await rollups.roll_up(AFTER)

    rollups = RollupWriter(engine, 0, slow, tells_when_due=False)
    await write(engine, rollups, [first], [])
    await rollups.due(AFTER)
    assert heard == [], "somebody else tells"
    await rollups.tell()
    assert [(row.ended, row.to_offset) for row in heard] == [(0, 10), (1, 20)]
    await rollups.tell()
    assert len(heard) == 2


class Marked(RollupWriter):
    """Has always something to tell. troubles: of the next attempts, None for one that succeeds."""

    def __init__(self, troubles: list[Exception | None]) -> None:
        self.troubles, self.at = troubles, list[float]()

    async def tell(self) -> None:
        self.at.append(asyncio.get_running_loop().time())
        trouble = self.troubles.pop(0) if self.troubles else None
        if trouble is not None:
            raise trouble


@pytest.mark.looptime
async def test_what_cannot_be_told_is_tried_ever_more_seldom_and_said_once_for_each_cause() -> None:
    away, refused = AuditAway("Kafka cannot be reached"), AuditRefused("set compact")
    rollups = Marked([away] * 7 + [refused, refused, None])
    with capture_logs() as lines:
        telling = asyncio.create_task(tell_on(rollups))
        await asyncio.sleep(200)
        assert not telling.done()
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
    pauses = [later - earlier for earlier, later in pairwise(rollups.at)]
    assert pauses[:10] == [2, 4, 8, 16, 30, 30, 30, 30, 30, 1]
    assert [(line["event"], line.get("cause")) for line in lines] == [
        ("roll-ups wait in the database to be told", "Kafka cannot be reached"),
        ("roll-ups wait in the database to be told", "set compact"),
        ("roll-ups are told again", None),
    ]
