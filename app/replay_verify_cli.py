"""`picklog replay verify`: repeat every pick of a range, and say what is wrong with it.

Exit status 1 only where picks differ or the log does not check. What else speaks against
the log (records that are missing or were changed, picks of another release, rotations that
do not continue) stands in the report, told apart, with a warning on stderr.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from app.cli_errors import (
    EXIT_FOUND_WRONG,
    EXIT_USAGE,
    fail,
    one_line,
    printable,
    refusals_told,
    say_error,
)
from app.cli_output import (
    FollowedFromOption,
    FollowedToOption,
    JsonOption,
    LogOption,
    ProgressBar,
    StatusLine,
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
from app.verify_following import VerifyFollowing
from app.verify_processes import processes_for, verify_by_processes
from app.version import VERSION
from ingest.log.segment_reader import SegmentReader
from projections.events.ports import LogReader
from replay.agreement import Break, TickBreak
from replay.verify import Difference, Report
from router.picker.rows import CandidateRow

ProcessesOption = Annotated[
    int | None,
    typer.Option("--processes", min=1, max=256, metavar="N", help="Processes (default: one a core)."),
]


def verify_command(
    log: LogOption = None,
    start: FollowedFromOption = None,
    stop: FollowedToOption = None,
    processes: ProcessesOption = None,
    follow: FollowOption = False,
    lasts: ForOption = None,
    as_json: JsonOption = False,
) -> None:
    """Repeat every pick and compare the bytes; exit status 1 if any differs."""
    for_s = seconds_of(lasts, follow)
    if follow and (stop is not None or processes is not None):
        fail(EXIT_USAGE, "--follow goes on without end, in one process", "leave --to and --processes out")
    walk: PickFollowing | None = None
    with refusals_told(), open_log(log, follow) as opened:
        first, last = range_of(Marks(opened.reader), start or ("end" if follow else "begin"), stop or "end")
        began = time.monotonic()
        if follow:
            set_up_process_log(Config().logging)  # to stderr: stdout is for what was found
            used = 1
            report, walk = _followed(opened, first, for_s, as_json)
        else:
            wanted = processes_for(last - first, processes)
            with ProgressBar(first, last, "verifying") as advance:
                report, used = verify_by_processes(opened, first, last, wanted, advance)
        seconds = time.monotonic() - began
        missing = _missing_at_end(opened.reader)
        if as_json:
            print_json(report_document(report, seconds, used) | {"missing_acknowledged": missing})
        else:
            print_report(report, seconds, used, opened.name, plain_console())
        if report.damage is not None:
            fail(EXIT_FOUND_WRONG, report.damage)
    _warn(report, missing)
    if walk is not None and walk.ended is not None:
        say_error(str(walk.ended))
    if report.different:
        raise typer.Exit(EXIT_FOUND_WRONG)
    if walk is not None:
        raise typer.Exit(walk.exit_status())


def _followed(
    opened: OpenLog, start: int, for_s: float | None, as_json: bool
) -> tuple[Report, PickFollowing]:
    """Follow the log until told to end; the report, and the walk, which knows why it ended."""
    line = StatusLine()

    def differs(found: Difference) -> None:
        line.clear()
        text = (
            f"different: pick {found.pick_id} at offset {found.offset}, {found.field}:"
            f" recorded {found.recorded}, repeated {found.repeated}"
        )
        print(one_line(text), file=sys.stderr if as_json else sys.stdout, flush=True)

    verifying = VerifyFollowing(opened, start, differs, line.show)
    with Following.of(opened) as following:
        if sys.stderr.isatty():
            print(f"verifying from offset {start} on, until Ctrl-C", file=sys.stderr)
        asyncio.run(verifying.walk.run(following, for_s))
    line.clear()
    return verifying.report(), verifying.walk


def _warn(report: Report, missing: int) -> None:
    if report.picks == 0:
        print("warning: no picks in this range", file=sys.stderr)
    for words in warnings_of(report):
        print(f"warning: {printable(words)}", file=sys.stderr)
    if missing:
        print(f"warning: missing: {missing} acknowledged records at the end of the log", file=sys.stderr)


def _missing_at_end(reader: LogReader) -> int:
    """Records that the durable mark acknowledged and that are not there."""
    if not isinstance(reader, SegmentReader):
        return 0
    return max(0, reader.acknowledged_end() - reader.end_offset())


def report_document(report: Report, seconds: float, processes: int) -> dict[str, Any]:
    """The JSON document."""
    chains = report.chains
    return {
        "picks": report.picks,
        "equal": report.equal,
        "different": report.different,
        "unverifiable": report.unverifiable,
        "unverifiable_reasons": {reason.name.lower(): count for reason, count in report.reasons.items()},
        "seconds": round(seconds, 3),
        "records": report.records,
        "records_per_second": round(report.records / seconds) if seconds > 0 else 0,
        "processes": processes,
        "first_difference": _difference_document(report.first_difference),
        "versions": [
            {"version": name, "picks": made, "different": different, "this_release": name == VERSION}
            for name, (made, different) in sorted(report.by_version.items())
        ],
        "log": {
            "ticks_agreed": report.ticks,
            "breaks": [_break_document(found) for found in report.breaks],
            "refused_records": report.refused,
            "first_refused": report.first_refused,
            "missing_own_numbers": chains.gaps,
            "rotation_breaks": chains.breaks,
            "damage": report.damage,
        },
        "warnings": list(warnings_of(report)),
    }


def warnings_of(report: Report) -> Iterator[str]:
    """What speaks against the log or the code, one sentence each."""
    for found in report.breaks:
        yield _break_words(found)
    if report.refused:
        yield (
            f"tampered or damaged: {report.refused} records are none of this log's writers, the first at"
            f" offset {report.first_refused} (their check words differ)"
        )
    gap = report.chains.first_gap
    if gap is not None:
        where = f", before offset {gap.offset}" if gap.offset >= 0 else ""
        yield (
            f"missing: replica {gap.replica.hex()} numbered its picks and ends on, but numbers {gap.first} to"
            f" {gap.last} are not in the log{where} ({report.chains.gaps} such gaps)"
        )
    rotation = report.chains.first_break
    if rotation is not None:
        yield (
            f"tampered or missing: the pick at offset {rotation.offset} begins with rotations"
            f" {rotation.begun}, the one before it at {rotation.before} left {rotation.left}"
            f" (model {rotation.model}; {report.chains.breaks} such breaks)"
        )


def print_report(report: Report, seconds: float, processes: int, name: str, console: Console) -> None:
    """The terminal face."""
    rate = round(report.records / seconds) if seconds > 0 else 0
    several = f" by {processes} processes" if processes > 1 else ""
    print(
        f"{report.picks} picks: {report.equal} equal, {report.different} different,"
        f" {report.unverifiable} unverifiable"
    )
    print(f"{report.records} records in {seconds:.2f} s ({rate} a second{several}) of {name}")
    for reason, count in report.reasons.items():
        print(f"  unverifiable: {count}, {reason.value}")
    if not report.breaks and not report.chains.gaps and not report.chains.breaks and report.picks:
        ticks = f"the state equals the owner's at {report.ticks} ticks"
        if not report.ticks:
            ticks = "no tick of its owner could be compared (few records, or a redacted capture)"
        print(f"no record of a router is missing, and {ticks}")
    for version, (made, different) in sorted(report.by_version.items()):
        if version != VERSION and different:
            print(
                f"another code: release {version or 'unknown'} made {made} of these picks and {different} of"
                f" the different ones; this is release {VERSION}"
            )
    if report.first_difference is not None:
        _print_difference(report.first_difference, name, console)


def _print_difference(found: Difference, name: str, console: Console) -> None:
    release = found.version or "unknown"
    made = "this release" if found.version == VERSION else f"release {release}, this is {VERSION}"
    say(console, bold="first difference", after=f": pick {found.pick_id} at offset {found.offset}")
    say(console, f"  {found.field}: recorded {found.recorded}, repeated {found.repeated}")
    say(console, f"  made by {made}")
    say(console, f"  repeat: picklog replay explain {found.offset} --log {name}")
    for phase in ("decode", "prefill"):
        recorded, repeated = getattr(found.recorded_rows, phase), getattr(found.repeated_rows, phase)
        if recorded or repeated:
            _print_tables(phase, recorded, repeated, console)


def _print_tables(
    phase: str, recorded: tuple[CandidateRow, ...], repeated: tuple[CandidateRow, ...], console: Console
) -> None:
    """Both tables beside each other, best first; rows that differ in bold."""
    table = Table(title=f"{phase}: recorded | repeated", title_justify="left")
    for head in ("", *2 * ("worker", "rank", "cost", "verdict")):
        table.add_column(head, justify="right" if head in ("", "rank", "cost") else "left")
    for place in range(max(len(recorded), len(repeated))):
        was = recorded[place] if place < len(recorded) else None
        now = repeated[place] if place < len(repeated) else None
        table.add_row(str(place), *_cells(was), *_cells(now), style="bold" if was != now else None)
    console.print(table)


def _cells(row: CandidateRow | None) -> tuple[str, str, str, str]:
    if row is None:
        return "-", "-", "-", "-"
    verdict = row.verdict.label + (f" ({row.excluded.label})" if row.excluded else "")
    cost = "-" if row.cost is None else f"{row.cost:.6f}"
    return printable(f"{row.namespace}/{row.instance_id}"), str(row.dp_rank), cost, verdict


def _difference_document(found: Difference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "log_offset": found.offset,
        "pick_id": found.pick_id,
        "field": found.field,
        "recorded": found.recorded,
        "repeated": found.repeated,
        "version": found.version or None,
        "this_release": VERSION,
        "tables": {
            phase: {
                "recorded": [_row_document(row) for row in getattr(found.recorded_rows, phase)],
                "repeated": [_row_document(row) for row in getattr(found.repeated_rows, phase)],
            }
            for phase in ("prefill", "decode")
        },
    }


def _row_document(row: CandidateRow) -> dict[str, Any]:
    return {
        "namespace": row.namespace,
        "worker": str(row.instance_id),
        "dp_rank": row.dp_rank,
        "cost": row.cost,
        "active_prefill_tokens": row.active_prefill_tokens,
        "active_decode_blocks": row.active_decode_blocks,
        "unanswered_tokens": row.unanswered_tokens,
        "unanswered_blocks": row.unanswered_blocks,
        "sample_age_us": row.sample_age_us,
        "verdict": row.verdict.label,
        "excluded_reason": row.excluded.label if row.excluded else None,
    }


def _break_words(found: TickBreak) -> str:
    between = f"between offsets {found.after} and {found.offset}"
    if found.kind is Break.MISSING:
        return (
            f"missing: {found.counted - found.read} of {found.counted} records {between} are not in the log"
        )
    if found.kind is Break.ADDED:
        added = found.read - found.counted
        return f"tampered: {added} records {between} were put in after the owner counted them"
    if found.kind is Break.CHANGED:
        return f"tampered: one or more records {between} are not those that the owner wrote"
    return (
        f"another code: the same records up to offset {found.offset} fold to another state here"
        f" ({', '.join(found.differing)})"
    )


def _break_document(found: TickBreak) -> dict[str, Any]:
    return {
        "kind": found.kind.name.lower(),
        "after": found.after,
        "offset": found.offset,
        "counted": found.counted,
        "read": found.read,
        "differing": list(found.differing),
    }
