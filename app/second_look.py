"""Differences that wait a moment: their replica may be about to say that it picked on a wrong state.

A replica whose fold disagrees learns it from the owner's notes, which ride in a later tick, and then
names the picks that it has made since it last agreed (`replay.distrusted`). Where a log is followed as it
grows, a pick may be asked before that is read. So a difference is told only when HELD_TICKS ticks were
read behind it, and not at all if its pick was named by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from app.reasking import Reasking
from replay.engine import Asked, Unverifiable
from replay.verify import Difference

HELD_TICKS = 4  # one that differs, the next that carries the owner's note of it, one each for who lags
HELD_MAX = 1_000  # where more differ, the oldest wait no longer

Found = tuple[Asked, Difference | None]


class SecondLook:
    """Differences found by one who asks, in the order in which they were found."""

    def __init__(self) -> None:
        self._held: deque[tuple[Asked, Difference]] = deque()

    def __len__(self) -> int:
        """Differences that wait."""
        return len(self._held)

    def hold(self, asked: Asked, found: Difference) -> None:
        """Take a difference; its view is let go."""
        self._held.append((asked._replace(view=None), found))

    def due(self, machine: Reasking, everything: bool = False) -> Iterator[Found]:
        """Those that need not wait any longer: as a difference, or as a suspect pick that is none.

        machine: what has read the log. everything: nothing is read any more.
        """
        while self._held:
            asked, found = self._held[0]
            is_named = machine.distrusted.names(asked.fact)
            is_late = machine.ticks_behind(asked.offset) >= HELD_TICKS or len(self) > HELD_MAX
            if not (everything or is_named or is_late):
                return
            self._held.popleft()
            if is_named:
                yield asked._replace(unverifiable=Unverifiable.SUSPECT), None
            else:
                yield asked, found
