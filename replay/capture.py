"""A window of a log as one file: which records it needs, and how they are written.

A pick was made on a state that is older than its record. So a capture begins at the first
as-of of its picks: the state of that offset is its *base*, a checkpoint; the records behind
it follow, those before the window included. A window that begins where the log begins needs
no base. Records are copied byte for byte at their own offsets, unless a redaction rewrites them.

The record that condemns another stands behind it: where one behind the window points into
it, the window is made to reach to it, since without it no fold would get through.

Nothing here knows files: bytes are the writer's (`app.capture_file`).

Sources: architecture 7.6; requirement rows EVS-12, EVS-18, EVS-19.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from projections.checkpoint import checkpoint_records
from projections.events.codec import RecordRefused, decode_record, owner_stamp
from projections.events.control import ConfigAdopted, FoldModeAdopted, RecordCondemned
from projections.events.held import SettingsHeld
from projections.events.kinds import KIND_NEWEST, SCHEMA, Kind
from projections.events.picks import PickMade
from projections.events.ports import CheckpointStore, LogReader
from projections.fold_modes import wanted_modes
from replay.condemned import condemned_of
from replay.fold_cursor import cursor_at, usable_checkpoints
from replay.log_walk import batches_of, kind_byte, record_at, records_of
from replay.setting_words import pick_document

CAPTURE_FORMAT = 1
Progress = Callable[[int], None]


class CaptureRefused(ValueError):
    """What was asked for cannot be captured; says why and what to ask for."""


class CaptureWriter(Protocol):
    """Where a capture goes. Whoever raises or abandons leaves nothing behind."""

    def base(self, log_id: bytes, time: int, records: Iterable[bytes]) -> None:
        """The checkpoint that the capture begins with; comes first, or not at all."""

    def records(self, first_offset: int, records: Sequence[bytes]) -> None:
        """Records at first_offset, first_offset + 1, ...; offsets ascend from call to call."""

    def finish(self, manifest: dict[str, Any]) -> None:
        """The rest of the manifest, as known to whoever captures; ends the file."""


class Rewriter(Protocol):
    """Changes records on their way into a capture (see `replay.redaction`)."""

    log_id: bytes

    def base(self, records: Iterable[bytes]) -> Iterable[bytes]:
        """The base with what it must not hold taken away."""

    def record(self, offset: int, data: bytes) -> bytes:
        """One record, likewise."""


class Plan(NamedTuple):
    """What a capture will hold.

    base: offset whose state it begins with, -1 for a log's very beginning. start, stop: the
    window, whose picks can be asked again. kinds: records by kind, lead-in included.
    first_time, last_time: log time of the first and last owner record of the window, None
    without any. settings: versions that its picks name, or that are in force. moved: what of
    the window was changed, in words.
    """

    base: int
    start: int
    stop: int
    records: int
    record_bytes: int
    picks: int
    kinds: dict[str, int]
    first_time: int | None
    last_time: int | None
    condemned: frozenset[int]
    moved: tuple[str, ...]

    @property
    def first_offset(self) -> int:
        """Of the first record in the capture."""
        return self.base + 1


class _Skim:
    """Counts of a stretch of records, and the oldest as-of that its picks name."""

    def __init__(self) -> None:
        self.records = self.record_bytes = self.picks = 0
        self.kinds: Counter[int] = Counter()
        self.as_of: int | None = None
        self.first_time: int | None = None
        self.last_time: int | None = None

    def walk(self, reader: LogReader, start: int, stop: int, on_progress: Progress | None) -> None:
        picks = int(Kind.PICK_MADE)
        for batch in batches_of(reader, start, stop):
            kinds = [data[3] or data[5] for data in batch.records]  # as kind_byte, without its call
            self.kinds.update(kinds)
            self.records += len(kinds)
            self.record_bytes += sum(map(len, batch.records))
            self._times(batch.records)
            if picks in kinds:
                for place, kind in enumerate(kinds):
                    if kind == picks:
                        self._pick(batch.first_offset + place, batch.records[place])
            if on_progress is not None:
                on_progress(batch.first_offset)

    def _pick(self, offset: int, data: bytes) -> None:
        try:
            fact = decode_record(offset, data).fact
        except RecordRefused:
            return
        if isinstance(fact, PickMade):
            self.picks += 1
            self.as_of = fact.as_of if self.as_of is None else min(self.as_of, fact.as_of)

    def _times(self, records: Sequence[bytes]) -> None:
        if self.first_time is None:
            self.first_time = next((t for t in map(owner_stamp, records) if t is not None), None)
        newest = next((t for t in map(owner_stamp, reversed(records)) if t is not None), None)
        self.last_time = newest if newest is not None else self.last_time


def plan_capture(
    reader: LogReader,
    checkpoints: CheckpointStore | None,
    start: int,
    stop: int,
    on_progress: Progress | None = None,
) -> Plan:
    """What a capture of the window [start, stop) needs. Reads the window once.

    Raises CaptureRefused, and what the reader raises.
    """
    first, end = reader.first_offset(), reader.end_offset()
    start, stop = max(start, first), min(stop, end)
    if start >= stop:
        raise CaptureRefused(f"no record between offsets {start} and {stop}: the log holds {first} to {end}")
    moved: list[str] = []
    stop, condemned = _with_condemnations(reader, checkpoints, start, stop, moved)
    window = _Skim()
    window.walk(reader, start, stop, on_progress)
    lowest = start - 1 if window.as_of is None else min(start - 1, window.as_of)
    base = _base_of(reader, checkpoints, max(lowest, -1), moved)
    if base >= start:
        start = base + 1
        window = _Skim()
        window.walk(reader, start, stop, on_progress)
    lead_in = _Skim()
    lead_in.walk(reader, base + 1, start, on_progress)
    if window.records == 0:
        raise CaptureRefused(f"the log keeps no state from before offset {stop}: name a later window")
    kinds = window.kinds + lead_in.kinds
    known = {int(kind): kind.name.lower() for kind in Kind}
    return Plan(
        base,
        start,
        stop,
        window.records + lead_in.records,
        window.record_bytes + lead_in.record_bytes,
        window.picks,
        {known.get(kind, str(kind)): kinds[kind] for kind in sorted(kinds)},
        window.first_time,
        window.last_time,
        condemned,
        tuple(moved),
    )


class Written(NamedTuple):
    """What the records of a capture hold.

    settings: oldest first. fold_modes: numbers of reducers' behaviours that are in force at its
    beginning or adopted in it, ascending.
    """

    settings: list[dict[str, Any]]
    fold_modes: list[int]


def write_capture(
    reader: LogReader,
    checkpoints: CheckpointStore | None,
    plan: Plan,
    writer: CaptureWriter,
    rewriter: Rewriter | None = None,
    on_progress: Progress | None = None,
) -> Written:
    """Write base and records of a plan.

    The writer is left open for its manifest. Raises what reader, checkpoints and writer raise.
    """
    settings: dict[int, dict[str, Any]] = {}
    modes: set[int] = set()
    if plan.base >= 0:
        cursor = cursor_at(reader, checkpoints, plan.base, plan.condemned)
        cursor.walk(reader, plan.base, on_progress)
        if cursor.stopped is not None:
            raise CaptureRefused(f"{cursor.stopped}: name a window behind that offset")
        log_id = reader.log_id if rewriter is None else rewriter.log_id
        modes.update(cursor.fold.state.intake.fold_mode)
        held: Iterable[bytes] = checkpoint_records(cursor.fold, log_id)
        held = held if rewriter is None else rewriter.base(held)
        writer.base(log_id, cursor.fold.mark.time, _noting(held, settings))
    noted = (int(Kind.CONFIG_ADOPTED), int(Kind.FOLD_MODE_ADOPTED))
    due = sum(plan.kinds.get(Kind(kind).name.lower(), 0) for kind in noted)
    for batch in batches_of(reader, plan.first_offset, plan.stop):
        records: Sequence[bytes] = batch.records
        if rewriter is not None:
            rewrite = rewriter.record
            records = [rewrite(offset, data) for offset, data in enumerate(records, batch.first_offset)]
        if due:
            for data in records:
                if kind_byte(data) in noted:
                    _note(data, settings, modes)
                    due -= 1
        writer.records(batch.first_offset, records)
        if on_progress is not None:
            on_progress(batch.first_offset)
    return Written([settings[version] for version in sorted(settings)], sorted(modes))


def manifest_of(
    plan: Plan,
    *,
    log_id: bytes,
    written: Written,
    origin: dict[str, Any],
    product: str,
    written_at: str,
    times: tuple[str | None, str | None],
    is_redacted: bool,
) -> dict[str, Any]:
    """What a capture says of itself, but for what its writer adds (its parts and their chain).

    times: of the first and the last record, as people read them. origin: the log it is of,
    with the chain heads around the records. Keys may be added.
    """
    return {
        "format": CAPTURE_FORMAT,
        "product": product,
        "written_at": written_at,
        "schema": SCHEMA,
        "kinds": KIND_NEWEST,
        "fold_modes": written.fold_modes,
        "redacted": is_redacted,
        "log_id": log_id.hex(),
        "origin": origin,
        "window": {
            "from": plan.start,
            "to": plan.stop,
            "from_at": times[0],
            "to_at": times[1],
            "from_log_time": plan.first_time,
            "to_log_time": plan.last_time,
        },
        "base": None if plan.base < 0 else {"offset": plan.base},
        "first_offset": plan.first_offset,
        "end_offset": plan.stop,
        "records": plan.records,
        "record_bytes": plan.record_bytes,
        "picks": plan.picks,
        "kinds_held": plan.kinds,
        "settings": written.settings,
        "artifacts": [],  # checksums of tokenizers and templates; picks by load need none
    }


def _with_condemnations(
    reader: LogReader, checkpoints: CheckpointStore | None, start: int, stop: int, moved: list[str]
) -> tuple[int, frozenset[int]]:
    """The window's end, moved behind condemnations of its own records, and all that are condemned."""
    condemned = condemned_of(reader, checkpoints, start)
    due = {offset for offset in condemned if start <= offset < stop}
    if not due:
        return stop, condemned
    for offset, data in records_of(reader, start):
        if kind_byte(data) == Kind.RECORD_CONDEMNED:
            record = record_at(offset, data)
            due.discard(record.fact.offset if record and isinstance(record.fact, RecordCondemned) else -1)
        if not due:
            if offset >= stop:
                moved.append(f"it ends at {offset + 1}, behind the record that condemns one of its own")
            return max(stop, offset + 1), condemned
    return stop, condemned  # a checkpoint holds what condemned them; no record does any more


def _base_of(reader: LogReader, checkpoints: CheckpointStore | None, lowest: int, moved: list[str]) -> int:
    """Offset whose state the capture begins with, -1 where the log is kept from its beginning."""
    first = reader.first_offset()
    if first == 0 and lowest < 0:
        return -1
    if first == 0 or usable_checkpoints(reader, checkpoints, lowest):
        return lowest
    later = usable_checkpoints(reader, checkpoints, reader.end_offset())
    if not later:
        raise CaptureRefused(
            f"the log begins at offset {first} and no checkpoint holds the state before it: "
            "nothing in it can be asked again"
        )
    moved.append(f"it begins at {later[0].offset + 1}: no state from before is kept")
    return later[0].offset


def _noting(held: Iterable[bytes], settings: dict[int, dict[str, Any]]) -> Iterable[bytes]:
    """The records of a base, with its settings noted on the way."""
    kind = int(Kind.SETTINGS_HELD)
    for data in held:
        if kind_byte(data) == kind:
            _note(data, settings, set())
        yield data


def _note(data: bytes, settings: dict[int, dict[str, Any]], modes: set[int]) -> None:
    """What a record says of settings, and of modes that are in force from it on."""
    try:
        fact: Any = decode_record(0, data).fact
    except RecordRefused:
        return
    if isinstance(fact, FoldModeAdopted):
        modes.update(fact.flags)
    elif isinstance(fact, ConfigAdopted | SettingsHeld):
        settings[fact.version] = {
            "version": fact.version,
            "digest": fact.digest.hex(),
            "proposed_by": fact.proposed_by,
            "pick": pick_document(fact.pick),
            "fold_modes": sorted(wanted_modes(fact.pick)),
        }
