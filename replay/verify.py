"""Ask every recorded pick again and compare the bytes of its outcome.

Three verdicts. *Equal*: the outcome encodes to the same bytes. *Different*: it does not,
and the first differing field is named. *Unverifiable*: it cannot be asked, with the
reason; never counted as a difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from projections.events.codec import encode_value
from projections.events.picks import Outcome, PickMade
from projections.events.ports import CheckpointStore, LogReader
from replay.engine import Asked, Replay, Unverifiable
from router.picker.pick import pick
from router.picker.rows import CandidateRow, unpack_rows


class Difference(NamedTuple):
    """Where a repeated outcome first leaves the recorded one."""

    offset: int
    pick_id: str
    field: str
    recorded: str
    repeated: str
    recorded_rows: tuple[CandidateRow, ...]
    repeated_rows: tuple[CandidateRow, ...]


class Report(NamedTuple):
    """What `picklog replay verify` prints."""

    picks: int
    equal: int
    different: int
    unverifiable: int
    reasons: dict[Unverifiable, int]
    records: int
    first_difference: Difference | None


def repeat(asked: Asked) -> Outcome:
    """The outcome of asking again. The pick must be verifiable."""
    assert asked.view is not None and asked.settings is not None
    return pick(asked.view, asked.fact.question, asked.settings.pick, asked.flags)


def compare(asked: Asked) -> Difference | None:
    """None when the repeated outcome equals the recorded one byte for byte.

    A picker that raises on a recorded question is a difference too: it did not raise then.
    """
    recorded = asked.fact.outcome
    try:
        repeated = repeat(asked)
    except Exception as problem:  # any failure of a picker is a finding, and the walk goes on
        return _difference(
            asked, "outcome", encode_value(recorded).hex(), f"{type(problem).__name__}: {problem}", ()
        )
    if encode_value(repeated) == encode_value(recorded):
        return None
    field, mine, theirs = _first_field("outcome", recorded, repeated)
    return _difference(asked, field, mine, theirs, _rows(repeated))


def verify(
    reader: LogReader,
    checkpoints: CheckpointStore | None,
    start: int | None = None,
    stop: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Repeat every pick of [start, stop). Raises what the reader raises."""
    replay = Replay(reader, checkpoints, start, stop)
    equal = different = 0
    reasons: Counter[Unverifiable] = Counter()
    first: Difference | None = None
    for asked in replay.asked(on_progress):
        if asked.unverifiable is not None:
            reasons[asked.unverifiable] += 1
            continue
        found = compare(asked)
        if found is None:
            equal += 1
        else:
            different += 1
            first = first if first is not None and first.offset < found.offset else found
    unverifiable = reasons.total()
    records = replay.skimmed.records if replay.skimmed is not None else 0
    return Report(
        equal + different + unverifiable, equal, different, unverifiable, dict(reasons), records, first
    )


def _difference(
    asked: Asked, field: str, recorded: str, repeated: str, repeated_rows: tuple[CandidateRow, ...]
) -> Difference:
    fact: PickMade = asked.fact
    return Difference(
        asked.offset, fact.pick_id.hex(), field, recorded, repeated, _rows(fact.outcome), repeated_rows
    )


def _rows(outcome: Outcome) -> tuple[CandidateRow, ...]:
    return (*unpack_rows(outcome.prefill.rows), *unpack_rows(outcome.decode.rows))


def _first_field(path: str, recorded: Any, repeated: Any) -> tuple[str, str, str]:
    """Path, recorded and repeated text of the first field that differs, depth first."""
    if isinstance(recorded, tuple) and isinstance(repeated, tuple) and hasattr(recorded, "_fields"):
        for name, mine, theirs in zip(recorded._fields, recorded, repeated, strict=True):
            if encode_value((mine,)) != encode_value((theirs,)):
                return _first_field(f"{path}.{name}", mine, theirs)
    if path.endswith(".rows") and isinstance(recorded, bytes) and isinstance(repeated, bytes):
        return _first_row(path, unpack_rows(recorded), unpack_rows(repeated))
    return path, _text(recorded), _text(repeated)


def _first_row(path: str, recorded: list[CandidateRow], repeated: list[CandidateRow]) -> tuple[str, str, str]:
    for position, (mine, theirs) in enumerate(zip(recorded, repeated, strict=False)):
        for name, was, now in zip(CandidateRow._fields, mine, theirs, strict=True):
            if was != now:
                return f"{path}[{position}].{name}", _text(was), _text(now)
    return f"{path}.length", str(len(recorded)), str(len(repeated))


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
