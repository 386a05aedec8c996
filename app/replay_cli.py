"""`picklog replay verify` and `picklog replay explain`.

Both read a log that may be in use by a running owner: committed records only. Exit status
0 done; 1 picks differ; 2 bad usage or no such pick; 3 the log cannot be read.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from app.cli_errors import EXIT_FOUND_WRONG, EXIT_USAGE, fail, printable, refusals_told
from app.log_places import OpenLog, open_log
from app.marks import Marks
from replay.explain import PickNotFound, explain
from replay.verify import Difference, Report, verify

replay_app = typer.Typer(no_args_is_help=True, help="Ask recorded picks again, offline.")

LogOption = Annotated[
    Path | None, typer.Option("--log", help="A data directory (default: .run/data where it exists).")
]
PIPED_WIDTH = 160  # columns of tables that no terminal shows
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@replay_app.command("verify")
def verify_command(
    log: LogOption = None,
    start: Annotated[str, typer.Option("--from", metavar="M", help="First mark.")] = "begin",
    stop: Annotated[str, typer.Option("--to", metavar="M", help="Mark to stop before.")] = "end",
    as_json: JsonOption = False,
) -> None:
    """Repeat every pick and compare the bytes; exit status 1 if any differs."""
    with refusals_told(), open_log(log) as opened:
        marks = Marks(opened.reader)
        first, last = marks.offset(start), marks.offset(stop)
        began = time.monotonic()
        with _Progress(first, last, "verifying") as advance:
            report = verify(opened.reader, opened.checkpoints, first, last, advance)
        seconds = time.monotonic() - began
        if as_json:
            _print_json(_report_document(report, seconds))
        else:
            _print_report(report, seconds, opened)
    if report.picks == 0:
        print("warning: no picks in this range", file=sys.stderr)
    if report.different:
        raise typer.Exit(EXIT_FOUND_WRONG)


@replay_app.command("explain")
def explain_command(
    name: Annotated[str, typer.Argument(metavar="ID", help="Pick id, request id, offset, or last.")],
    log: LogOption = None,
    as_json: JsonOption = False,
) -> None:
    """One pick: every candidate with its cost, what was excluded and why, and the end."""
    with refusals_told(), open_log(log) as opened:
        marks = Marks(opened.reader)
        try:
            found = explain(opened.reader, opened.checkpoints, name, marks.time_text)
        except PickNotFound as missing:
            fail(EXIT_USAGE, str(missing), "give a pick id, a request id, an offset or `last`")
        if as_json:
            _print_json(found)
        else:
            print_explanation(found, plain_console())


def _print_json(document: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    sys.stdout.buffer.flush()


class _Progress:
    """A progress bar on stderr, on a terminal only; gives the function that moves it."""

    def __init__(self, start: int, stop: int, what: str) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._start = start
        self._task = self._bar.add_task(what, total=max(1, stop - start))

    def __enter__(self) -> Callable[[int], None]:
        self._bar.start()
        return lambda offset: self._bar.update(self._task, completed=offset - self._start)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _report_document(report: Report, seconds: float) -> dict[str, Any]:
    return {
        "picks": report.picks,
        "equal": report.equal,
        "different": report.different,
        "unverifiable": report.unverifiable,
        "unverifiable_reasons": {reason.name.lower(): count for reason, count in report.reasons.items()},
        "seconds": round(seconds, 3),
        "records": report.records,
        "records_per_second": round(report.records / seconds) if seconds > 0 else 0,
        "first_difference": _difference_document(report.first_difference),
    }


def _difference_document(found: Difference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "log_offset": found.offset,
        "pick_id": found.pick_id,
        "field": found.field,
        "recorded": found.recorded,
        "repeated": found.repeated,
    }


def _print_report(report: Report, seconds: float, opened: OpenLog) -> None:
    rate = round(report.records / seconds) if seconds > 0 else 0
    print(
        f"{report.picks} picks: {report.equal} equal, {report.different} different,"
        f" {report.unverifiable} unverifiable"
    )
    print(f"{report.records} records in {seconds:.2f} s ({rate} a second) of {opened.name}")
    for reason, count in report.reasons.items():
        print(f"  unverifiable: {count}, {reason.value}")
    found = report.first_difference
    if found is None:
        return
    print(f"first difference: pick {found.pick_id} at offset {found.offset}")
    print(f"  {found.field}: recorded {found.recorded}, repeated {found.repeated}")
    print(f"  repeat: picklog replay explain {found.offset} --log {opened.name}")
    console = plain_console()
    for title, rows in (("recorded", found.recorded_rows), ("repeated", found.repeated_rows)):
        table = Table(title=title, title_justify="left")
        for column in ("worker", "rank", "cost", "verdict", "excluded"):
            table.add_column(column)
        for row in rows:
            table.add_row(
                printable(f"{row.namespace}/{row.instance_id}"),
                str(row.dp_rank),
                "-" if row.cost is None else f"{row.cost:.6f}",
                row.verdict.label,
                row.excluded.label if row.excluded else "",
            )
        console.print(table)


def plain_console() -> Console:
    """A console that takes text as it is: names of models and requests may look like markup."""
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width)


def print_explanation(found: dict[str, Any], console: Console) -> None:
    """The terminal face of an explanation. The console must be a plain one."""
    pick, question = found["pick"], found["question"]
    request = f"  request {pick['request_id']}  offset {pick['log_offset']}"
    _say(console, bold=f"pick {pick['pick_id']}", after=request)
    _say(
        console,
        f"asked {pick['asked_at']} for model {question['model']},"
        f" about {question['estimated_tokens']} prompt tokens,"
        f" on the state as of {pick['as_of']}, settings version {pick['config_version']}",
    )
    for row in found["namespaces"]:
        state = "eligible" if row["eligible"] else f"left out: {row['cause']}"
        _say(console, f"namespace {row['name']}: {state}")
    for name in ("decode", "prefill"):
        _print_phase(name, found["phases"][name], console)
    _print_end(found["end"], console)
    detail = f" ({found['repeated_detail']})" if found["repeated_detail"] else ""
    _say(console, "repeated: ", bold=found["repeated"], after=detail)


def _say(console: Console, before: str = "", bold: str = "", after: str = "") -> None:
    """One line, whatever is in it, with one part in bold."""
    text = Text()
    for part, style in ((before, ""), (bold, "bold"), (after, "")):
        text.append(printable(part), style=style)
    console.print(text, soft_wrap=True)


def _print_phase(name: str, phase: dict[str, Any], console: Console) -> None:
    winner = phase["winner"]
    chosen = f"{winner['namespace']}/{winner['worker']} rank {winner['dp_rank']}" if winner else "none"
    margin = f", margin {phase['margin']:.6f}" if phase["margin"] is not None else ""
    console.print()
    _say(console, bold=name, after=f": {chosen}, reason {phase['reason']}{margin}")
    if not phase["candidates"]:
        return
    table = Table()
    heads = ("worker", "rank", "cost", "blocks", "prefill tokens", "unanswered", "sample age", "verdict")
    for column in heads:
        table.add_column(column, justify="left" if column in ("worker", "verdict") else "right")
    for row in phase["candidates"]:
        age = row["sample_age_us"]
        verdict = row["verdict"] + (f" ({row['excluded_reason']})" if row["excluded_reason"] else "")
        table.add_row(
            printable(f"{row['namespace']}/{row['worker']}"),
            str(row["dp_rank"]),
            "-" if row["cost"] is None else f"{row['cost']:.6f}",
            _or_dash(row["active_decode_blocks"]),
            _or_dash(row["active_prefill_tokens"]),
            f"{row['unanswered_tokens']} tok {row['unanswered_blocks']} blk",
            "-" if age is None else f"{age / 1e6:.3f} s",
            verdict,
            style="bold" if row["chosen"] else None,
        )
    console.print(table)


def _print_end(end: dict[str, Any] | None, console: Console) -> None:
    console.print()
    if end is None:
        _say(console, "end: none yet")
        return
    byte_us = end["first_byte_us"]
    first = f", first byte after {byte_us / 1e3:.1f} ms" if byte_us is not None else ""
    _say(
        console,
        f"end: {end['status']} (HTTP {_or_dash(end['http_status'])} from {end['backend'] or '-'}){first},"
        f" {end['duration_us'] / 1e3:.1f} ms in all; tokens: prompt {_or_dash(end['prompt_tokens'])},"
        f" completion {_or_dash(end['completion_tokens'])}, cached {_or_dash(end['cached_tokens'])}",
    )


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
