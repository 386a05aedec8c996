"""The log as a router sees it: the view of this moment, log time, a place for picks and ends.

Implements `router.service.PickLog` on a tail and a writer of the same process. A pick or
end is queued and added to the overlay in one step; the overlay forgets what the fold has
come to hold. The replica's id is drawn at process start and stays for its whole life,
whatever writer carries its records.

Where the fold disagreed with the owner's, picks made since both last agreed are named in the log as
suspect (decision 10). A release that does not know that record would read it as nobody's and
disagree from then on; so it is written only while all live processes say that they read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import structlog

from app.log_tail import monotonic_us
from app.tail import StopReason, Tail
from projections.events.control import PickSettings
from projections.events.held import SettingsHeld
from projections.events.kinds import Kind
from projections.events.picks import DispatchEnded, PickMade, PicksDistrusted
from projections.view import Overlay, View

log = structlog.get_logger("picklog")

NO_SETTINGS = SettingsHeld(0, "", b"", "{}", PickSettings("load_based", "", (), (), 0), False, -1, 0)


class AppendFact(Protocol):
    """Queue a fact of this replica. on_done: True once durable, False when shed or lost."""

    def __call__(self, fact: tuple[Any, ...], time: int, on_done: Callable[[bool], None] | None) -> None:
        """Never blocks, never raises."""


class ReplicaLog:
    """A replica's dealings with the log."""

    def __init__(self, replica: bytes, tail: Tail, append: AppendFact) -> None:
        self._replica = replica
        self._append = append
        self._own_seq = 0
        self._overlay = Overlay()
        self._log_time = 0
        self._tail = tail
        self._picks_from = tail.fold.mark.offset  # no as-of of a pick on this fold is older
        self._picked_at = -1  # newest as-of of a pick that does not say itself that it is suspect
        self._owed: PicksDistrusted | None = None

    @property
    def replica(self) -> bytes:
        """See PickLog."""
        return self._replica

    def go_on_with(self, tail: Tail) -> None:
        """Pick on another fold from now on. It must hold all that the one before held."""
        self._tail = tail
        self._picks_from = tail.fold.mark.offset
        self._picked_at = -1
        self._tell_distrusted()
        if self._owed is not None:
            log.error(
                "picks since the last agreed state are not marked: not every process reads that mark yet",
                after=self._owed.after,
                upto=self._owed.upto,
                update=self._unable(),
            )
            self._owed = None

    def distrust(self) -> None:
        """The fold is given up. Where it disagreed: name the picks that were made on it since it last agreed.

        Where not every process is known to read that, it is tried once more by the word of the next fold.
        """
        after = max(self._tail.agreed_offset, self._picks_from - 1, -1)
        if self._tail.stopped is StopReason.DISAGREED and self._picked_at > after:
            self._owed = PicksDistrusted(self._replica, after, self._picked_at)
            self._picked_at = -1
            self._tell_distrusted()

    def view(self) -> View:
        """See PickLog."""
        self.forget_folded()
        return self._tail.fold.view(self._overlay)

    def flags(self) -> tuple[int, ...]:
        """See PickLog."""
        held = self._tail.fold.state.status.replica(self._replica)
        return () if held is None else held.flags

    @property
    def is_nameless(self) -> bool:
        """Whether the log has heard of this replica and was not told, or forgot, who it is."""
        held = self._tail.fold.state.status.replica(self._replica)
        return held is not None and not held.version

    def settings(self) -> SettingsHeld:
        """See PickLog. Before the first adoption: settings that serve nothing."""
        return self._tail.fold.settings_now or NO_SETTINGS

    def log_time(self) -> tuple[int, int]:
        """See PickLog."""
        self._log_time = max(self._log_time, self._tail.log_time(monotonic_us()))
        return self._log_time, self._tail.lag_us

    def next_own_seq(self) -> int:
        """See PickLog."""
        self._own_seq += 1
        return self._own_seq

    def append_pick(self, fact: PickMade, on_done: Callable[[bool], None]) -> None:
        """See PickLog."""
        self._overlay.add_pick(fact)
        if not fact.suspect:
            self._picked_at = fact.as_of
        self._append(fact, fact.question.asked_at, on_done)

    def append_end(self, fact: DispatchEnded) -> None:
        """See PickLog."""
        self._overlay.add_end(fact)
        self._append(fact, fact.ended_at, None)

    def is_away(self) -> bool:
        """See PickLog."""
        return self._tail.is_log_away(monotonic_us())

    def is_suspect(self) -> bool:
        """See PickLog."""
        return self._tail.is_suspect()

    def forget_folded(self) -> None:
        """Drop from the overlay what the fold holds by now."""
        held = self._tail.fold.state.status.replica(self._replica)
        if held is not None:
            self._overlay.folded(held.own_seq)

    def _tell_distrusted(self) -> None:
        if self._owed is not None and not self._unable():
            log.warning(
                "picks since the last agreed state are suspect",
                after=self._owed.after,
                upto=self._owed.upto,
            )
            self._append(self._owed, self.log_time()[0], None)
            self._owed = None

    def _unable(self) -> tuple[str, ...]:
        return self._tail.fold.state.status.unable_to_read(Kind.PICKS_DISTRUSTED)

    @property
    def overlay_size(self) -> int:
        """Own picks and ends that the fold does not hold yet."""
        return len(self._overlay)
