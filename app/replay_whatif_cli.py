"""`picklog replay whatif`: the same questions under other settings, or on load decoded anew.

Files are written under a temporary name and renamed; only the rows of a log that is followed appear
as they are found. Exit status 0 also when picks moved; 1 the log does not check, or a fold that
follows it stopped; 2 bad usage or an invalid configuration; 3 the log cannot be read, or not be
followed any further.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table

from app.cli_errors import EXIT_DONE, EXIT_UNREACHABLE, EXIT_USAGE, fail, printable, refusals_told
from app.cli_output import (
    FollowedFromOption,
    FollowedToOption,
    JsonOption,
    LogOption,
    ProgressBar,
    StatusLine,
    or_dash,
    plain_console,
    print_json,
    range_of,
    say,
)
from app.config_model import Config
from app.following import Following, FollowOption, ForOption, seconds_of
from app.log_places import OpenLog, open_log
from app.marks import Marks
from app.pick_following import PickFollowing
from app.process_log import set_up_process_log
from app.read_times import ReadTimes
from app.redecoding import CheckpointsBefore, RedecodedLog
from app.replay_steps import with_steps
from app.whatif_document import PickRows, whatif_document
from app.whatif_following import WhatIfFollowing
from app.whatif_page import whatif_page
from app.whatif_settings import alternatives_of
from app.whole_file import told_as, unfinished_name, whole_file
from projections.events.ports import CheckpointStore, LogReader
from replay.alternative import Alternative
from replay.whatif import LIMITS, WhatIfs, what_if

WORKERS_SHOWN = 20
REDECODE_LIMIT = (
    "Only frames that became samples or block events are kept, and none of engines without a relay: what was"
    " refused then, or was overtaken by a newer sample before it was logged, cannot be decoded anew."
)

ConfigOption = Annotated[
    Path | None, typer.Option("-c", "--config", metavar="OTHER", help="Another configuration file.")
]
SweepOption = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="KEY=V1,V2,...", help="A setting in several values; twice for a grid."),
]
CsvOption = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="A row for every pick.")]
RedecodeOption = Annotated[
    bool, typer.Option("--redecode", help="Decode the kept raw frames anew instead of taking their samples.")
]
HtmlOption = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="A page with plots.")]


def whatif_command(
    config: ConfigOption = None,
    sweep: SweepOption = None,
    start: FollowedFromOption = None,
    stop: FollowedToOption = None,
    log: LogOption = None,
    csv_file: CsvOption = None,
    html_file: HtmlOption = None,
    redecode: RedecodeOption = False,
    follow: FollowOption = False,
    lasts: ForOption = None,
    as_json: JsonOption = False,
) -> None:
    """The same questions under other settings: which picks would have gone elsewhere, and why."""
    for_s = seconds_of(lasts, follow)
    if config is None and not sweep and not redecode:
        fail(EXIT_USAGE, "no other settings are named", "give -c FILE, --sweep KEY=V1,V2,... or --redecode")
    if follow and redecode:
        fail(EXIT_USAGE, "--redecode reads frames beside a log as it stands", "leave --follow or it out")
    if follow and stop is not None:
        fail(EXIT_USAGE, "--follow goes on without end", "leave --to out, or --follow")
    alternatives = alternatives_of(config, sweep or [])
    walk: PickFollowing | None = None
    with refusals_told():
        if html_file is not None:
            _try_to_write(html_file)
        with open_log(log, follow) as opened:
            marks = Marks(opened.reader)
            first, last = range_of(marks, start or ("end" if follow else "begin"), stop or "end")
            if follow:
                set_up_process_log(Config().logging)  # to stderr: stdout is for what was found
                document, found, walk = _followed(opened, marks, first, for_s, alternatives, csv_file)
            else:
                document, found = _walked(opened, marks, (first, last), alternatives, csv_file, redecode)
            if as_json:
                print_json(document)
            else:
                print_whatif(document, plain_console())
            if not document["picks"] and not document["not_asked"]:
                print("warning: no picks in this range", file=sys.stderr)
            if html_file is not None:
                with _written(html_file) as page:
                    assert page is not None
                    page.write(whatif_page(found, document, _title(alternatives), opened.name))
    if walk is not None and walk.exit_status() != EXIT_DONE:
        fail(walk.exit_status(), str(walk.damage or walk.ended))


def _walked(
    opened: OpenLog,
    marks: Marks,
    offsets: tuple[int, int],
    alternatives: list[Alternative],
    csv_file: Path | None,
    redecode: bool,
) -> tuple[dict[str, Any], WhatIfs]:
    """Ask the picks of a range of the log as it stands; the document, and what it is made of."""
    with _read_from(opened, redecode) as (reader, checkpoints):
        with _written(csv_file) as out, ProgressBar(*offsets, "asking again") as advance:
            each = PickRows(out, marks.time_text).add if out is not None else None
            found = what_if(reader, checkpoints, *offsets, alternatives, advance, each)
        document = whatif_document(found, marks.time_text)
        if isinstance(reader, RedecodedLog):
            document["redecoded"] = reader.counts.document()
            document["limits"].append(REDECODE_LIMIT)
    return document, found


def _followed(
    opened: OpenLog,
    marks: Marks,
    start: int,
    for_s: float | None,
    alternatives: list[Alternative],
    csv_file: Path | None,
) -> tuple[dict[str, Any], WhatIfs, PickFollowing]:
    """Follow the log until told to end; also the walk, which knows why it ended."""
    line = StatusLine()
    times = ReadTimes(marks.skew_at(start))
    with _appearing(csv_file) as out:

        def tell(text: str) -> None:
            if out is not None:
                out.flush()
            line.show(text)

        each = PickRows(out, times.text).add if out is not None else None
        asking = WhatIfFollowing(opened, start, alternatives, times, each, tell)
        with Following.of(opened) as following:
            if sys.stderr.isatty():
                print(f"asking from offset {start} on, until Ctrl-C", file=sys.stderr)
            asyncio.run(asking.walk.run(following, for_s))
    line.clear()
    found = asking.found()
    return whatif_document(found, times.text), found, asking.walk


@contextmanager
def _read_from(opened: OpenLog, redecode: bool) -> Iterator[tuple[LogReader, CheckpointStore]]:
    """The log as it is, or with its samples decoded anew from the first kept frame on."""
    if not redecode:
        yield opened.reader, with_steps(opened.checkpoints, opened.data)
        return
    if opened.frames is None:
        fail(EXIT_USAGE, f"{opened.name} holds no raw frames", "name a data directory, or kafka:FILE")
    with opened.frames() as frames:
        first = frames.first_offset()
        if first is None:
            fail(
                EXIT_UNREACHABLE,
                f"{opened.name} keeps no raw frames that can be read",
                "they are kept for log.raw.age while log.raw.enabled is true",
            )
        yield RedecodedLog(opened.reader, frames), CheckpointsBefore(opened.checkpoints, first)


def _title(alternatives: list[Alternative]) -> str:
    if len(alternatives) == 1:
        return f"Under {alternatives[0].name}"
    return f"Under several values of {' and '.join(key for key, _ in alternatives[0].labels)}"


def print_whatif(document: dict[str, Any], console: Console) -> None:
    """The terminal face."""
    say(
        console,
        bold=f"{document['moved']} of {document['picks']} picks move",
        after=f" ({document['share']:.1%}) under {document['alternative']}",
    )
    if "redecoded" in document:
        row = document["redecoded"]
        say(
            console,
            f"{row['same'] + row['changed'] + row['refused']} frames decoded anew: {row['changed']} say"
            f" something else, {row['refused']} are refused now; {row['not_kept']} samples whose frame"
            f" is gone and {row['damaged']} whose frame is damaged stay as they are",
        )
    if document["not_asked"]:
        reasons = ", ".join(f"{name} {count}" for name, count in document["not_asked_reasons"].items())
        say(console, f"{document['not_asked']} picks cannot be asked again: {reasons}")
    for phase, row in document["cost"].items():
        if row["picks"]:
            say(
                console,
                f"{phase} cost, average of {row['picks']} picks: {row['before']:.4f} -> {row['after']:.4f}"
                " (by the settings of then)",
            )
    before, after = document["overlap_blocks"]
    if before or after:
        say(console, f"blocks of prompts that the ranks that prefill held: {before} -> {after}")
    for model, row in document["spread"].items():
        say(
            console,
            f"model {model}: {row['ranks']} ranks, largest share {row['max_share'][0]:.1%} ->"
            f" {row['max_share'][1]:.1%}, Gini {row['gini'][0]:.3f} -> {row['gini'][1]:.3f}",
        )
    if "sweep" in document:
        _print_sweep(document["sweep"], console)
    _print_workers("decode picks by rank", document["by_worker"], console)
    if document["by_prefill_worker"]:
        _print_workers("prefill picks by rank", document["by_prefill_worker"], console)
    for row in document["largest"][:3]:
        say(console, bold=f"request {row['request_id']}", after=f" at offset {row['log_offset']}:")
        for text in row["why"]:
            say(console, f"  - {text}")
    for text in (document["limits"][0], *document["limits"][len(LIMITS) :]):
        say(console, f"note: {text}")


def _print_sweep(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(title="sweep", title_justify="left")
    for head in ("settings", "moved", "share", "largest share", "Gini", "decode cost", "blocks held"):
        table.add_column(head, justify="left" if head == "settings" else "right")
    for row in rows:
        cost = row["cost"]["decode"]["after"]
        table.add_row(
            printable(row["alternative"]),
            str(row["moved"]),
            f"{row['share']:.1%}",
            f"{row['max_share']:.1%}",
            f"{row['gini']:.3f}",
            "-" if cost is None else f"{cost:.4f}",
            str(row["overlap_blocks"][1]),
        )
    console.print(table)


def _print_workers(title: str, rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    for head in ("worker", "rank", "before", "after", "lost", "gained"):
        table.add_column(head, justify="left" if head == "worker" else "right")
    ordered = sorted(rows, key=lambda row: -abs(row["after"] - row["before"]))
    for row in ordered[:WORKERS_SHOWN]:
        numbers = (row[name] for name in ("dp_rank", "before", "after", "lost", "gained"))
        table.add_row(printable(f"{row['namespace']}/{row['worker']}"), *map(or_dash, numbers))
    console.print(table)
    if len(rows) > WORKERS_SHOWN:
        say(console, f"{len(rows) - WORKERS_SHOWN} further ranks: see --json")


def _try_to_write(path: Path) -> None:
    """Whether the file could be written, before it takes long to know what with. Raises OSError."""
    with told_as(path):
        unfinished = unfinished_name(path)
        unfinished.touch()
        unfinished.unlink()


@contextmanager
def _written(path: Path | None) -> Iterator[TextIO | None]:
    """A text file to write, whole or not at all."""
    if path is None:
        yield None
        return
    with (
        whole_file(path) as unfinished,
        unfinished.open("w", encoding="utf-8", newline="", errors="backslashreplace") as out,
    ):
        yield out


@contextmanager
def _appearing(path: Path | None) -> Iterator[TextIO | None]:
    """A text file whose lines can be read while it is written."""
    if path is None:
        yield None
        return
    with (
        told_as(path),
        path.open("w", encoding="utf-8", newline="", errors="backslashreplace") as out,
    ):
        yield out
