"""`picklog replay explain`: one pick with every candidate, its outcome, and the same asked again.

Exit status 0 done; 2 no such pick; 3 the log cannot be read.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from app.cli_errors import EXIT_USAGE, fail, printable, refusals_told
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
from app.marks import Marks
from app.pick_index import PickIndex
from app.replay_steps import with_steps
from replay.explain import PickNotFound, explain


def explain_command(
    name: Annotated[str, typer.Argument(metavar="ID", help="Pick id, request id, offset, or last.")],
    log: LogOption = None,
    as_json: JsonOption = False,
) -> None:
    """One pick: every candidate with its cost, what was excluded and why, and the end."""
    with refusals_told(), open_log(log) as opened:
        marks = Marks(opened.reader)
        try:
            reader = opened.reader
            with ProgressBar(reader.first_offset(), reader.end_offset(), "indexing") as advance:
                index = PickIndex(opened.data, reader, advance) if opened.data is not None else None
            checkpoints = with_steps(opened.checkpoints, opened.data)
            found = explain(reader, checkpoints, name, marks.time_text, index)
        except PickNotFound as missing:
            fail(EXIT_USAGE, str(missing), "give a pick id, a request id, an offset or `last`")
        if as_json:
            print_json(found)
        else:
            print_explanation(found, plain_console())


def print_explanation(found: dict[str, Any], console: Console) -> None:
    """The terminal face of an explanation. The console must be a plain one."""
    pick, question = found["pick"], found["question"]
    request = f"  request {pick['request_id']}  offset {pick['log_offset']}"
    say(console, bold=f"pick {pick['pick_id']}", after=request)
    say(
        console,
        f"asked {pick['asked_at']} for model {question['model']},"
        f" about {question['estimated_tokens']} prompt tokens,"
        f" on the state as of {pick['as_of']}, settings version {pick['config_version']}",
    )
    if pick["kv_result"] is not None:
        read = f"{pick['isl_tokens']} tokens read" if pick["isl_tokens"] is not None else "prompt not read"
        held = f", {pick['overlap_blocks']} blocks held" if pick["overlap_blocks"] is not None else ""
        say(console, f"prefix: {pick['kv_result']} ({read}{held})")
    for row in found["namespaces"]:
        state = "eligible" if row["eligible"] else f"left out: {row['cause']}"
        say(console, f"namespace {row['name']}: {state}")
    for name in ("decode", "prefill"):
        _print_phase(name, found["phases"][name], console)
    _print_end(found["end"], console)
    detail = f" ({found['repeated_detail']})" if found["repeated_detail"] else ""
    say(console, "repeated: ", bold=found["repeated"], after=detail)


def _print_phase(name: str, phase: dict[str, Any], console: Console) -> None:
    winner = phase["winner"]
    chosen = f"{winner['namespace']}/{winner['worker']} rank {winner['dp_rank']}" if winner else "none"
    margin = f", margin {phase['margin']:.6f}" if phase["margin"] is not None else ""
    rotation = f", rotation {phase['rotation']} after it" if winner else ""
    console.print()
    say(console, bold=name, after=f": {chosen}, reason {phase['reason']}{margin}{rotation}")
    if not phase["candidates"]:
        return
    heads = ("worker", "cost", "blocks", "prefill tokens", "still open", "sample age", "verdict")
    table = narrow_table(heads, left=("worker", "verdict"))
    for row in phase["candidates"]:
        age = row["sample_age_us"]
        verdict = row["verdict"] + (f" ({row['excluded_reason']})" if row["excluded_reason"] else "")
        table.add_row(
            printable(f"{row['namespace']}/{row['worker']}#{row['dp_rank']}"),
            "-" if row["cost"] is None else f"{row['cost']:.6f}",
            or_dash(row["active_decode_blocks"]),
            or_dash(row["active_prefill_tokens"]),
            f"{row['unanswered_tokens']} tok {row['unanswered_blocks']} blk",
            "-" if age is None else f"{age / 1e6:.{1 if age >= 10_000_000 else 3}f} s",
            verdict,
            style="bold" if row["chosen"] else None,
        )
    console.print(table)
    if any(row["prefix"] for row in phase["candidates"]):
        _print_prefixes(phase["candidates"], console)


def _print_prefixes(rows: list[dict[str, Any]], console: Console) -> None:
    """What each rank held of the prompt, and what its cost was made of, in blocks."""
    heads = ("worker", "device", "predicted", "lower", "credit", "decay", "raw", "adjusted", "decode")
    table = narrow_table(heads, left=("worker",))
    for row in rows:
        prefix = row["prefix"]
        if prefix is None:
            continue
        numbers = (prefix[name] for name in ("credit", "decay", "raw_blocks", "adjusted_blocks"))
        table.add_row(
            printable(f"{row['namespace']}/{row['worker']}#{row['dp_rank']}"),
            str(prefix["device_blocks"]),
            str(prefix["predicted_blocks"]),
            f"{prefix['host_blocks']}+{prefix['disk_blocks']}",
            *("-" if number is None else f"{number:.2f}" for number in numbers),
            or_dash(prefix["decode_blocks"]),
            style="bold" if row["chosen"] else None,
        )
    console.print(table)


def _print_end(end: dict[str, Any] | None, console: Console) -> None:
    console.print()
    if end is None:
        say(console, "end: none yet")
        return
    byte_us = end["first_byte_us"]
    first = f", first byte after {byte_us / 1e3:.1f} ms" if byte_us is not None else ""
    say(
        console,
        f"end: {end['status']} (HTTP {or_dash(end['http_status'])} from {end['backend'] or '-'}){first},"
        f" {end['duration_us'] / 1e3:.1f} ms in all; tokens: prompt {or_dash(end['prompt_tokens'])},"
        f" completion {or_dash(end['completion_tokens'])}, cached {or_dash(end['cached_tokens'])}",
    )
