"""`replay verify --follow`: each pick of a living log is repeated as soon as its state can be known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.log_places import OpenLog
from app.pick_following import PickFollowing
from replay.chains import Chains
from replay.engine import Asked
from replay.verify import Difference, Report, Tally


class VerifyFollowing:
    """One run, begun by `walk.run`. start: picks whose record stands at or behind this offset are asked.

    on_difference: told each at once. on_progress: told a line, twice a second.
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
        self.walk = PickFollowing(opened, start, self, on_progress)

    def report(self) -> Report:
        """What was found up to now."""
        walk = self.walk
        return self._tally.report(walk.cursor, self._chains, walk.records, walk.damage)

    # -- what the walk calls -----------------------------------------------------------

    def ask(self, asked: Asked) -> None:
        """See Asks."""
        found = self._tally.ask(asked)
        if found is not None:
            self._on_difference(found)

    def note(self, offset: int, fact: object) -> None:
        """See Asks."""
        self._chains.note(offset, fact)

    def read(self, first_offset: int, records: Sequence[bytes]) -> None:
        """See Asks."""

    def words(self) -> str:
        """See Asks."""
        tally = self._tally
        return (
            f"{tally.picks} picks: {tally.equal} equal, {tally.different} different,"
            f" {tally.reasons.total()} unverifiable"
        )
