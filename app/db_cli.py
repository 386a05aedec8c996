"""`picklog db upgrade | current`: the schema of the audit database.

The follower upgrades by itself when it starts; these are for sites that give it no right to.
"""

from __future__ import annotations

import typer
from sqlalchemy.engine import URL

from app.audit_cli import DatabaseOption, LogOption, database_told, url_of
from app.audit_database import current_revision, newest_revision, reading_engine, upgrade, writing_engine
from app.audit_query import run
from app.cli_errors import EXIT_FOUND_WRONG, fail

db_app = typer.Typer(no_args_is_help=True, help="Schema of the audit database.")


@db_app.command("upgrade")
def upgrade_command(database: DatabaseOption = None, log: LogOption = None) -> None:
    """Bring the schema to the newest revision; a database that is not there yet is made."""
    with database_told():
        print(run(_upgrade(url_of(database, log))))


@db_app.command("current")
def current_command(database: DatabaseOption = None, log: LogOption = None) -> None:
    """Print the schema's revision; exit status 1 where it is not this release's."""
    with database_told():
        current = run(_current(url_of(database, log)))
    print(current or "none")
    if current != newest_revision():
        fail(EXIT_FOUND_WRONG, f"this release works with {newest_revision()}", "run `picklog db upgrade`")


async def _upgrade(url: URL) -> str:
    engine = writing_engine(url)
    try:
        return await upgrade(engine)
    finally:
        await engine.dispose()


async def _current(url: URL) -> str | None:
    engine = reading_engine(url)
    try:
        return await current_revision(engine)
    finally:
        await engine.dispose()
