"""`replay verify --follow`: each pick of a living log is repeated as soon as its state can be known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.log_places import OpenLog
from app.pick_following import PickFollowing
from app.second_look import SecondLook
from replay.chains import Chains
from replay.engine import Asked
from replay.verify import Difference, Report, Tally, compare


class VerifyFollowing:
    """One run, begun by `walk.run`. start: picks whose record stands at or behind this offset are asked.

    on_difference: told each a few ticks later, when its replica could have named it suspect.
    on_progress: told a line, twice a second.
    """

    def __init__(
        self,
        opened: OpenLog,
        start: int,
        on_difference: Callable[[Difference], None],
        on_progress: Callable[[str], None],
    ) -> None:
        """Raises what the reader raises."""
        self._on_difference = on_difference
        self._tally = Tally()
        self._chains = Chains()
        self._differing = SecondLook()
        self.walk = PickFollowing(opened, start, self, on_progress)

    def report(self) -> Report:
        """What was found up to now; differences that wait are told."""
        walk = self.walk
        self._look_again(everything=True)
        return self._tally.report(walk.cursor, self._chains, walk.records, walk.damage)

    # -- what the walk calls -----------------------------------------------------------

    def ask(self, asked: Asked) -> None:
        """See Asks."""
        found = None if asked.unverifiable is not None else compare(asked)
        if found is None:
            self._tally.count(asked, None)
        else:
            self._differing.hold(asked, found)
            self._look_again()

    def note(self, offset: int, fact: object) -> None:
        """See Asks."""
        self._chains.note(offset, fact)

    def read(self, first_offset: int, records: Sequence[bytes]) -> None:
        """See Asks."""
        self._look_again()

    def words(self) -> str:
        """See Asks."""
        tally = self._tally
        return (
            f"{tally.picks} picks: {tally.equal} equal, {tally.different} different,"
            f" {tally.reasons.total()} unverifiable"
        )

    def _look_again(self, everything: bool = False) -> None:
        for asked, found in self._differing.due(self.walk.machine, everything):
            self._tally.count(asked, found)
            if found is not None:
                self._on_difference(found)
