"""Texts of reports: windows are literals whose form is checked, columns that are drawn exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from app.audit_database import upgrade, writing_engine
from app.audit_query import ask
from app.audit_writer import AuditWriter
from app.sql_queries import REPORTS, Report, sql_of
from tests.app.audit_site import eventful, sqlite_url, write
from tests.app.stream_site import LOG, Story
from tests.replay.recorded_log import RecordedLog


@pytest.mark.parametrize("report", REPORTS.values(), ids=lambda report: report.name)
def test_a_text_has_no_placeholder_left(report: Report) -> None:
    assert ":" not in sql_of(report).replace("00:00:00", "").replace("23:59:59", "")


@pytest.mark.parametrize("time", ["2026-11-29", "now'; DROP TABLE picks; --", "2026-11-29T18:41:00Z", ""])
def test_a_time_of_another_form_is_refused(time: str) -> None:
    with pytest.raises(ValueError, match="no time of the form"):
        sql_of(REPORTS["workers"], from_at=time)


async def test_what_is_drawn_is_a_column_of_the_answer(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    await write(eventful().log, url)
    for report in REPORTS.values():
        answer = await ask(url, sql_of(report))
        drawn = {*report.plot.along, *report.plot.values, *report.plot.series}
        assert drawn <= set(answer.columns), report.name


@pytest.mark.req("EVS-09")
async def test_which_workers_existed_then_is_one_question(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    world = eventful()
    await write(world.log, url)

    async def workers(at: int) -> list[tuple[object, ...]]:
        return [row[1:3] for row in (await ask(url, sql_of(REPORTS["fleet"], at=at))).rows]

    assert await workers(0) == []
    assert await workers(3) == [("1", "aggregated")]
    assert await workers(8) == [("1", "aggregated"), ("2", "aggregated"), ("3", "aggregated")]
    assert await workers(world.log.end_offset()) == [("2", "aggregated")]


async def test_what_ranks_held_is_summed_over_prefix_aware_picks_alone(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    story = Story(7)
    engine = writing_engine(url)
    await upgrade(engine)
    await AuditWriter(engine, LOG).write(story.rows)
    await engine.dispose()
    aware = [row for row in story.rows.candidates if row[-1] is not None]
    assert 0 < len(aware) < len(story.rows.candidates)
    answer = await ask(url, sql_of(REPORTS["prefixes"]))
    found = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    assert sum(row["candidates"] for row in found) == len(aware)
    assert sum(row["host_blocks"] for row in found) == 2 * len(aware)
    assert sum(row["device_blocks"] for row in found) == 2 * len(aware), "three held, one of them predicted"
    assert {row["mean_credit"] for row in found} == {4.5}


async def test_a_model_s_share_of_confirmed_predictions_is_of_all_its_workers(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    engine = writing_engine(url)
    await upgrade(engine)
    await AuditWriter(engine, LOG).write(Story(7).rows)
    async with engine.begin() as connection:
        # predicted 160 tokens each; of four answers two confirm all, one a quarter, one nothing
        await connection.execute(
            text(
                "UPDATE picks SET model = 'tiny', overlap_blocks = 10, block_size = 16, prefill_worker = NULL"
            )
        )
        await connection.execute(text("UPDATE dispatch_ends SET cached_tokens = NULL"))
        ended = "SELECT pick_id, decode_worker FROM picks JOIN dispatch_ends USING (pick_id) ORDER BY pick_id"
        picked = await connection.execute(text(ended))
        by_worker: dict[str, list[bytes]] = {}
        for pick_id, worker in picked:
            by_worker.setdefault(worker, []).append(pick_id)
        (one, other) = sorted(by_worker, key=lambda worker: -len(by_worker[worker]))[:2]
        told = zip([*by_worker[one][:2], *by_worker[other][:2]], (160, 500, 40, 0), strict=True)
        for pick_id, cached in told:
            values = {"pick": pick_id, "cached": cached}
            await connection.execute(
                text("UPDATE dispatch_ends SET cached_tokens = :cached WHERE pick_id = :pick"), values
            )
    await engine.dispose()
    answer = await ask(url, sql_of(REPORTS["overlap"]))
    found = {
        row["worker"]: row for row in (dict(zip(answer.columns, row, strict=True)) for row in answer.rows)
    }
    assert (found[one]["confirmed_percent"], found[other]["confirmed_percent"]) == (100.0, 12.5)
    assert {row["model_confirmed_percent"] for row in found.values()} == {56.25}
    assert (found[one]["predicted_tokens"], found[one]["cached_tokens"]) == (320, 660)


async def test_stretches_of_silence_are_told_apart(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path)
    world = RecordedLog(2)
    replica = world.replica()
    for _ in range(2):
        world.sample(1, 500)
        replica.read()
        replica.end(replica.ask("heard"))
        world.pass_time(10_000_000)
        replica.read()
        replica.end(replica.ask("in silence"))
    await write(world.log, url, candidates=8)
    answer = await ask(url, sql_of(REPORTS["stalls"]))
    silent = [row for row in answer.rows if row[1] == "1" and row[4] == "silent"]
    assert len(silent) == 2
    assert [row[7] for row in silent] == [1, 1]
