"""A state that was written aside, or a checkpoint, against what the log folds to at the same offset.

For whoever looks for the cause of a disagreement: which digests differ, in which parts the states differ,
and the first difference of each part, field by field. The file is read fact by fact and not restored, so
one that is no state at all is told of too. As in the document of a state, values of keys are not shown.

The log is folded from an older checkpoint, since the file may be one itself. That one may lie too. So it is
said whether the owner's ticks agree with what the log folds to.

Source: decision 10.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from app.checkpoint_store import state_file_records
from app.cli_output import say
from app.marks import Marks
from app.record_text import plain
from app.redecoding import CheckpointsBefore
from projections.checkpoint import CheckpointRefused, checkpoint_facts, checkpoint_records
from projections.events.envelope import LANE
from projections.events.held import CheckpointClosed, CheckpointOpened, KvTierHeld
from projections.events.ports import CheckpointStore, LogCorrupt, LogReader
from replay.fold_cursor import FoldCursor
from replay.log_walk import Progress
from replay.state_parts import PARTS, Fact, PartDifference, differing_parts
from replay.timeline import state_at

LOOK_RECORDS = 500_000  # behind the mark, for a tick that says whether the log's own state is the owner's
_LOOK_STEP = 4_096
REMEDY = "name a file of DIR/aside or DIR/checkpoints"
_HIDDEN = frozenset({"value", "settings"})  # addresses, cards, names of hosts
_NOT_SHOWN = "(not shown)"
_CHARACTERS_SHOWN = 200  # of a value, for people


class StateFileRefused(ValueError):
    """The file is no whole state, or not one of this log; says why."""


class StateFile(NamedTuple):
    """What a file of a state holds. facts: between the opening and the closing one, all in memory."""

    path: Path
    opened: CheckpointOpened
    facts: list[Fact]
    closed: CheckpointClosed


def read_state_file(path: Path) -> StateFile:
    """A file of `DIR/aside` or `DIR/checkpoints`, of up to 4 GiB. Raises StateFileRefused, OSError."""
    if path.exists() and not path.is_file():
        raise StateFileRefused(f"{path}: it is no ordinary file")
    try:
        facts = list(checkpoint_facts(state_file_records(path, REMEDY)))
    except LogCorrupt as problem:
        raise StateFileRefused(str(problem)) from problem
    except CheckpointRefused as problem:
        raise StateFileRefused(f"{path}: {problem}") from problem
    opened, held, closed = next(iter(facts), None), facts[1:-1], facts[-1] if facts else None
    strange = next((fact for fact in held if type(fact) not in PARTS and type(fact) is not KvTierHeld), None)
    if not isinstance(opened, CheckpointOpened) or not isinstance(closed, CheckpointClosed):
        raise StateFileRefused(f"{path}: it is no state: {REMEDY}")
    if strange is not None or closed.facts != len(held):
        raise StateFileRefused(f"{path}: it is no whole state: {closed.facts} facts were written")
    return StateFile(path, opened, held, closed)


def comparison_document(
    reader: LogReader,
    checkpoints: CheckpointStore,
    file: StateFile,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """The document of the difference. Raises StateFileRefused, StateGone, and what the log raises."""
    opened = file.opened
    if opened.log_id != reader.log_id:
        raise StateFileRefused(f"{file.path}: it is a state of another log, {opened.log_id.hex()}")
    older = CheckpointsBefore(checkpoints, opened.offset)
    cursor = state_at(reader, older, opened.offset, on_progress)
    fold = cursor.fold
    if (fold.mark.offset, fold.mark.check) != (opened.offset, opened.check):
        raise StateFileRefused(
            f"{file.path}: another record stands at offset {opened.offset} of this log, which was cut since"
        )
    ours = [*checkpoint_facts(checkpoint_records(fold, opened.log_id))][1:-1]
    theirs = dict(file.closed.digests)
    document = {
        "mark": f"{LANE}:{opened.offset}",
        "at": Marks(reader).time_text(opened.time),
        "file": str(file.path),
        "digests": [name for name, digest in fold.digests() if theirs.get(name) != digest],
        "parts": [_part(found) for found in differing_parts(ours, file.facts)],
    }
    return {**document, "log_agrees": _owner_agrees(reader, cursor)}


def _owner_agrees(reader: LogReader, cursor: FoldCursor) -> bool | None:
    """Whether the owner's ticks agree with what the log folds to; None where none says it."""
    agreement, end = cursor.agreement, reader.end_offset()
    last = min(end - 1, cursor.fold.mark.offset + LOOK_RECORDS)
    while not (agreement.agreed or agreement.breaks) and cursor.stopped is None:
        if cursor.fold.mark.offset >= last:
            return None
        cursor.walk(reader, min(last, cursor.fold.mark.offset + _LOOK_STEP))
    if cursor.stopped is not None and not agreement.breaks and not agreement.agreed:
        return None
    return not agreement.breaks


def _part(found: PartDifference) -> dict[str, Any]:
    part = PARTS[found.kind]
    log, file = found.pair
    known = file if log is None else log
    assert known is not None
    fields: tuple[str, ...] = found.kind._fields
    shown = fields[part.names :]
    return {
        "part": part.word,
        "kind": found.kind.__name__,
        "changed": found.changed,
        "only_log": found.only_first,
        "only_file": found.only_second,
        "first": {
            "found_in": "file" if log is None else "log" if file is None else "both",
            "name": {name: _shown(name, known) for name in fields[: part.names]},
            "fields": {
                name: [None if fact is None else _shown(name, fact) for fact in (log, file)]
                for name in shown
                if log is None or file is None or getattr(log, name) != getattr(file, name)
            },
        },
    }


def _shown(name: str, fact: Fact) -> Any:
    return _NOT_SHOWN if name in _HIDDEN else plain(getattr(fact, name), name)


def print_comparison(found: dict[str, Any], console: Console) -> None:
    """The terminal face of the document."""
    parts, digests = found["parts"], found["digests"]
    say(console, bold=f"state at {found['at']}", after=f", mark {found['mark']}, against {found['file']}")
    if not parts and not digests:
        say(console, "the log folds to the same state")
    elif not parts:
        names = ", ".join(digests)
        say(console, f"all that is held is the same; the file's digests of {names} do not fit what it holds")
    else:
        words = f"digests of {', '.join(digests)} differ" if digests else "all digests are the same"
        count = "1 part differs" if len(parts) == 1 else f"{len(parts)} parts differ"
        say(console, f"{count}, {words}")
    for part in parts:
        counts = (
            (part["changed"], "told otherwise"),
            (part["only_log"], "in the log alone"),
            (part["only_file"], "in the file alone"),
        )
        say(
            console,
            bold=part["part"],
            after=f": {', '.join(f'{n} {words}' for n, words in counts if n)}; the first:",
        )
        _print_first(part["first"], console)
    if found["log_agrees"] is None:
        say(console, "note: no tick of an owner says whether what the log folds to is the owner's state")
    elif not found["log_agrees"]:
        say(
            console,
            "warning: what the log folds to is not the owner's state either: see `picklog replay verify`,"
            " and move the checkpoint aside that it begins with",
        )


def _print_first(first: dict[str, Any], console: Console) -> None:
    name = ", ".join(f"{field} {value}" for field, value in first["name"].items())
    where = {"log": "in the log alone", "file": "in the file alone", "both": "in both"}[first["found_in"]]
    say(console, f"  - {name + ', ' if name else ''}{where}")
    for field, (log, file) in first["fields"].items():
        say(console, f"      {field}: {_cut(log)} in the log, {_cut(file)} in the file")


def _cut(value: object) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= _CHARACTERS_SHOWN else text[: _CHARACTERS_SHOWN - 3] + "..."
