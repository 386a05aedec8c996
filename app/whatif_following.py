"""`replay whatif --follow`: each pick of a living log is asked under other settings as it becomes known.

The same questions in the same order as without following, by the same counters, so what is found of
a log that has ended is what one walk over it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.log_places import OpenLog
from app.pick_following import PickFollowing
from app.read_times import ReadTimes
from replay.alternative import Alternative
from replay.engine import Asked
from replay.whatif import Asking, EachPick, WhatIfs


class WhatIfFollowing:
    """One run, begun by `walk.run`. start: picks whose record stands at or behind this offset are asked.

    times: of the log, as far as it was read. each: told every pick of the first alternative.
    on_progress: told a line, twice a second.
    """

    def __init__(
        self,
        opened: OpenLog,
        start: int,
        alternatives: Sequence[Alternative],
        times: ReadTimes,
        each: EachPick | None,
        on_progress: Callable[[str], None],
    ) -> None:
        """Raises what the reader raises."""
        self._asking = Asking(alternatives, each)
        self._times = times
        self.walk = PickFollowing(opened, start, self, on_progress)

    def found(self) -> WhatIfs:
        """What was found up to now."""
        return self._asking.found(self.walk.records)

    # -- what the walk calls -----------------------------------------------------------

    def ask(self, asked: Asked) -> None:
        """See Asks."""
        self._asking.ask(asked)

    def note(self, offset: int, fact: object) -> None:
        """See Asks."""

    def read(self, first_offset: int, records: Sequence[bytes]) -> None:
        """See Asks."""
        self._times.read(first_offset, records)

    def words(self) -> str:
        """See Asks."""
        first, not_asked = self._asking.results[0], self._asking.not_asked.total()
        return (
            f"{first.picks} picks: {first.moved} move ({first.share:.1%}) under {first.alternative.name},"
            f" {not_asked} cannot be asked"
        )
