"""`picklog artifacts`: what the fleet's cards advertise, for review, and the pins to write down.

A router loads a tokenizer or a template only when its checksum is pinned. These commands
read the log's newest fleet; nothing is fetched and nothing is changed. What workers wrote is
printed escaped, so that a name can neither move the cursor nor add a line to the YAML.

Exit status 0 done; 1 workers of a model disagree, or a cached file had been changed; 2 no such
model or checksum; 3 the log cannot be read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from app.artifact_report import (
    Advertised,
    ModelArtifacts,
    Pins,
    Standing,
    advertised,
    excerpt_of,
    is_template,
    models_naming,
    pins_of,
    standing_of,
)
from app.cli_errors import EXIT_FOUND_WRONG, EXIT_USAGE, fail, one_line, printable, refusals_told
from app.cli_output import JsonOption, LogOption, ProgressBar, plain_console, print_json, say
from app.collector import reading_collector
from app.log_places import open_log
from app.marks import MarkRefused, Marks
from app.replay_steps import with_steps
from app.state_document import offset_of_state
from projections.events.envelope import LANE
from replay.timeline import StateGone, state_at

PLACES_SHOWN = 3
CHECKSUM_CHARACTERS_MIN = 8

artifacts_app = typer.Typer(
    no_args_is_help=True, help="Files that make prompts of the fleet's models: review and pin them."
)


@artifacts_app.callback()
def _offline() -> None:
    """Files that make prompts of the fleet's models: review and pin them."""
    reading_collector()


class _Looked(NamedTuple):
    mark: str
    at: str
    models: list[ModelArtifacts]
    pins: Pins


@artifacts_app.command("list")
def list_command(log: LogOption = None, as_json: JsonOption = False) -> None:
    """Tokenizers and templates of every model, with checksums, places, and what is pinned."""
    looked = _look(log)
    if as_json:
        print_json(_document(looked))
        return
    console = plain_console()
    say(console, bold=f"artifacts at {looked.at}", after=f", mark {looked.mark}")
    if not looked.models:
        say(console, "no worker that could be routed to serves a model")
    for one in looked.models:
        console.print()
        say(console, bold=one.model, after=f": {_agreement(one)}")
        for file in one.files:
            pinned = "pinned" if file.pinned else "not pinned"
            state = "" if file.checksum is None else f", {_size(file)}, {pinned}"
            say(console, f"  {file.slot}: {file.kind}{state}, {_of_workers(file, one)}")
            if file.checksum is not None:
                say(console, f"    {file.checksum}")
            for place in file.places[:PLACES_SHOWN]:
                say(console, f"    {place}")
            if len(file.places) > PLACES_SHOWN:
                say(console, f"    and {len(file.places) - PLACES_SHOWN} further places: see --json")


@artifacts_app.command("show")
def show_command(
    checksum: Annotated[str, typer.Argument(metavar="CHECKSUM", help="Of a file, or how it begins.")],
    log: LogOption = None,
    as_json: JsonOption = False,
) -> None:
    """One file: who names it, whether it is pinned and lies here, and how its contents begin."""
    if len(checksum.removeprefix("blake3:")) < CHECKSUM_CHARACTERS_MIN:
        fail(
            EXIT_USAGE, f"{one_line(checksum)} is too short", f"give {CHECKSUM_CHARACTERS_MIN} digits or more"
        )
    looked = _look(log)
    found = models_naming(looked.models, checksum)
    if not found:
        fail(EXIT_USAGE, f"no card names {one_line(checksum)[:100]}", "see `picklog artifacts list`")
    if len(found) > 1:
        fail(EXIT_USAGE, f"{len(found)} checksums begin with {checksum}", "give more digits")
    ((whole, named),) = found.items()
    places = [place for _, file in named for place in file.places]
    standing = standing_of(whole, places, looked.pins.cache_dir)
    if as_json:
        print_json(_shown_document(whole, named, standing))
    else:
        _print_shown(whole, named, standing)
    blob = standing.places[0] if looked.pins.cache_dir is not None else None
    if blob is not None and blob[1] == "changed":
        fail(EXIT_FOUND_WRONG, f"{blob[0]}: has another checksum than its name", "the router fetches it anew")


@artifacts_app.command("pin-line")
def pin_line_command(
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="Of this model alone.")] = None,
    log: LogOption = None,
) -> None:
    """The YAML to put under `dynamo.kv`, after you have reviewed the files."""
    looked = _look(log)
    models = [one for one in looked.models if model is None or one.model == model]
    if not models:
        what = "no worker serves a model" if model is None else f"no worker serves a model {model!r}"
        known = ", ".join(one.model for one in looked.models)
        fail(EXIT_USAGE, what, f"the fleet has: {known}" if known else "wait for workers to register")
    print("    pinned_artifacts:  # under `dynamo:`, `kv:`, in place of a list that is there")
    listed: set[str] = set()
    for one in models:
        for line in _pin_lines(one, listed):
            print(f"      {line}")
    sys.stdout.flush()
    odd = [one for one in models if one.refused is not None]
    if odd:
        what = f"{', '.join(one.model for one in odd)}: {odd[0].refused}"
        fail(EXIT_FOUND_WRONG, what, "their lines are commented out; keep those that you have reviewed")


def _look(log: Path | None) -> _Looked:
    """The newest fleet of a log."""
    with refusals_told(), open_log(log) as opened:
        reader, marks = opened.reader, Marks(opened.reader)
        checkpoints = with_steps(opened.checkpoints, opened.data)
        try:
            offset = offset_of_state(marks, reader, "end")
            with ProgressBar(reader.first_offset(), reader.end_offset(), "folding") as advance:
                fold = state_at(reader, checkpoints, offset, advance).fold
        except (MarkRefused, StateGone) as problem:
            fail(EXIT_USAGE, str(problem))
        pins = pins_of(fold.settings_now, opened.data)
        models = advertised(fold.state.registry.fleet, pins)
        at = marks.time_text(fold.mark.time)
    return _Looked(f"{LANE}:{fold.mark.offset}", at, models, pins)


def _agreement(one: ModelArtifacts) -> str:
    workers = "1 worker" if one.workers == 1 else f"{one.workers} workers"
    return f"{workers}, all agree" if one.refused is None else f"{workers}: {one.refused}"


def _of_workers(file: Advertised, one: ModelArtifacts) -> str:
    return f"{file.workers} of {one.workers} workers"


def _size(file: Advertised) -> str:
    return "size not said" if file.size is None else f"{file.size} bytes"


def _pin_lines(one: ModelArtifacts, listed: set[str]) -> list[str]:
    """The lines of one model; commented out where its workers disagree, lest a stray one is pinned."""
    lines = [one_line(f"# {one.model}: {_agreement(one)}")]
    for file in one.files:
        about = one_line(f"{file.slot} {file.kind}, {_size(file)}, {_of_workers(file, one)}")
        if file.checksum is None:
            lines.append(f"# {file.slot} {file.kind}, {_of_workers(file, one)}")
        elif one.refused is not None:
            lines.append(f"# - {file.checksum}  # {about}")
        elif file.checksum in listed:
            lines.append(f"# {file.slot}: {file.checksum} stands above")
        else:
            listed.add(file.checksum)
            lines.append(f"- {file.checksum}  # {about}{', pinned already' if file.pinned else ''}")
    return lines


def _document(looked: _Looked) -> dict[str, Any]:
    return {
        "mark": looked.mark,
        "at": looked.at,
        "models": [
            {"model": one.model, "workers": one.workers, "agreed": one.refused is None, "detail": one.refused}
            for one in looked.models
        ],
        "artifacts": [
            _row(one.model, file) | {"of_workers": one.workers, "agreed": one.refused is None}
            for one in looked.models
            for file in one.files
        ],
    }


def _row(model: str, file: Advertised) -> dict[str, Any]:
    return {
        "model": model,
        "slot": file.slot,
        "kind": file.kind,
        "checksum": file.checksum,
        "size": file.size,
        "uris": list(file.places),
        "workers": file.workers,
        "pinned": file.pinned,
    }


def _shown_document(checksum: str, named: list[tuple[str, Advertised]], standing: Standing) -> dict[str, Any]:
    kind = named[0][1].kind
    return {
        "checksum": checksum,
        "pinned": named[0][1].pinned,
        "named_by": [_row(model, file) for model, file in named],
        "here": [{"path": path, "state": state} for path, state in standing.places],
        "excerpt": None if standing.contents is None else excerpt_of(kind, standing.contents),
    }


def _print_shown(checksum: str, named: list[tuple[str, Advertised]], standing: Standing) -> None:
    console = plain_console()
    say(console, bold=checksum, after=", pinned" if named[0][1].pinned else ", not pinned")
    for model, file in named:
        say(console, f"  {model}: {file.slot}, {file.kind}, {_size(file)}, {file.workers} workers")
        for place in file.places:
            say(console, f"    {place}")
    for path, state in standing.places:
        say(console, f"  {path}: {state}")
    contents = standing.contents
    if contents is None:
        say(console, "  no copy of it lies on this machine")
        return
    kind = named[0][1].kind
    excerpt = excerpt_of(kind, contents)
    what = "template" if is_template(kind) else "contents"
    say(console, f"{what}, {len(excerpt.encode())} bytes shown of a file of {len(contents)}:")
    for line in excerpt.split("\n"):
        print(f"  | {printable(line)}")
