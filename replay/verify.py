"""Ask every recorded pick again and compare the bytes of its outcome.

Three verdicts. *Equal*: the outcome encodes to the same bytes. *Different*: it does not,
and the first differing field is named. *Unverifiable*: it cannot be asked, with the
reason; never counted as a difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from projections.events.codec import encode_value
from projections.events.picks import Outcome, PickMade
from projections.events.ports import CheckpointStore, LogCorrupt, LogReader
from replay.agreement import TickBreak
from replay.chains import Chains
from replay.engine import Asked, Part, Replay, Unverifiable
from replay.fold_cursor import FoldCursor
from replay.log_walk import Progress
from router.picker.pick import pick
from router.picker.rows import CandidateRow, unpack_rows


class Tables(NamedTuple):
    """The best candidate rows of both phases, as an outcome keeps them; the winner first."""

    prefill: tuple[CandidateRow, ...] = ()
    decode: tuple[CandidateRow, ...] = ()


class Difference(NamedTuple):
    """Where a repeated outcome first leaves the recorded one."""

    offset: int
    pick_id: str
    field: str
    recorded: str
    repeated: str
    recorded_rows: Tables
    repeated_rows: Tables
    version: str


class Report(NamedTuple):
    """What `picklog replay verify` prints, of one part of a log or of all.

    records: read. by_version: release that made picks -> (picks, different ones), "" where
    the log does not say. chains: own numbers and rotations. breaks: ticks that do not agree,
    ticks: how many do. refused: records that are none of ours, and the offset of the first.
    damage: where reading had to end, None where it did not.
    """

    picks: int
    equal: int
    different: int
    unverifiable: int
    reasons: dict[Unverifiable, int]
    records: int
    first_difference: Difference | None
    by_version: dict[str, tuple[int, int]]
    chains: Chains
    ticks: int
    breaks: tuple[TickBreak, ...]
    refused: int
    first_refused: int | None
    damage: str | None


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
            asked, "outcome", encode_value(recorded).hex(), f"{type(problem).__name__}: {problem}", Tables()
        )
    if encode_value(repeated) == encode_value(recorded):
        return None
    field, mine, theirs = _first_field("outcome", recorded, repeated)
    return _difference(asked, field, mine, theirs, _rows(repeated))


class Tally:
    """What picks came to that were asked one by one.

    equal, different: counted. reasons: of those that could not be asked. first: the difference
    with the lowest offset. versions: as `Report.by_version`.
    """

    def __init__(self) -> None:
        self.equal = self.different = 0
        self.reasons: Counter[Unverifiable] = Counter()
        self.versions: dict[str, tuple[int, int]] = {}
        self.first: Difference | None = None

    @property
    def picks(self) -> int:
        """All of them."""
        return self.equal + self.different + self.reasons.total()

    def ask(self, asked: Asked) -> Difference | None:
        """Repeat one pick and count it; what is different about it, None for any other verdict."""
        found = None if asked.unverifiable is not None else compare(asked)
        self.count(asked, found)
        return found

    def count(self, asked: Asked, found: Difference | None) -> None:
        """Count a pick that was repeated, or that cannot be. found: what is different about it."""
        if asked.unverifiable is not None:
            self.reasons[asked.unverifiable] += 1
            return
        made, differing = self.versions.get(asked.version, (0, 0))
        self.versions[asked.version] = (made + 1, differing + (found is not None))
        if found is None:
            self.equal += 1
            return
        self.different += 1
        self.first = self.first if self.first is not None and self.first.offset < found.offset else found

    def report(
        self, cursor: FoldCursor | None, chains: Chains, records: int, damage: str | None = None
    ) -> Report:
        """The report. cursor: the fold that they were asked on; the rest as in `Report`."""
        return Report(
            picks=self.picks,
            equal=self.equal,
            different=self.different,
            unverifiable=self.reasons.total(),
            reasons=dict(self.reasons),
            records=records,
            first_difference=self.first,
            by_version=self.versions,
            chains=chains,
            ticks=cursor.agreement.agreed if cursor is not None else 0,
            breaks=tuple(cursor.agreement.breaks) if cursor is not None else (),
            refused=cursor.refused if cursor is not None else 0,
            first_refused=cursor.first_refused if cursor is not None else None,
            damage=damage,
        )


def verify(
    reader: LogReader,
    checkpoints: CheckpointStore | None,
    start: int | None = None,
    stop: int | None = None,
    on_progress: Progress | None = None,
    *,
    condemned: frozenset[int] | None = None,
    part: Part | None = None,
) -> Report:
    """Repeat every pick of [start, stop), or of a part.

    Raises OffsetGone as the reader does. Where the log does not check, the report says what
    was found up to there.
    """
    tally = Tally()
    damage: str | None = None
    replay: Replay | None = None
    try:
        replay = Replay(reader, checkpoints, start, stop, condemned=condemned, part=part)
        for asked in replay.asked(on_progress):
            tally.ask(asked)
    except LogCorrupt as problem:
        damage = str(problem)
    if replay is None:
        return tally.report(None, Chains(), 0, damage)
    return tally.report(replay.cursor, replay.scout.chains, replay.records, damage)


def joined(parts: Sequence[Report]) -> Report:
    """The report of a range that was verified in parts, in the order of the log."""
    total = parts[0]
    for part in parts[1:]:
        total.chains.join(part.chains)
        versions = {
            name: (
                total.by_version.get(name, (0, 0))[0] + part.by_version.get(name, (0, 0))[0],
                total.by_version.get(name, (0, 0))[1] + part.by_version.get(name, (0, 0))[1],
            )
            for name in sorted({*total.by_version, *part.by_version})
        }
        firsts = [r.first_difference for r in (total, part) if r.first_difference is not None]
        known = {found.kind for found in total.breaks}
        total = Report(
            picks=total.picks + part.picks,
            equal=total.equal + part.equal,
            different=total.different + part.different,
            unverifiable=total.unverifiable + part.unverifiable,
            reasons=dict(Counter(total.reasons) + Counter(part.reasons)),
            records=total.records + part.records,
            first_difference=min(firsts, key=lambda found: found.offset, default=None),
            by_version=versions,
            chains=total.chains,
            ticks=total.ticks + part.ticks,
            breaks=total.breaks + tuple(found for found in part.breaks if found.kind not in known),
            refused=total.refused + part.refused,
            first_refused=total.first_refused if total.first_refused is not None else part.first_refused,
            damage=total.damage or part.damage,
        )
    return total


def _difference(asked: Asked, field: str, recorded: str, repeated: str, repeated_rows: Tables) -> Difference:
    fact: PickMade = asked.fact
    return Difference(
        asked.offset,
        fact.pick_id.hex(),
        field,
        recorded,
        repeated,
        _rows(fact.outcome),
        repeated_rows,
        asked.version,
    )


def _rows(outcome: Outcome) -> Tables:
    return Tables(tuple(unpack_rows(outcome.prefill.rows)), tuple(unpack_rows(outcome.decode.rows)))


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
