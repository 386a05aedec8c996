"""Two that ask recorded picks again in the follower: the sampling verifier and the shadow.

The *verifier* repeats a sample of live picks under their own settings: whatever differs is
a fault in Picklog itself, counted in `picks_unreproduced_total` and told with the command
that shows it. The *shadow* asks every pick under another configuration and writes a row
beside the real one; it never acts, and being in the follower it cannot delay.

Rows are written in batches through a sink. While the sink is away rows wait, ROWS_MAX of
them; beyond that the asking itself waits, and goes on from the log later.

Sources: decisions 43, 63; requirement rows DYN-12, EVS-06.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import structlog

from app.follower_figures import ShadowResult, Verdict
from app.reasking import Reasking
from app.second_look import SecondLook
from app.version import VERSION
from projections.audit.rows import ShadowRow, VerificationRow
from projections.audit.translation import shadow_row, verification_row
from projections.bounds import SECOND_US
from projections.events.control import PickSettings
from replay.alternative import Alternative, Asker
from replay.engine import Asked, Unverifiable
from replay.verify import Difference, compare

log = structlog.get_logger("picklog.shadow")

VERIFIED_PER_SECOND = 5  # of log time; a pick costs its candidates once more
ROWS_MAX = 20_000


class Figures(Protocol):
    """Who is told, for metrics."""

    def verified(self, verdict: Verdict) -> None:
        """A sampled pick was repeated."""

    def shadowed(self, result: ShadowResult) -> None:
        """The shadow was asked."""


class ShadowSettings(NamedTuple):
    """What the shadow picks by. digest: of its configuration, 16 bytes in hex. source: for the log."""

    pick: PickSettings
    digest: str
    source: str


class Rows:
    """Rows that wait for the sink."""

    def __init__(self) -> None:
        self.shadow: list[ShadowRow] = []
        self.verifications: list[VerificationRow] = []

    def __len__(self) -> int:
        return len(self.shadow) + len(self.verifications)


class RowSink(Protocol):
    """Where rows go. Writing a row twice leaves one."""

    async def mark(self, shadow_config: str) -> int:
        """Newest offset that this shadow has a row of, -1 without any."""

    async def write(self, rows: Rows) -> None:
        """Write all of them or none. Raises SinkAway."""

    async def close(self) -> None:
        """Let go."""


class SinkAway(Exception):
    """Rows cannot be written now; says why."""


class Verifier:
    """Repeats a sample of picks, by log time, so that a rush of picks costs no more than a trickle."""

    def __init__(self, rows: Rows, figures: Figures) -> None:
        self._rows = rows
        self._figures = figures
        self._next_at = 0
        self._differing = SecondLook()

    def ask(self, asked: Asked, machine: Reasking) -> None:
        """A pick that is ready to be asked, on the fold of `machine`."""
        at_us = machine.cursor.fold.state.intake.stamp
        asked_at = asked.fact.question.asked_at
        if asked_at < self._next_at or asked.unverifiable is Unverifiable.TOO_OLD:
            return  # what a fold began behind was for the fold before it
        self._next_at = asked_at + SECOND_US // VERIFIED_PER_SECOND
        if asked.unverifiable is not None:
            self._say(asked, at_us, Verdict.UNVERIFIABLE, asked.unverifiable.name.lower())
            return
        found = compare(asked)
        if found is None:
            self._say(asked, at_us, Verdict.EQUAL, None)
            return
        self._differing.hold(asked, found)

    def look_again(self, machine: Reasking, everything: bool = False) -> None:
        """Tell the differences that need not wait any longer. everything: nothing is read any more."""
        at_us = machine.cursor.fold.state.intake.stamp
        for asked, found in self._differing.due(machine, everything):
            if found is None:
                self._say(asked, at_us, Verdict.UNVERIFIABLE, Unverifiable.SUSPECT.name.lower())
            else:
                self._differs(asked, at_us, found)

    def _differs(self, asked: Asked, at_us: int, found: Difference) -> None:
        field = f"{found.field}: recorded {found.recorded}, repeated {found.repeated}"
        self._say(asked, at_us, Verdict.DIFFERENT, field)
        log.error(
            "a pick could not be reproduced",
            pick=found.pick_id,
            offset=asked.offset,
            field=found.field,
            repeat=f"picklog replay explain {asked.offset}",
        )

    def _say(self, asked: Asked, at_us: int, verdict: Verdict, difference: str | None) -> None:
        self._figures.verified(verdict)
        row = verification_row(asked.offset, asked.fact, at_us, verdict.value, difference, VERSION)
        self._rows.verifications.append(row)


class Shadow:
    """Asks every pick under other settings. done: newest offset whose row is written already."""

    def __init__(self, settings: ShadowSettings, rows: Rows, figures: Figures, done: int = -1) -> None:
        self.settings = settings
        self._rows = rows
        self._figures = figures
        self._done = done
        self._asker = Asker(Alternative("shadow", settings.pick))

    def ask(self, asked: Asked) -> None:
        """A pick, askable or not."""
        settings, fact = self.settings, asked.fact
        picker = settings.pick.picker
        if asked.unverifiable is not None:
            self._asker.pass_by(fact)
            reason = asked.unverifiable.name.lower()
            row = shadow_row(asked.offset, fact, settings.digest, picker, None, reason)
        else:
            try:
                again = self._asker.ask(asked)
            except Exception as problem:  # a picker that raises costs its row, not the follower
                log.error("the shadow's picker failed", offset=asked.offset, cause=repr(problem))
                row = shadow_row(asked.offset, fact, settings.digest, picker, None, "failed")
            else:
                row = shadow_row(asked.offset, fact, settings.digest, picker, again.outcome)
        if asked.offset <= self._done:
            return
        self._figures.shadowed(
            ShadowResult.UNVERIFIABLE
            if row.moved is None
            else ShadowResult.MOVED
            if row.moved
            else ShadowResult.SAME
        )
        self._rows.shadow.append(row)
