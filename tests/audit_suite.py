"""What the audit must do on every database: run against SQLite, and live against PostgreSQL."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import strategies as st
from sqlalchemy import Column, Connection, MetaData, text
from sqlalchemy.engine import URL

from app.audit_database import (
    VERSION_TABLE,
    AuditRefused,
    connected,
    current_revision,
    migrations_folder,
    newest_revision,
    upgrade,
    writing_engine,
)
from app.audit_query import ask
from app.audit_writer import Insert
from app.sql_queries import REPORTS, sql_of
from app.sql_tables import metadata, picks
from projections.audit.rows import PickRow
from projections.events.ports import MemoryLog
from tests.app.audit_site import eventful, rows, write
from tests.projections.log_story import story

GUIDE = Path(__file__).parents[1] / "docs" / "sql-audit.md"
BLOCK = re.compile(r"```sql\n(.*?)\n```", re.DOTALL)
ODD_TEXT = "'; DROP TABLE picks; -- \" \\ %s $1 :name \u2028 \U0001f980 \x7f é"
REST = (None, None, 1, None, None, 0, True)  # the last columns of a pick

SEEDS = st.integers(0, 50)
CUTS = st.sets(st.integers(1, 149), max_size=6)


def revisions() -> list[str]:
    """Every schema that a release has shipped, oldest first."""
    scripts = ScriptDirectory(str(migrations_folder())).walk_revisions()
    return [script.revision for script in scripts][::-1]


def filled(connection: Connection) -> dict[str, dict[str, Any]]:
    """Put one row into each table of the schema as it stands; what was put, by table and column."""
    rows: dict[str, dict[str, Any]] = {}
    found = MetaData()
    found.reflect(connection)
    for table in found.sorted_tables:
        if table.name == VERSION_TABLE:
            continue
        row = {column.name: _value(column) for column in table.columns}
        connection.execute(table.insert().values(row))
        read = connection.execute(table.select()).mappings().one()
        columns = ", ".join(row)
        raw = connection.execute(text(f"SELECT {columns} FROM {table.name}")).one()
        assert dict(read) == row
        rows[table.name] = dict(zip(row, raw, strict=True))
    return rows


def _value(column: Column[Any]) -> Any:
    kind = column.type.python_type
    if kind is datetime:
        return datetime(2026, 11, 29, 18, 41, 0, 123456)  # noqa: DTZ001  # UTC without a zone
    return {int: 1 << 62, float: 0.1, bool: True, str: ODD_TEXT}[kind]


def documented() -> list[str]:
    """Every query of the guide."""
    return BLOCK.findall(GUIDE.read_text())


class AuditSuite:
    """`fresh_url()` gives the address of an empty database each time."""

    def fresh_url(self) -> URL:
        raise NotImplementedError

    async def test_migrations_make_the_tables_that_the_code_describes(self) -> None:
        engine = writing_engine(self.fresh_url())
        assert await current_revision(engine) is None
        assert revisions()[-1] == newest_revision()
        assert await upgrade(engine) == newest_revision()
        assert await upgrade(engine) == newest_revision()

        def differences(connection: Connection) -> list[object]:
            options = {"compare_type": True, "version_table": VERSION_TABLE}
            return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))

        async with connected(engine) as connection:
            assert await connection.run_sync(differences) == []
        await engine.dispose()

    @pytest.mark.parametrize("revision", revisions())
    async def test_rows_of_every_released_schema_survive_the_upgrade(self, revision: str) -> None:
        """Each table, as that release made it, gets a row with a value in every column."""
        engine = writing_engine(self.fresh_url())
        assert await upgrade(engine, revision) == revision
        async with connected(engine) as connection:
            before = await connection.run_sync(filled)
        assert await upgrade(engine) == newest_revision()
        async with connected(engine) as connection:
            for name, row in before.items():
                columns = ", ".join(row)
                (found,) = await connection.execute(text(f"SELECT {columns} FROM {name}"))
                assert dict(zip(row, found, strict=True)) == row, name
            assert set(before) <= set(metadata.tables)
        await engine.dispose()

    async def test_a_schema_of_a_newer_release_is_refused(self) -> None:
        engine = writing_engine(self.fresh_url())
        await upgrade(engine)
        async with connected(engine) as connection:
            await connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
        with pytest.raises(AuditRefused, match="9999, which is newer than this release"):
            await upgrade(engine)
        await engine.dispose()

    async def test_tables_of_somebody_else_are_refused(self) -> None:
        engine = writing_engine(self.fresh_url())
        async with connected(engine) as connection:
            await connection.execute(text("CREATE TABLE picks (name TEXT)"))
        with pytest.raises(AuditRefused, match="'picks' that is not of Picklog"):
            await upgrade(engine)
        await engine.dispose()

    @pytest.mark.req("EVS-09")
    async def test_the_tables_say_what_the_log_says(self) -> None:
        url = self.fresh_url()
        world = eventful()
        await write(world.log, url)
        found = await rows(url)
        by_request = {row["request_id"]: row for row in found["picks"]}
        assert [*by_request] == [
            *(f"first-{number}" for number in range(3)),
            "left open",
            "late",
            "faulty",
            "dying",
            "nobody is there",
        ]
        first = by_request["first-0"]
        assert first["model"] == "tiny"
        assert (first["namespace"], first["decode_reason"], first["picker"]) == (
            "dynamo",
            "load",
            "load_based",
        )
        assert (first["block_size"], first["estimated_tokens"], first["suspect"]) == (16, 64, False)
        assert first["asked_at"] == 2_000_000
        assert by_request["nobody is there"]["decode_worker"] is None
        assert by_request["nobody is there"]["decode_reason"] == "no_candidate"
        candidates = [row for row in found["pick_candidates"] if row["pick_id"] == first["pick_id"]]
        assert [(row["position"], row["chosen"]) for row in candidates] == [(0, True), (1, False)]
        assert candidates[0]["worker"] == first["decode_worker"]
        assert candidates[0]["cost"] < candidates[1]["cost"]

    async def test_an_open_dispatch_of_a_replica_that_went_reads_unknown_until_its_end_comes(self) -> None:
        url = self.fresh_url()
        world = eventful()
        gone_at = next(
            offset for offset, data in enumerate(world.log.read(0, 1 << 30)) if b"late" in data.records[0]
        )
        await write(world.log, url, gone_at + 3)
        found = await rows(url)
        unknown = {row["pick_id"]: row for row in found["dispatch_ends"] if row["status"] == "unknown"}
        by_id = {row["pick_id"]: row for row in found["picks"]}
        assert sorted(by_id[pick]["request_id"] for pick in unknown) == ["late", "left open"]
        assert all(row["log_offset"] == by_id[pick]["log_offset"] for pick, row in unknown.items())
        assert [row["gone_offset"] for row in found["replicas"]] == [None, gone_at + 2]
        await write(world.log, url)
        found = await rows(url)
        of_late = [
            row for row in found["dispatch_ends"] if by_id.get(row["pick_id"], {}).get("request_id") == "late"
        ]
        assert [row["status"] for row in of_late] == ["ok"]
        assert [row["status"] for row in found["dispatch_ends"]].count("unknown") == 1
        assert [row["gone_offset"] for row in found["replicas"]] == [None, None]

    async def test_workers_keep_their_versions(self) -> None:
        url = self.fresh_url()
        await write(eventful().log, url)
        versions = [row for row in (await rows(url))["workers"] if row["worker"] == "2"]
        assert [(row["role"], row["end_cause"]) for row in versions] == [
            ("unknown", "changed"),
            ("aggregated", "deleted"),
            ("aggregated", None),
        ]
        assert versions[0]["to_offset"] == versions[1]["from_offset"]
        assert versions[2]["to_offset"] is None

    async def test_writing_twice_changes_nothing(self) -> None:
        url = self.fresh_url()
        world = eventful()
        await write(world.log, url)
        before = await rows(url)
        engine = writing_engine(url)
        async with connected(engine) as connection:
            await connection.execute(text("DELETE FROM sink_marks"))
        await engine.dispose()
        for upto in (world.log.end_offset() // 2, world.log.end_offset()):
            await write(world.log, url, upto)
            again = await rows(url)
            marks = again.pop("sink_marks")
            assert [row["log_offset"] for row in marks] == [upto - 1]
            assert again == {name: found for name, found in before.items() if name != "sink_marks"}

    async def expect_same_rows(self, seed: int, cuts: set[int]) -> None:
        """However the writing of a story is cut into transactions and starts. Examples are drawn."""
        log = MemoryLog()
        for data in story(seed, 150):
            log.commit([data])
        whole, split = self.fresh_url(), self.fresh_url()
        await write(log, whole)
        for cut in sorted(cuts):
            await write(log, split, cut)
        await write(log, split)
        assert await rows(split) == await rows(whole)

    async def test_text_is_a_value_and_never_a_statement(self) -> None:
        url = self.fresh_url()
        world = eventful()
        await write(world.log, url)
        engine = writing_engine(url)
        async with connected(engine) as connection:
            chosen = (None, None, None, "load", None, None, "load")
            row = PickRow(
                "ab" * 16, ODD_TEXT, 0, 1, "cd" * 16, 0, 99_999, 5, 1, None, ODD_TEXT, *chosen, *REST
            )
            await Insert(picks, engine.dialect)(connection, [row])
        await engine.dispose()
        found = [row for row in (await rows(url))["picks"] if row["log_offset"] == 99_999]
        assert [(row["request_id"], row["model"]) for row in found] == [(ODD_TEXT, ODD_TEXT)]

    @pytest.mark.req("EVS-09")
    async def test_every_query_of_the_guide_runs(self) -> None:
        url = self.fresh_url()
        await write(eventful().log, url, candidates=8)
        queries = documented()
        assert set(queries) == {sql_of(report) for report in REPORTS.values()}
        for sql in queries:
            answer = await ask(url, sql)
            assert answer.columns, sql

    async def test_reports_tell_what_happened(self) -> None:
        url = self.fresh_url()
        await write(eventful().log, url, candidates=8)

        async def report(name: str, **window: str) -> list[dict[str, object]]:
            answer = await ask(url, sql_of(REPORTS[name], **window))  # type: ignore[arg-type]
            return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]

        assert sum(int(str(row["picks"])) for row in await report("workers") if row["phase"] == "decode") == 8
        assert {row["model"] for row in await report("spread")} == {"tiny"}
        touched = {row["request_id"]: row["status"] for row in await report("deaths")}
        assert touched == {"faulty": "failed", "dying": "failed", "left open": "unknown"}
        versions = await report("configs")
        assert [(row["config_version"], row["settings_before"]) for row in versions] == [(1, None), (2, "{}")]
        assert len(await report("slowest")) == 6
        assert await report("workers", from_at="2020-01-01 00:00:00") == []
