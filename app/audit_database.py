"""The audit's database: where it is, how it is opened, which schema it has.

An address is SQLAlchemy's, a plain path for SQLite, or holds `{data}` for the data
directory. SQLite is opened in WAL mode with `synchronous=normal`: what a power cut takes, mark included,
is written again from the log. Whoever only asks opens it so that nothing can be written.

The door of SQLAlchemy and its drivers: their exceptions end here, as

    AuditError
     +- AuditRefused    the address, the schema or the rows in it are not for us: trying again is in vain
     +- AuditAway       it cannot be reached, is locked or full: later it may be fine
         +- BrokersAway it is not the database, but the brokers on the rows' way there

Neither holds a password or an address of a row.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import aiosqlite
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from app.cli_errors import one_line
from app.sql_tables import metadata

DATABASE_NAME = "audit.sqlite"
VERSION_TABLE = "picklog_schema"
LOCKED_S_MAX = 5.0  # how long SQLite waits for another writer before it says so
CONNECT_S_MAX = 10.0
_ROWS_AT_ONCE = 64  # aiosqlite's default: rows fetched in one go while iterating
_UPGRADE_LOCK = 7_240_511_936_001_001  # an advisory lock of PostgreSQL: one upgrade at a time
_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "postgres": "postgresql+asyncpg",
}


class AuditError(Exception):
    """Root of what the audit's database reports."""


class AuditRefused(AuditError):
    """Trying again is in vain: somebody has to change something."""


class AuditAway(AuditError):
    """Not now. Trying again later may succeed."""


class BrokersAway(AuditAway):
    """Not now, since the brokers cannot be reached."""


def database_url(address: str, data: Path | None = None) -> URL:
    """The address of a database. data: stands for `{data}`. Raises AuditRefused."""
    if "://" not in address:
        return _sqlite(address.replace("{data}", str(data)) if data is not None else address)
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise AuditRefused(
            "the address of the audit database cannot be read: write sqlite:///FILE or"
            " postgresql://USER:PASSWORD@HOST/DATABASE"
        ) from None
    url = url.set(drivername=_DRIVERS.get(url.drivername, url.drivername))
    if url.drivername not in _DRIVERS.values():
        raise AuditRefused(
            f"{url.drivername} is no audit database of this release: it is sqlite or postgresql"
        )
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise AuditRefused("a SQLite database in memory is nothing to audit with: name a file")
        if "{data}" in url.database:
            if data is None:
                raise AuditRefused("the address says {data}, and no data directory is given: use --log DIR")
            url = url.set(database=url.database.replace("{data}", str(data)))
    return url


def _sqlite(path: str) -> URL:
    return URL.create("sqlite+aiosqlite", database=path)


def shown(url: URL) -> str:
    """An address as it may be shown."""
    return url.database or "" if is_sqlite(url) else url.render_as_string(hide_password=True)


def is_sqlite(url: URL) -> bool:
    """Whether the address is of a SQLite file."""
    return url.get_backend_name() == "sqlite"


def writing_engine(url: URL) -> AsyncEngine:
    """An engine for the one who writes. A SQLite file is made, readable for its user alone."""
    if is_sqlite(url):
        engine = _engine(url, {"timeout": LOCKED_S_MAX}, keep=True)
        _begin_immediately(engine.sync_engine)
        return engine
    settings = {"application_name": "picklog audit"}
    return _engine(url, {"timeout": CONNECT_S_MAX, "server_settings": settings}, keep=True)


def reading_engine(url: URL) -> AsyncEngine:
    """An engine that cannot write: SQLite opened read-only, PostgreSQL in read-only transactions.

    Raises AuditAway where a SQLite file is missing.
    """
    if is_sqlite(url):
        path = Path(url.database or "")
        if not path.is_file():
            raise AuditAway(f"{path}: no such database")
        # a copy in a folder that cannot be written to has no place for the files of WAL mode
        is_live = path.with_name(path.name + "-wal").exists() or os.access(path.parent, os.W_OK)
        mode = {"mode": "ro"} if is_live else {"immutable": "1"}
        name = "file:" + quote(str(path.absolute()))
        url = URL.create("sqlite+aiosqlite", database=name, query={**mode, "uri": "true"})
        engine = _engine(url, {"timeout": LOCKED_S_MAX})
        _only_read(engine.sync_engine)
        return engine
    settings = {"application_name": "picklog query", "default_transaction_read_only": "on"}
    return _engine(url, {"timeout": CONNECT_S_MAX, "server_settings": settings})


def _engine(url: URL, arguments: dict[str, Any], keep: bool = False) -> AsyncEngine:
    """keep: one connection stays open between transactions, until the engine is disposed of."""
    pool: dict[str, Any] = {"pool_size": 1, "max_overflow": 0} if keep else {"poolclass": NullPool}
    if url.get_backend_name() == "sqlite":
        arguments = arguments | {"async_creator_fn": _open_sqlite}
    try:
        return create_async_engine(url, connect_args=arguments, **pool)
    except (ImportError, NoSuchModuleError):
        raise AuditRefused(
            "PostgreSQL needs a library that is not installed: pip install 'picklog[postgres]'"
        ) from None


class _SqliteConnection(aiosqlite.Connection):
    """Its thread ends without a word to the event loop.

    SQLAlchemy gives a connection that failed up and waits for nothing. The driver's thread would
    report its end all the same, and print a traceback if a command has closed the loop by then.
    """

    def stop(self) -> None:
        """See aiosqlite: no future is made where no loop runs, so that nothing is reported."""
        elsewhere = Thread(target=super().stop)
        elsewhere.start()
        elsewhere.join()


async def _open_sqlite(database: str, **how: Any) -> aiosqlite.Connection:
    """As SQLAlchemy opens it."""
    connection = _SqliteConnection(partial(sqlite3.connect, database, **how), _ROWS_AT_ONCE)
    connection._thread.daemon = True  # it has no public name; SQLAlchemy does the same
    return await connection


def _begin_immediately(engine: Engine) -> None:
    """Transactions take the write lock at once: a reading one that writes later may find it taken."""

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=wal")
        cursor.execute("PRAGMA synchronous=normal")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _only_read(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA query_only=on")
        cursor.close()


@contextmanager
def translated() -> Iterator[None]:
    """Turn what SQLAlchemy and drivers raise into AuditAway, with one line of cause."""
    try:
        yield
    except DBAPIError as problem:
        raise AuditAway(cause_of(problem)) from problem
    except (SQLAlchemyError, OSError, TimeoutError) as problem:
        raise AuditAway(one_line(str(problem)) or type(problem).__name__) from problem
    except Exception as problem:
        if not is_of_driver(problem):
            raise
        raise AuditAway(cause_of(problem)) from problem


def is_of_driver(problem: Exception) -> bool:
    """Whether a driver raised it past SQLAlchemy, as asyncpg does while rows are fetched."""
    return type(problem).__module__.partition(".")[0] in ("asyncpg", "aiosqlite", "sqlite3")


def cause_of(problem: Exception) -> str:
    """What the driver said, in one line: not the statement, not its values."""
    origin = problem.orig if isinstance(problem, DBAPIError) else problem
    said = str(origin) if origin is not None else type(problem).__name__
    said = said.split("DETAIL:")[0]  # PostgreSQL's detail names values
    _, _, rest = said.partition(">: ")
    return one_line(rest or said)


@asynccontextmanager
async def connected(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection with an open transaction, committed at the end. Raises AuditAway."""
    with translated():
        async with engine.begin() as connection:
            yield connection


# Schema --------------------------------------------------------------------------------


def migrations_folder() -> Path:
    """Where the migrations are: inside the installed package, or beside it in the repository."""
    here = Path(__file__).resolve().parent
    inside = here / "migrations"
    return inside if inside.is_dir() else here.parent / "migrations"


def newest_revision() -> str:
    """The schema that this release works with."""
    revision = ScriptDirectory.from_config(_alembic(None)).get_current_head()
    assert revision is not None
    return revision


async def current_revision(engine: AsyncEngine) -> str | None:
    """The schema that a database has, None for an empty one. Raises AuditAway."""
    async with connected(engine) as connection:
        return await connection.run_sync(_revision)


async def upgrade(engine: AsyncEngine, revision: str = "head") -> str:
    """Bring the schema to a revision, in one transaction; the one it has then.

    Raises AuditAway; AuditRefused where the tables are not ours or of a newer release.
    """
    async with connected(engine) as connection:
        if connection.dialect.name == "postgresql":
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})"))
        return await connection.run_sync(_upgrade, revision)


def _upgrade(connection: Connection, revision: str) -> str:
    before = _revision(connection)
    if before is None:
        taken = set(inspect(connection).get_table_names()) & set(metadata.tables)
        if taken:
            raise AuditRefused(
                f"the database holds a table {min(taken)!r} that is not of Picklog: use a database or"
                " schema of its own"
            )
    else:
        check_revision(before)
    if before != newest_revision() or revision != "head":
        command.upgrade(_alembic(connection), revision)
    return _revision(connection) or ""


def check_revision(revision: str) -> None:
    """Raises AuditRefused for a schema that this release does not know."""
    known = {script.revision for script in ScriptDirectory.from_config(_alembic(None)).walk_revisions()}
    if revision not in known:
        raise AuditRefused(f"the database has schema {revision}, which is newer than this release: update it")


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def _alembic(connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = VERSION_TABLE
    return config
