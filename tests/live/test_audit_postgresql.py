"""The audit on a real PostgreSQL: the whole suite, the same answers as SQLite, and a server that dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from sqlalchemy.engine import URL

from app.audit_database import AuditAway, AuditRefused
from app.audit_figures import Failure
from app.audit_query import ROWS_MAX, Answer, ask
from app.audit_sink import AuditSink
from tests.app.audit_site import eventful, rows, sink_settings, sqlite_url, write
from tests.audit_suite import CUTS, SEEDS, AuditSuite, documented
from tests.live.postgresql import PostgresServer

pytestmark = pytest.mark.live("postgresql")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.close()


class TestOnPostgresql(AuditSuite):
    @pytest.fixture(autouse=True)
    def _server(self, server: PostgresServer) -> None:
        self.server = server

    def fresh_url(self) -> URL:
        return self.server.url()

    @settings(max_examples=12)
    @given(seed=SEEDS, cuts=CUTS)
    async def test_any_split_into_transactions_writes_the_same_rows(self, seed: int, cuts: set[int]) -> None:
        await self.expect_same_rows(seed, cuts)


def compared(answer: Answer) -> list[str]:
    """Rows without the order that collations and NULL give them, and numbers of one kind."""
    return sorted(
        str([float(value) if isinstance(value, int | float) else value for value in row])
        for row in answer.rows
    )


@pytest.mark.req("EVS-09")
async def test_rows_and_every_answer_are_those_of_sqlite(server: PostgresServer, tmp_path: Path) -> None:
    world = eventful()
    here, there = sqlite_url(tmp_path), server.url()
    for url in (here, there):
        await write(world.log, url, candidates=8)
    assert await rows(there) == await rows(here)
    for sql in documented():
        mine, theirs = await ask(here, sql), await ask(there, sql)
        assert mine.columns == theirs.columns
        assert compared(mine) == compared(theirs), sql


@pytest.mark.parametrize(
    "sql",
    [
        "WITH gone AS (DELETE FROM picks RETURNING 1) SELECT * FROM gone",
        "SELECT * INTO copy FROM picks",
        "SELECT set_config('transaction_read_only', 'off', false); DELETE FROM picks",
        "EXPLAIN ANALYZE DELETE FROM picks",
        "SELECT * FROM nowhere",
    ],
)
async def test_nothing_can_be_changed_by_asking(server: PostgresServer, sql: str) -> None:
    url = server.url()
    await write(eventful().log, url)
    before = await rows(url)
    with pytest.raises(AuditRefused) as refused:
        await ask(url, sql)
    assert "\n" not in str(refused.value)
    assert await rows(url) == before


async def test_a_large_answer_is_cut_and_casts_are_text(server: PostgresServer) -> None:
    url = server.url()
    answer = await ask(url, "SELECT i::text AS word FROM generate_series(1, 5000000) AS s(i)")
    assert (len(answer.rows), answer.cut, answer.rows[0]) == (ROWS_MAX, True, ("1",))


async def test_a_server_that_dies_costs_no_row_and_none_twice(server: PostgresServer, tmp_path: Path) -> None:
    """B-133: the rows wait in the log until it is back."""
    world, url = eventful(), server.url()
    written: list[int] = []
    sink = AuditSink(world.log, None, sink_settings(url), on_written=written.append, pause_s_min=0.05)
    following = asyncio.create_task(sink.run())
    await until(written, world.log.end_offset() - 1)
    await asyncio.to_thread(server.kill)
    with pytest.raises(AuditAway):
        await ask(url, "SELECT 1")
    replica = world.replica()
    for number in range(20):
        replica.end(replica.ask(f"meanwhile {number}"))
        replica.read()
    async with asyncio.timeout(60):
        while not sink.figures.failures[Failure.AWAY]:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.05)
    await asyncio.to_thread(server.start)
    await until(written, world.log.end_offset() - 1)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await sink.close()
    straight = sqlite_url(tmp_path)
    await write(world.log, straight)
    assert await rows(url) == await rows(straight)


async def test_a_server_without_that_database_is_told_of(server: PostgresServer) -> None:
    with pytest.raises(AuditAway, match='database "nowhere" does not exist'):
        await ask(server.url().set(database="nowhere"), "SELECT 1")


async def until(written: list[int], offset: int) -> None:
    async with asyncio.timeout(90):
        while not written or written[-1] < offset:  # noqa: ASYNC110  # a thread of the driver decides
            await asyncio.sleep(0.02)
