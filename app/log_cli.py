"""`picklog log stat`, `log cat` and `log verify`: looking at a log without disturbing its owner.

`log copy` has a module of its own. All read committed records only. Exit status 0 done; 1 the log
does not check; 2 bad usage; 3 the log cannot be read, or not be followed any further; 130 interrupted,
which is how `cat --follow` ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from app.cli_errors import EXIT_FOUND_WRONG, EXIT_USAGE, fail, refusals_told
from app.cli_output import FollowedFromOption, FollowedToOption, ProgressBar, print_json, range_of
from app.config_model import Config
from app.following import Following, FollowOption, end_if_unread
from app.kafka_places import is_kafka
from app.log_copy_cli import copy_command
from app.log_places import OpenLog, data_directory, open_log
from app.log_report import LogReport, log_report
from app.marks import Marks
from app.process_log import set_up_process_log
from app.record_lines import NEVER, RecordLines
from app.record_text import kind_of_text
from ingest.log.log_check import LogCheck, check_log
from ingest.log.segment_files import log_folder
from ingest.log.segment_reader import SegmentReader
from projections.events.ports import RecordBatch

if TYPE_CHECKING:
    from app.topic_report import TopicWalk
    from ingest.log.kafka_reader import KafkaReader

log_app = typer.Typer(no_args_is_help=True, help="Look at a log, check it, copy it.")
log_app.command("copy")(copy_command)

READ_BYTES = 1 << 20
HORIZON_WARN_SECONDS = 24 * 3600

LogOption = Annotated[
    Path | None,
    typer.Option("--log", help="A data directory or kafka:FILE (default: .run/data where it exists)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@log_app.command("stat")
def stat_command(log: LogOption = None, as_json: JsonOption = False) -> None:
    """Ranges, rates, sizes and horizon of a log."""
    with refusals_told(), open_log(log) as opened:
        if is_kafka(log):
            _stat_topic(opened, as_json)
            return
        report = log_report(data_directory(opened), opened.reader)
    if report.horizon_seconds < HORIZON_WARN_SECONDS:
        hours = report.horizon_seconds / 3600
        print(f"warning: at this rate records last {hours:.1f} h, under 24 h", file=sys.stderr)
    if as_json:
        print_json(report._asdict() | {"segments": [segment._asdict() for segment in report.segments]})
    else:
        _print_report(report)


@log_app.command("cat")
def cat_command(
    log: LogOption = None,
    start: FollowedFromOption = None,
    stop: FollowedToOption = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="K", help="Only records of this kind.")
    ] = None,
    follow: FollowOption = False,
) -> None:
    """Records as JSON, one a line."""
    wanted = kind_of_text(kind) if kind is not None else None
    if kind is not None and wanted is None:
        fail(EXIT_USAGE, f"there is no record kind {kind!r}", "name a fact such as PickMade, or its number")
    if follow and stop is not None:
        fail(EXIT_USAGE, "--follow goes on behind every mark", "leave --to out, or --follow")
    with refusals_told(), open_log(log, follow) as opened:
        marks = Marks(opened.reader)
        offset, end = range_of(marks, start or ("end" if follow else "begin"), stop or "end")
        lines = RecordLines(marks, offset, wanted)
        if follow:
            set_up_process_log(Config().logging)  # to stderr: stdout is for records
            with Following.of(opened) as following:
                asyncio.run(_follow(following, offset, lines))
        while offset < end and (batches := opened.reader.read(offset, READ_BYTES)):
            offset = _write_lines(batches, lines, end)
        sys.stdout.buffer.flush()


async def _follow(following: Following, offset: int, lines: RecordLines) -> NoReturn:
    """Write what becomes visible until Ctrl-C, or until nobody reads it any more."""
    while True:
        batches = await following.more(offset)
        if batches:
            offset = _write_lines(batches, lines, NEVER)
            sys.stdout.buffer.flush()
        else:
            end_if_unread()
        await asyncio.sleep(0)  # a signal is heard in a log that tells something new all the time


def _write_lines(batches: Sequence[RecordBatch], lines: RecordLines, end: int) -> int:
    """Records before `end`, a line each; the offset behind the last one."""
    write, offset = sys.stdout.buffer.write, 0
    for batch in batches:
        for offset, data in enumerate(batch.records, batch.first_offset):
            if offset >= end:
                return end
            write(lines.line(offset, data))
    return offset + 1


@log_app.command("verify")
def verify_command(log: LogOption = None, as_json: JsonOption = False) -> None:
    """Check words, order and hash chain, from the oldest kept segment on."""
    with refusals_told(), open_log(log) as opened:
        if is_kafka(log):
            _verify_topic(opened, as_json)
            return
        reader = opened.reader
        acknowledged = reader.acknowledged_end() if isinstance(reader, SegmentReader) else 0
        end = reader.end_offset()
        with ProgressBar(reader.first_offset(), end, "verifying") as advance:
            found = check_log(log_folder(data_directory(opened)), end, advance)
        missing = max(0, acknowledged - end)
    if as_json:
        print_json(_check_document(found, missing))
    else:
        _print_check(found, missing)
    bad = found.first_bad
    if bad is not None:
        fail(
            EXIT_FOUND_WRONG,
            f"{bad.segment}: offset {bad.offset}, byte {bad.byte}: {bad.what}",
            "restore the file from a copy",
        )
    if missing:
        fail(
            EXIT_FOUND_WRONG,
            f"offsets {end} to {end + missing - 1} were acknowledged and are not in the log",
            "restore the newest segment from a copy",
        )


def _stat_topic(opened: OpenLog, as_json: bool) -> None:
    from app.topic_report import topic_document

    document = topic_document(*_walked(opened, "reading"))
    if as_json:
        print_json(document)
        return
    print(f"log {document['log_id']}, offsets {document['first_offset']} to {document['end_offset'] - 1}")
    print(f"from {document['first_at']} to {document['last_at']}, {document['span_seconds']:.0f} s")
    print(
        f"{document['records']} records, {document['records_per_second']:.0f} a second;"
        f" {document['plain_bytes'] / 1e6:.1f} MB plain, in topic {document['topic']}"
    )


def _verify_topic(opened: OpenLog, as_json: bool) -> None:
    from app.topic_report import check_document

    reader, walk = _walked(opened, "verifying")
    if as_json:
        print_json(check_document(reader, walk))
    else:
        print(f"{walk.records} records check, offsets {walk.first_offset} to {walk.end_offset - 1}")
        print("a topic keeps no chain of batches: ticks and digests are compared by `replay verify`")
    if walk.first_bad is not None:
        fail(EXIT_FOUND_WRONG, f"{opened.name}: {walk.first_bad[1]}", "copy the log anew")


def _walked(opened: OpenLog, what: str) -> tuple[KafkaReader, TopicWalk]:
    from app.topic_report import walk_topic

    reader = opened.reader
    first, end = reader.first_offset(), reader.end_offset()
    with ProgressBar(first, end, what) as advance:
        return cast("KafkaReader", reader), walk_topic(cast("KafkaReader", reader), advance)


def _check_document(found: LogCheck, missing: int) -> dict[str, Any]:
    bad = found.first_bad
    return {
        "log_id": found.log_id.hex(),
        "good": bad is None and not missing,
        "first_offset": found.first_offset,
        "end_offset": found.end_offset,
        "segments": found.segments,
        "batches": found.batches,
        "records": found.records,
        "anchor": found.anchor.hex(),
        "head": found.head.hex(),
        "torn_bytes": found.torn_bytes,
        "missing_acknowledged": missing,
        "first_bad": None if bad is None else bad._asdict(),
    }


def _print_check(found: LogCheck, missing: int) -> None:
    print(
        f"{found.records} records in {found.batches} batches of {found.segments} segments check,"
        f" offsets {found.first_offset} to {found.end_offset - 1}"
    )
    print(f"anchor {found.anchor.hex()} (chain head before the oldest kept segment)")
    print(f"head   {found.head.hex()}")
    if found.torn_bytes:
        print(f"an unfinished batch of {found.torn_bytes} bytes at the end: the next owner cuts it")


def _print_report(report: LogReport) -> None:
    print(f"log {report.log_id}, offsets {report.first_offset} to {report.end_offset - 1}")
    print(f"from {report.first_at} to {report.last_at}, {report.span_seconds:.0f} s")
    print(
        f"{report.records} records, {report.records_per_second:.0f} a second;"
        f" {report.stored_bytes / 1e6:.1f} MB on disk, {report.plain_bytes / 1e6:.1f} MB plain,"
        f" {report.stored_bytes_per_second / 1e3:.1f} kB a second"
    )
    print(f"at this rate records last {report.horizon_seconds / 3600:.1f} h")
    print(f"owner: {'running' if report.has_owner else 'none'}")
    for segment in report.segments:
        end = segment.end_offset
        print(
            f"  {segment.first_offset:>14} to {end - 1:>14}  {segment.state:<10}"
            f" {segment.stored_bytes / 1e6:>9.2f} MB  {segment.first_at or '-'}"
        )
