"""`picklog capture export`, `import` and `show`: a window of a log as one file, and back.

What a capture will hold is told on stderr before it is written. Exit status 0 done; 1 the
file does not check; 2 bad usage, no whole capture, or one of a newer release; 3 a log or
file cannot be read or written. Nothing half written is left behind.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from app.capture_file import CaptureFile
from app.capture_import import import_capture
from app.capture_origin import origin_of_capture, origin_of_directory, origin_of_topic
from app.capture_reader import CaptureReader, CaptureUnreadable
from app.capture_signature import SignatureRefused, checked_signature, fingerprint, public_key, signer
from app.cli_errors import EXIT_FOUND_WRONG, EXIT_USAGE, fail, printable, refusals_told
from app.cli_output import ProgressBar, print_json, range_of
from app.log_places import OpenLog, open_log
from app.marks import Marks, time_text
from app.version import VERSION
from replay.capture import CaptureRefused, Plan, manifest_of, plan_capture, write_capture
from replay.log_walk import records_of
from replay.redaction import Redaction

capture_app = typer.Typer(no_args_is_help=True, help="A window of a log as one file, and back.")

LogOption = Annotated[
    Path | None,
    typer.Option("--log", help="A data directory, a capture or kafka:FILE (default: .run/data if there)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="A capture.")]
REDACTED = "addresses, cards, host and backend names, settings text"


@capture_app.command("export")
def export_command(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")],
    log: LogOption = None,
    start: Annotated[str, typer.Option("--from", metavar="M", help="First mark.")] = "begin",
    stop: Annotated[str, typer.Option("--to", metavar="M", help="Mark to stop before.")] = "end",
    redact: Annotated[bool, typer.Option("--redact", help=f"Leave out {REDACTED}.")] = False,
    sign: Annotated[
        Path | None, typer.Option("--sign", metavar="KEY", help="Sign with this Ed25519 key (PEM).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would hold.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE where it exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a window of a log to one file that opens anywhere."""
    with refusals_told(), _refusals_of_captures(), open_log(log) as opened:
        if out.exists() and not force and not dry_run:
            fail(EXIT_USAGE, f"{out} exists", "name another file, or say --force")
        signature = signer(sign) if sign is not None else None
        marks = Marks(opened.reader)
        first, last = range_of(marks, start, stop)
        with ProgressBar(first, last, "looking") as advance:
            plan = plan_capture(opened.reader, opened.checkpoints, first, last, advance)
        times = _times(marks, plan)
        _say_plan(plan, times, out, redact, sign)
        if dry_run:
            if as_json:
                print_json(_plan_document(plan, times))
            return
        rewriter = _redaction(opened, plan) if redact else None
        log_id = opened.reader.log_id if rewriter is None else rewriter.log_id
        origin = _origin(opened, plan)
        began = time.monotonic()
        with CaptureFile(out, log_id, signature) as file:
            with ProgressBar(plan.base + 1, plan.stop, "writing") as advance:
                written = write_capture(opened.reader, opened.checkpoints, plan, file, rewriter, advance)
            file.finish(
                manifest_of(
                    plan,
                    log_id=log_id,
                    written=written,
                    origin=origin,
                    product=f"picklog {VERSION}",
                    written_at=time_text(time.time_ns() // 1000),
                    times=times,
                    is_redacted=redact,
                )
            )
        seconds = time.monotonic() - began
    manifest, size = CaptureReader(out).ends.manifest, out.stat().st_size
    if as_json:
        print_json({"file": str(out), "bytes": size, "seconds": round(seconds, 3), "manifest": manifest})
    else:
        print(f"{out}: {_megabytes(size)}, {plan.records} records, {plan.picks} picks, {seconds:.1f} s")
        print(f"chain head {manifest['chain_head']}")
        print(f"look at it: picklog capture show {out}; ask it: picklog replay verify --log {out}")


@capture_app.command("show")
def show_command(
    file: FileArgument,
    signed_by: Annotated[
        Path | None, typer.Option("--signed-by", metavar="KEY", help="The key that must have signed it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every byte of a capture and say what it holds."""
    with refusals_told(), _refusals_of_captures():
        reader = CaptureReader(file)
        with ProgressBar(reader.first_offset(), reader.end_offset(), "checking") as advance:
            reader.check_whole(advance)
        reader.close()
        signature = _signature_words(reader, signed_by)
        manifest = reader.ends.manifest
        if as_json:
            print_json({"file": str(file), "good": True, "signature": signature, "manifest": manifest})
            return
        try:
            lines = [*_manifest_lines(file, manifest, signature)]
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            fail(EXIT_USAGE, f"{file}: its manifest lacks {problem}", "capture it again")
        print("\n".join(map(printable, lines)))


@capture_app.command("import")
def import_command(
    file: FileArgument,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The data directory to make.")],
    as_json: JsonOption = False,
) -> None:
    """Make a data directory of a capture, which every offline command reads."""
    with refusals_told(), _refusals_of_captures():
        if data.exists() and (not data.is_dir() or any(data.iterdir())):
            fail(EXIT_USAGE, f"{data} exists and is not empty", "name a directory that is to be made")
        reader = CaptureReader(file)
        with ProgressBar(reader.first_offset(), reader.end_offset(), "checking") as advance:
            reader.check_whole(advance)
        import_capture(reader, data)
        reader.close()
        manifest = reader.ends.manifest
    if as_json:
        print_json({"data": str(data), "manifest": manifest})
    else:
        print(f"{data}: {manifest['records']} records, {manifest['picks']} picks of {file}")
        print(f"ask it: picklog replay verify --log {data}")


# What goes into a capture -------------------------------------------------------------------


def _redaction(opened: OpenLog, plan: Plan) -> Redaction:
    before = None
    if plan.base >= max(0, opened.reader.first_offset()):
        before = next(iter(records_of(opened.reader, plan.base, plan.base + 1)), None)
    return Redaction(os.urandom(16), os.urandom(32), before, plan.condemned)


def _origin(opened: OpenLog, plan: Plan) -> dict[str, Any]:
    reader = opened.reader
    if isinstance(reader, CaptureReader):
        return origin_of_capture(reader, plan.first_offset, plan.stop)
    if opened.data is None:
        return origin_of_topic(reader.log_id)
    return origin_of_directory(opened.data, reader.log_id, plan.first_offset, plan.stop)


def _times(marks: Marks, plan: Plan) -> tuple[str | None, str | None]:
    first, last = plan.first_time, plan.last_time
    return (
        marks.time_text(first) if first is not None else None,
        marks.time_text(last) if last is not None else None,
    )


@contextmanager
def _refusals_of_captures() -> Iterator[None]:
    try:
        yield
    except (CaptureRefused, CaptureUnreadable) as problem:
        fail(EXIT_USAGE, str(problem))
    except SignatureRefused as problem:
        fail(EXIT_FOUND_WRONG if "does not hold" in str(problem) else EXIT_USAGE, str(problem))


def _signature_words(reader: CaptureReader, signed_by: Path | None) -> str:
    """What is to be said of the signature. Ends the command where it is not the one asked for."""
    ends = reader.ends
    if not ends.signature:
        if signed_by is not None:
            fail(EXIT_FOUND_WRONG, f"{reader.path} is not signed", "ask for a signed one")
        return "none"
    if signed_by is None:
        try:
            found = checked_signature(ends.digest, ends.signature)
        except SignatureRefused as problem:
            if "extra" in str(problem):
                return f"not checked: {problem}"
            raise
        return f"holds, by key {found.fingerprint}; say --signed-by to compare the key"
    wanted = public_key(signed_by)
    found = checked_signature(ends.digest, ends.signature)
    if found.public != wanted:
        fail(
            EXIT_FOUND_WRONG,
            f"{reader.path} is signed by key {found.fingerprint}, not by {fingerprint(wanted)}",
            "ask who made it",
        )
    return f"holds, by key {found.fingerprint}, that of {signed_by}"


# What is said -------------------------------------------------------------------------------


def _say_plan(
    plan: Plan, times: tuple[str | None, str | None], out: Path, redact: bool, sign: Path | None
) -> None:
    say = _to_stderr
    say(f"window: offsets {plan.start} to {plan.stop - 1}, {times[0] or '-'} to {times[1] or '-'}")
    lead_in = plan.start - plan.first_offset
    behind = f" and {lead_in} offsets before the window that its picks need" if lead_in else ""
    begins = f"the state of offset {plan.base}" if plan.base >= 0 else "the log's beginning"
    say(f"begins with {begins}{behind}")
    for words in plan.moved:
        say(f"the window was moved: {words}")
    say(f"{plan.records} records, {plan.picks} picks, {_megabytes(plan.record_bytes)} before compression")
    say(f"kinds: {', '.join(f'{count} {kind}' for kind, count in plan.kinds.items())}")
    if redact:
        say(f"left out: {REDACTED}; request ids, names of models, namespaces and components stay")
    else:
        say("it holds addresses, model cards, host names, settings (no secrets); --redact leaves them out")
    say("never in a log: prompts, answers, tokens, API keys, passwords")
    free = shutil.disk_usage(out.absolute().parent).free if out.absolute().parent.is_dir() else None
    if free is not None and free < plan.record_bytes:
        say(f"warning: {_megabytes(free)} are free there")
    if sign is not None:
        say(f"signed with {sign}")


def _plan_document(plan: Plan, times: tuple[str | None, str | None]) -> dict[str, Any]:
    return {
        "window": {"from": plan.start, "to": plan.stop, "from_at": times[0], "to_at": times[1]},
        "base": plan.base if plan.base >= 0 else None,
        "records": plan.records,
        "record_bytes": plan.record_bytes,
        "picks": plan.picks,
        "kinds_held": plan.kinds,
        "moved": list(plan.moved),
    }


def _manifest_lines(file: Path, manifest: dict[str, Any], signature: str) -> Iterator[str]:
    """What `show` says. Raises KeyError and the like for a manifest that another hand made."""
    window, origin = manifest["window"], manifest["origin"]
    yield f"{file}: {_megabytes(file.stat().st_size)}, every byte checks"
    yield f"written {manifest['written_at']} by {manifest['product']}, schema {manifest['schema']}"
    yield f"log {manifest['log_id']}{', redacted' if manifest['redacted'] else ''}"
    yield f"  of log {origin['log_id']}"
    for end, words in (("before", "before its first batch"), ("after", "behind its last batch")):
        if origin.get(end):
            yield f"  {words}, at offset {origin[end]['offset']}: chain head {origin[end]['head']}"
    yield f"window {window['from']} to {window['to'] - 1}, {window['from_at']} to {window['to_at']}"
    base = manifest["base"]
    begins = f"the state of offset {base['offset']}" if base else "the log's beginning"
    yield f"begins with {begins}; offsets {manifest['first_offset']} to {manifest['end_offset'] - 1}"
    yield f"{manifest['records']} records, {manifest['picks']} picks"
    for kind, count in manifest["kinds_held"].items():
        yield f"  {count:>10} {kind}"
    for one in manifest["settings"]:
        yield f"settings {one['version']}: picker {one['pick']['picker']}, digest {one['digest']}"
    yield f"artifacts: {len(manifest['artifacts'])}"
    yield f"chain head {manifest['chain_head']}"
    yield f"signature: {signature}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size} bytes"


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)
