"""`picklog replay feed`: a production log, or a capture, folded into a staging directory.

The original is read as every offline command reads it; no configuration of a fleet is looked
at and no address is dialled. With `--listen` the staging directory has an admin endpoint. With
`-c` every pick is asked again under another configuration, and what it would have picked stands
in the staging directory's database.

Exit status 0 done or ended by a signal; 1 both ends do not agree, or the fold stopped; 2 bad
usage or another log's directory; 3 a log cannot be read or written.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from app.cli_errors import EXIT_FOUND_WRONG, EXIT_UNREACHABLE, EXIT_USAGE, fail, one_line, refusals_told
from app.cli_output import range_of
from app.config_addresses import AddressFault, read_bind
from app.config_findings import ConfigError, ConfigUnreadable
from app.config_load import load_config
from app.config_model import Config
from app.feeding import Feeding, StagingDirectory
from app.following import Following, FollowOption
from app.log_places import open_log
from app.marks import Marks
from app.process_log import set_up_process_log
from app.shadow import ShadowSettings
from app.shadow_settings import shadow_settings
from app.staging_admin import StagingAdmin
from replay.feed import FeedRefused

LogOption = Annotated[
    Path | None,
    typer.Option("--log", help="A data directory, a capture or kafka:FILE (default: .run/data if there)."),
]


def feed_command(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="The staging data directory.")],
    log: LogOption = None,
    start: Annotated[
        str, typer.Option("--from", metavar="M", help="Begin at the newest state before this mark.")
    ] = "begin",
    speed: Annotated[
        float | None,
        typer.Option("--speed", metavar="X", min=0.001, help="Log time in multiples of real time."),
    ] = None,
    follow: FollowOption = False,
    config: Annotated[
        Path | None, typer.Option("-c", "--config", metavar="FILE", help="Ask every pick under this one.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="ADDRESS", help="Serve /admin of the staging directory until Ctrl-C."
        ),
    ] = None,
    audit: Annotated[bool, typer.Option("--audit/--no-audit", help="Write DIR/audit.sqlite.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Fold a log into a staging directory, once or following it, touching no fleet."""
    other = _other(config) if config is not None else None
    if listen is not None:
        _bind(listen)
    os.umask(0o077)
    set_up_process_log(Config().logging)  # to stderr: stdout is for what was asked
    with refusals_told(), open_log(log, follow) as opened:
        if opened.data is not None and to.absolute() == opened.data.absolute():
            fail(EXIT_USAGE, f"{to} is the log itself", "name another directory with --to")
        first = range_of(Marks(opened.reader), start, "end")[0]
        source = Following.of(opened) if follow else Following(opened.reader)
        try:
            with source, StagingDirectory(to, opened, first) as staging:
                admin = _admin(listen, config, staging) if listen is not None else None
                feeding = Feeding(staging, source, speed, other, audit, _told, admin)
                began = time.monotonic()
                asyncio.run(feeding.run(follow))
                document = feeding.document(time.monotonic() - began)
        except FeedRefused as problem:
            fail(EXIT_USAGE, str(problem))
    if as_json:
        sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
        sys.stdout.buffer.flush()
    else:
        print_feed(document, print)
    if document["breaks"] or document["stopped"]:
        raise typer.Exit(EXIT_FOUND_WRONG)


def _other(path: Path) -> ShadowSettings:
    try:
        return shadow_settings(path)
    except (ConfigError, OSError) as problem:
        is_away = isinstance(problem, ConfigUnreadable | OSError)
        fail(EXIT_UNREACHABLE if is_away else EXIT_USAGE, one_line(str(problem)))


def _bind(address: str) -> None:
    """Refuse an address that cannot be one, before anything is written."""
    try:
        read_bind(address)
    except AddressFault as problem:
        fail(EXIT_USAGE, one_line(f"--listen {address}: {problem}"))


def _admin(address: str, config: Path | None, staging: StagingDirectory) -> StagingAdmin:
    try:
        settings = load_config(config).config if config is not None else Config()
        return StagingAdmin(address, settings, staging.data, lambda: staging.feed.cursor.fold)
    except (AddressFault, ConfigError) as problem:
        fail(EXIT_USAGE, one_line(f"--listen {address}: {problem}"))


def _told(text: str) -> None:
    if sys.stderr.isatty():
        print(text, end="\r", file=sys.stderr)


def print_feed(document: dict[str, Any], say: Callable[[str], object]) -> None:
    """What was fed, as people read it."""
    seconds = document["seconds"]
    rate = round(document["records"] / seconds) if seconds else 0
    say(
        f"{document['records']} records in {seconds:.1f} s ({rate} a second),"
        f" offsets up to {document['end_offset'] - 1} in {document['to']}"
    )
    say(
        f"{document['ticks_agreed']} ticks agree with the log's owner, checkpoints: {document['checkpoints']}"
    )
    for words in document["breaks"]:
        say(f"does not agree: {words}")
    if document["stopped"]:
        say(f"the fold stopped: {document['stopped']}")
    say(f"digests: {', '.join(f'{name} {digest}' for name, digest in document['digests'].items())}")
    other = document["other"]
    if other is None:
        return
    asked = other["same"] + other["moved"]
    share = f" ({100 * other['moved'] / asked:.1f} %)" if asked else ""
    say(
        f"under {other['config']}: {asked} picks asked, {other['moved']} moved{share},"
        f" {other['unverifiable']} could not be asked"
    )
    say(f"rows: {other['rows']}")
