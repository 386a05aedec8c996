"""The audit inside the follower: writes while it runs; a bad address is its own trouble."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from app.audit_database import AuditError
from app.audit_figures import AuditFigures, Failure
from app.audit_following import follow_audit
from app.audit_query import ask
from app.config_load import check_data
from app.config_model import Config
from app.log_places import open_log
from tests.app.audit_site import eventful, sqlite_url
from tests.app.log_on_disk import written


def configured(audit: dict[str, Any]) -> Config:
    return check_data({"audit": audit}, extras=frozenset())[0]


async def picks(data: Path) -> int:
    """Rows of picks so far; 0 before there is a table."""
    try:
        found = await ask(sqlite_url(data), "SELECT count(*) FROM picks")
    except AuditError:
        return 0
    return int(found.rows[0][0])


async def test_it_writes_into_the_data_directory(tmp_path: Path) -> None:
    data = written(eventful(), tmp_path / "data")
    figures = AuditFigures()
    with open_log(data) as opened:
        following = asyncio.create_task(follow_audit(configured({}), data, opened, figures))
        async with asyncio.timeout(60):
            while await picks(data) < 8:  # noqa: ASYNC110  # another connection looks
                await asyncio.sleep(0.02)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert figures.offset == opened.reader.end_offset() - 1 and figures.at > 0
    assert await picks(data) == 8
    assert (figures.sent, sum(figures.failures.values())) == (0, 0)


async def test_what_the_log_holds_is_written_when_it_is_told_to_stop(tmp_path: Path) -> None:
    data = written(eventful(), tmp_path / "data")
    with open_log(data) as opened:
        following = asyncio.create_task(follow_audit(configured({}), data, opened, AuditFigures()))
        await asyncio.sleep(0)  # it has begun, and written nothing
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert await picks(data) == 8


async def test_an_address_that_cannot_be_used_is_told_and_ends_nothing(
    tmp_path: Path,
) -> None:
    data = written(eventful(), tmp_path / "data")
    with open_log(data) as opened, capture_logs() as lines:
        config = configured({"url": "sqlite:///:memory:"})
        figures = AuditFigures()
        following = asyncio.create_task(follow_audit(config, data, opened, figures))
        done, _ = await asyncio.wait({following}, timeout=0.05)
        assert not done
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert [line["event"] for line in lines] == ["no audit is written"]
    assert figures.failures[Failure.REFUSED] == 1


async def test_with_stream_workers_nothing_is_written_but_the_topic(tmp_path: Path) -> None:
    """Kafka is away: that is told, rows wait in the log, and nobody makes a database."""
    data = written(eventful(), tmp_path / "data")
    kafka = {"bootstrap_servers": ["127.0.0.1:1"]}
    config, _ = check_data({"audit": {"sink": "stream"}, "log": {"kafka": kafka}}, extras=frozenset())
    with open_log(data) as opened, capture_logs() as lines:
        figures = AuditFigures()
        following = asyncio.create_task(follow_audit(config, data, opened, figures))
        async with asyncio.timeout(60):
            while not lines:  # noqa: ASYNC110  # the client library tells nobody
                await asyncio.sleep(0.02)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert lines[0]["event"] == "the audit does not go on"
    assert lines[0]["cause"].startswith("Kafka cannot be reached")
    assert figures.failures[Failure.AWAY] >= 1 and figures.offset == -1
    assert not (data / "audit.sqlite").exists()


async def test_on_kafka_roll_ups_wait_for_their_topic_and_rows_do_not(tmp_path: Path) -> None:
    """The brokers of the roll-ups are away; the rows are all there."""
    data = written(eventful(), tmp_path / "data")
    kafka = {"bootstrap_servers": ["127.0.0.1:1"]}
    config, _ = check_data(
        {"audit": {"rollups": {"grace": "1s"}}, "log": {"kind": "kafka", "kafka": kafka}},
        extras=frozenset({"kafka"}),
    )
    with open_log(data) as opened:
        following = asyncio.create_task(follow_audit(config, data, opened, AuditFigures()))
        async with asyncio.timeout(60):
            while await picks(data) < 8:  # noqa: ASYNC110  # another connection looks
                await asyncio.sleep(0.02)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    found = await ask(sqlite_url(data), "SELECT count(*) FROM rollup_windows")
    assert int(found.rows[0][0]) > 0
