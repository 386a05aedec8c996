"""Addresses of databases, read-only engines, and how their troubles are told."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from sqlalchemy import text

from app.audit_database import (
    AuditAway,
    AuditRefused,
    connected,
    current_revision,
    database_url,
    is_sqlite,
    migrations_folder,
    newest_revision,
    reading_engine,
    shown,
    upgrade,
    writing_engine,
)


@pytest.mark.parametrize(
    ("address", "driver", "database"),
    [
        ("audit.sqlite", "sqlite+aiosqlite", "audit.sqlite"),
        ("sqlite:////var/a.sqlite", "sqlite+aiosqlite", "/var/a.sqlite"),
        ("sqlite+aiosqlite:///{data}/audit.sqlite", "sqlite+aiosqlite", "/d/audit.sqlite"),
        ("{data}/x", "sqlite+aiosqlite", "/d/x"),
        ("postgresql://u:p@h/audit", "postgresql+asyncpg", "audit"),
        ("postgres://u:p@h/audit", "postgresql+asyncpg", "audit"),
        ("postgresql+asyncpg://u:p@h/audit", "postgresql+asyncpg", "audit"),
    ],
)
def test_an_address_finds_its_driver(address: str, driver: str, database: str) -> None:
    url = database_url(address, Path("/d"))
    assert (url.drivername, url.database) == (driver, database)
    assert is_sqlite(url) is driver.startswith("sqlite")


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("mysql://u:secret@h/audit", "no audit database of this release"),
        ("postgresql://u:secret@h:port/audit", "cannot be read"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite:///{data}/a", "no data directory is given"),
    ],
)
def test_an_address_that_is_none_is_refused_without_its_password(address: str, told: str) -> None:
    with pytest.raises(AuditRefused, match=told) as refused:
        database_url(address)
    assert "secret" not in str(refused.value)


def test_a_password_is_never_shown() -> None:
    assert shown(database_url("postgresql://u:secret@h/audit")) == "postgresql+asyncpg://u:***@h/audit"
    assert shown(database_url("a.sqlite")) == "a.sqlite"


async def test_a_reading_engine_cannot_write(tmp_path: Path) -> None:
    url = database_url(str(tmp_path / "odd ?#% name.sqlite"))
    writer = writing_engine(url)
    await upgrade(writer)
    reader = reading_engine(url)
    with pytest.raises(AuditAway, match="readonly"):
        async with connected(reader) as connection:
            await connection.execute(text("DELETE FROM picks"))
    assert await current_revision(reader) == newest_revision()
    for engine in (writer, reader):
        await engine.dispose()


async def test_a_copy_in_a_folder_that_cannot_be_written_to_is_read(tmp_path: Path) -> None:
    url = database_url(str(tmp_path / "a.sqlite"))
    writer = writing_engine(url)
    await upgrade(writer)
    await writer.dispose()
    assert not (tmp_path / "a.sqlite-wal").exists()
    os.chmod(tmp_path, 0o500)
    try:
        reader = reading_engine(url)
        assert await current_revision(reader) == newest_revision()
        await reader.dispose()
    finally:
        os.chmod(tmp_path, 0o700)


async def test_a_database_that_is_missing_is_away(tmp_path: Path) -> None:
    with pytest.raises(AuditAway, match="no such database"):
        reading_engine(database_url(str(tmp_path / "none.sqlite")))


async def test_a_file_that_is_no_database_is_told_of(tmp_path: Path) -> None:
    file = tmp_path / "a.sqlite"
    file.write_bytes(b"no database at all, but long enough to be looked at" * 20)
    engine = writing_engine(database_url(str(file)))
    with pytest.raises(AuditAway, match="file is not a database"):
        await upgrade(engine)
    await engine.dispose()


@pytest.mark.parametrize("file", ["no/a.sqlite", "a.sqlite"])
def test_a_failure_leaves_no_thread_that_reports_to_a_closed_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    (tmp_path / "a.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 20)
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    async def fail() -> None:
        engine = writing_engine(database_url(str(tmp_path / file)))
        with pytest.raises(AuditAway):
            await upgrade(engine)
        await engine.dispose()

    for _ in range(20):
        asyncio.run(fail())
    for thread in threading.enumerate():
        if "connection_worker" in thread.name:
            thread.join()
    assert raised == []


async def test_a_server_that_nobody_runs_is_away() -> None:
    engine = writing_engine(database_url("postgresql://u:secret@127.0.0.1:1/audit"))
    with pytest.raises(AuditAway) as away:
        await current_revision(engine)
    assert "secret" not in str(away.value)
    await engine.dispose()


def test_migrations_are_found_and_end_in_one_head() -> None:
    assert (migrations_folder() / "env.py").is_file()
    assert newest_revision() == "0003"
