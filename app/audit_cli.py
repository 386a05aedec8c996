"""`picklog audit`: the follower by itself, questions to its database, reports, a rebuild.

Questions and reports read only. The database is the one of a data directory unless `--db` names
another. Exit status 2 for a statement that the database refuses, 3 where it cannot be reached.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.engine import URL

from app.answer_text import Format, write_answer
from app.audit_database import DATABASE_NAME, AuditAway, AuditRefused, database_url
from app.audit_query import Answer, ask, run
from app.cli_errors import EXIT_UNREACHABLE, EXIT_USAGE, fail, refusals_told
from app.cli_output import ProgressBar
from app.log_places import DEFAULT_DATA, open_log
from app.settings_changes import settings_changes
from app.sql_queries import FIRST_TIME, LAST_OFFSET, LAST_TIME, REPORTS, Report, sql_of

audit_app = typer.Typer(help="The SQL record of picks: follow a log, ask, report, rebuild.")

LogOption = Annotated[
    Path | None, typer.Option("--log", help="A data directory (default: .run/data where it exists).")
]
BackfilledOption = Annotated[
    Path | None,
    typer.Option(
        "--log",
        metavar="WHERE",
        help="A data directory (default: .run/data), a capture or kafka:FILE; the last two want --db.",
    ),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--db", metavar="URL", help="sqlite:///FILE, a path, or postgresql://USER:PASSWORD@HOST/NAME."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


FormatOption = Annotated[Format, typer.Option("--format", help="How the answer is written.")]


@contextmanager
def database_told() -> Iterator[None]:
    """Turn what the database refuses into one line and the right status."""
    with refusals_told():
        try:
            yield
        except AuditRefused as problem:
            fail(EXIT_USAGE, str(problem))
        except AuditAway as problem:
            fail(EXIT_UNREACHABLE, str(problem), "is the database there, and may it be read?")


def url_of(database: str | None, log: Path | None) -> URL:
    """The database that a command means."""
    if database is not None:
        return database_url(database, log or DEFAULT_DATA)
    data = log or DEFAULT_DATA
    if not data.is_dir():
        fail(
            EXIT_UNREACHABLE,
            f"there is no data directory {data}",
            "name one with --log, or a database with --db",
        )
    return database_url(str(data / DATABASE_NAME))


@audit_app.callback(invoke_without_command=True)
def follow_command(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="Configuration file; else it is searched."),
    ] = None,
    data: Annotated[
        Path,
        typer.Option(
            "--data", metavar="DIR", help="Data directory to follow; on Kafka, where checkpoints are kept."
        ),
    ] = DEFAULT_DATA,
    binds: Annotated[
        list[str] | None,
        typer.Option(
            "--bind",
            metavar="ADDRESS",
            help="Answer /health, /ready, /metrics here; repeatable. On Kafka: server.bind_address.",
        ),
    ] = None,
) -> None:
    """Without a word: follow a log, write checkpoints and the audit database, verify samples of picks."""
    if context.invoked_subcommand is not None:
        return
    from app.cli import addresses_told, loaded_config
    from app.config_load import installed_extras
    from app.followed_log import is_on_kafka
    from app.kafka_places import own_brokers_told
    from app.serve import follow

    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    with refusals_told():
        loaded = loaded_config(config)
        addresses = tuple(binds or ())
        if is_on_kafka(loaded.config):
            if "kafka" not in installed_extras():
                fail(EXIT_USAGE, "the Kafka client is not installed", "pip install 'picklog[kafka]'")
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
            addresses = addresses or loaded.config.server.bind_address
        with addresses_told(), own_brokers_told(loaded):
            raise typer.Exit(follow(data, loaded, False, addresses))


@audit_app.command("stream")
def stream_command(
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="Configuration file; else it is searched."),
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="What {data} stands for in audit.url.")
    ] = DEFAULT_DATA,
    web_port: Annotated[
        int | None,
        typer.Option(
            "--web-port", min=0, max=65_535, metavar="PORT", help="Instead of audit.stream.web_port."
        ),
    ] = None,
) -> None:
    """A stream worker: write audit messages of a Kafka topic into the database; start as many as you like."""
    from app.cli import loaded_config
    from app.config_storage import AuditTarget

    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    loaded = loaded_config(config).config
    if loaded.audit.sink is not AuditTarget.STREAM:
        fail(EXIT_USAGE, "audit.sink is not stream: the follower writes into the database itself")
    try:
        from app.stream import stream_worker
    except ImportError:
        fail(
            EXIT_USAGE, "stream workers need a library that is not installed", "pip install 'picklog[faust]'"
        )
    with database_told():
        raise typer.Exit(stream_worker(loaded, data, web_port))


@audit_app.command("query")
def query_command(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A SELECT, WITH, VALUES or EXPLAIN.")],
    database: DatabaseOption = None,
    log: LogOption = None,
    form: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """Ask the audit database; at most 10,000 rows, and nothing can be changed."""
    with database_told():
        answer = run(ask(url_of(database, log), sql))
    write_answer(answer, Format.JSON if as_json else form)


@audit_app.command("report")
def report_command(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which report; none lists them.")] = None,
    database: DatabaseOption = None,
    log: LogOption = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Picks from this ISO time on: UTC, log time as in the tables."
        ),
    ] = None,
    stop: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Picks before this ISO time.")
    ] = None,
    at: Annotated[
        int,
        typer.Option(
            "--at", min=0, metavar="OFFSET", help="For `fleet`: the offset.", show_default="the newest"
        ),
    ] = LAST_OFFSET,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it into FILE, .png or .svg.")
    ] = None,
    form: FormatOption = Format.TABLE,
    as_json: JsonOption = False,
) -> None:
    """A canned report, as a table or a plot; without a name: which there are."""
    form = Format.JSON if as_json else form
    if name is None:
        write_answer(
            Answer(("name", "asks"), [(report.name, report.asks) for report in REPORTS.values()], False), form
        )
        return
    report = REPORTS.get(name)
    if report is None:
        fail(EXIT_USAGE, f"there is no report {name!r}", f"one of {', '.join(REPORTS)}")
    sql = sql_of(report, _time(start, FIRST_TIME), _time(stop, LAST_TIME), at)
    with database_told():
        answer = run(ask(url_of(database, log), sql))
    if name == "configs":
        answer = with_changes(answer)
    if plot is None:
        write_answer(answer, form)
        return
    _draw(report, answer, plot)


@audit_app.command("backfill")
def backfill_command(
    log: BackfilledOption = None,
    database: DatabaseOption = None,
    candidates: Annotated[
        str, typer.Option("--candidates", metavar="N|all", help="Candidate rows of each phase of a pick.")
    ] = "2",
) -> None:
    """Write every record of a log into its audit database, whatever is there already."""
    from app.audit_sink import AuditSink
    from app.sql_rows import SinkSettings

    limit = None if candidates == "all" else int(candidates) if candidates.isdecimal() else -1
    if limit is not None and not 0 <= limit <= 65_536:
        fail(EXIT_USAGE, f"--candidates {candidates} is no number of rows", "0 to 65536, or all")
    with database_told(), open_log(log) as opened:
        end = opened.reader.end_offset()
        url = url_of(database, log)

        async def rebuild() -> int:
            with ProgressBar(opened.reader.first_offset(), end, "writing rows") as advance:
                sink = AuditSink(
                    opened.reader,
                    opened.checkpoints,
                    SinkSettings(url, None, None, limit, rollup_grace_us=0),
                    sink="backfill",
                    on_written=advance,
                    patient=False,
                )
                try:
                    await sink.rebuild(end)
                    return sink.rows
                finally:
                    await sink.close()

        rows = run(rebuild())
    print(f"{rows} rows from {opened.name}, records {opened.reader.first_offset()} to {end - 1}")


def with_changes(answer: Answer) -> Answer:
    """The report `configs` with what each version changed in place of both settings texts."""
    after, before = answer.columns.index("settings"), answer.columns.index("settings_before")
    columns = (*answer.columns[:after], "changed")
    rows = [(*row[:after], settings_changes(row[before], row[after])) for row in answer.rows]
    return Answer(columns, rows, answer.cut)


def _time(text: str | None, default: str) -> str:
    """An ISO time as the database writes it."""
    if text is None:
        return default
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(EXIT_USAGE, f"{text!r} is no ISO time", "write 2026-11-29T18:41:00Z")
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f").rjust(26, "0")


def _draw(report: Report, answer: Answer, file: Path) -> None:
    if file.suffix.lower() not in (".png", ".svg"):
        fail(EXIT_USAGE, f"{file}: a plot is a .png or an .svg file")
    try:
        from app.audit_report_plots import draw
    except ImportError:
        fail(EXIT_USAGE, "plots need a library that is not installed", "pip install 'picklog[plot]'")
    with refusals_told():
        draw(report, answer, file)
    if not answer.rows:
        print("warning: the report has no rows", file=sys.stderr)
