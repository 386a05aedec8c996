"""`picklog replay state`: the fleet, its load and the dispatches at any mark, and what changed since.

With --against a state in a file is held to what the log folds to. Exit status 0 done; 1 the file's state
is another one; 2 a mark outside the log, or a file that is no state of it; 3 the log or the file cannot
be read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from app.cli_errors import EXIT_FOUND_WRONG, EXIT_USAGE, fail, printable, refusals_told
from app.cli_output import (
    JsonOption,
    LogOption,
    ProgressBar,
    narrow_table,
    or_dash,
    plain_console,
    print_json,
    say,
)
from app.log_places import open_log
from app.marks import MarkRefused
from app.replay_steps import with_steps
from app.state_comparison import (
    StateFileRefused,
    comparison_document,
    print_comparison,
    read_state_file,
)
from app.state_document import diff_document, state_document
from replay.timeline import StateGone

ROWS_SHOWN = 200


def state_command(
    at: Annotated[
        str | None, typer.Option("--at", metavar="M", help="Offset, time, -15m, begin or end (default).")
    ] = None,
    diff: Annotated[
        str | None, typer.Option("--diff", metavar="M2", help="Tell what changed from --at to this mark.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", metavar="FILE", help="Compare a file of DIR/aside or a checkpoint with the log."
        ),
    ] = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> None:
    """The state of the log at a mark; with --diff what changed up to another one, in words."""
    if against is not None and (at is not None or diff is not None):
        fail(EXIT_USAGE, "--against names the mark of its file", "leave --at and --diff out")
    with refusals_told(), open_log(log) as opened:
        checkpoints = with_steps(opened.checkpoints, opened.data)
        start = at or "end"
        try:
            file = read_state_file(against) if against is not None else None
            with ProgressBar(opened.reader.first_offset(), opened.reader.end_offset(), "folding") as advance:
                if file is not None:
                    found = comparison_document(opened.reader, checkpoints, file, advance)
                elif diff is None:
                    found = state_document(opened.reader, checkpoints, start, advance)
                else:
                    found = diff_document(opened.reader, checkpoints, start, diff, advance)
        except MarkRefused as refused:
            fail(EXIT_USAGE, str(refused.message))
        except (StateGone, StateFileRefused) as gone:
            fail(EXIT_USAGE, str(gone))
        if as_json:
            print_json(found)
        elif file is not None:
            print_comparison(found, plain_console())
        elif diff is None:
            print_state(found, plain_console())
        else:
            print_changes(found, plain_console())
    if file is not None and (found["parts"] or found["digests"]):
        raise typer.Exit(EXIT_FOUND_WRONG)


def print_changes(found: dict[str, Any], console: Console) -> None:
    """The terminal face of a difference: its sentences."""
    begin, end = found["from"], found["to"]
    say(
        console,
        f"from {begin['at']} (mark {begin['mark']}) to {end['at']} (mark {end['mark']}):",
    )
    for sentence in found["words"]:
        say(console, f"  - {sentence}")


def print_state(found: dict[str, Any], console: Console) -> None:
    """The terminal face of a state."""
    say(console, bold=f"state at {found['at']}", after=f", mark {found['mark']}")
    say(
        console,
        f"settings version {or_dash(found['config_version'])}, fleet generation {found['generation']},"
        f" {len(found['workers'])} workers, {len(found['load'])} ranks,"
        f" {found['ledger']['unanswered']} unanswered dispatches",
    )
    _print_ranks(found, console)
    _print_index(found["index"], console)
    _print_subscriptions(found["subscriptions"], console)
    _print_ledger(found["ledger"]["picks"], console)


def _print_ranks(found: dict[str, Any], console: Console) -> None:
    workers = {(row["namespace"], row["worker_id"]): row for row in found["workers"]}
    heads = ("worker", "role", "model", "decode blocks", "prefill tokens", "kv blocks", "verdict")
    left = ("worker", "role", "model", "verdict")
    table = narrow_table(heads, left, "workers and their load")
    for row in found["load"][:ROWS_SHOWN]:
        worker = workers[(row["namespace"], row["worker_id"])]
        table.add_row(
            printable(f"{row['namespace']}/{row['worker_id']}#{row['dp_rank']}"),
            worker["role"],
            printable(or_dash(worker["model"])),
            or_dash(row["active_decode_blocks"]),
            or_dash(row["active_prefill_tokens"]),
            or_dash(row["kv_used_blocks"]),
            row["verdict"],
        )
    _show(table, len(found["load"]), console)


def _print_index(index: dict[str, Any], console: Console) -> None:
    """Whose blocks are known; nothing where none are."""
    rows = index["ranks"]
    if not rows:
        return
    say(
        console,
        f"index: {index['nodes']} different blocks, {index['ownerships']} held by ranks,"
        f" {index['predictions']} predictions",
    )
    heads = ("worker", "blocks held", "last event", "xor of their engine hashes")
    table = narrow_table(heads, ("worker", "xor of their engine hashes"), "cached blocks")
    for row in rows[:ROWS_SHOWN]:
        worker = printable(f"{row['namespace']}/{row['worker_id']}#{row['dp_rank']}")
        table.add_row(worker, str(row["blocks"]), or_dash(row["last_event_id"]), row["engine_hash_xor"])
    _show(table, len(rows), console)


def _print_subscriptions(rows: list[dict[str, Any]], console: Console) -> None:
    heads = ("family", "publisher", "namespace", "component", "state", "transport")
    table = narrow_table(heads, heads, "subscriptions")
    for row in rows[:ROWS_SHOWN]:
        texts = (
            row[name] for name in ("family", "publisher_id", "namespace", "component", "state", "transport")
        )
        table.add_row(*map(printable, texts))
    _show(table, len(rows), console)


def _print_ledger(rows: list[dict[str, Any]], console: Console) -> None:
    heads = ("pick", "phase", "worker", "tokens", "blocks", "asked")
    table = narrow_table(heads, ("pick", "phase", "worker", "asked"), "unanswered dispatches")
    for row in rows[:ROWS_SHOWN]:
        worker = printable(f"{row['namespace']}/{row['worker_id']}#{row['dp_rank']}")
        numbers = (str(row["tokens"]), or_dash(row["blocks"]))
        table.add_row(row["pick_id"], row["phase"], worker, *numbers, row["asked_at"])
    _show(table, len(rows), console)


def _show(table: Table, rows: int, console: Console) -> None:
    """The table where it has rows, and on stderr how many were left out."""
    if not rows:
        return
    console.print(table)
    if rows > ROWS_SHOWN:
        print(f"{rows - ROWS_SHOWN} further rows of {table.title}: see --json", file=sys.stderr)
