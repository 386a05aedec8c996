"""The log as a router sees it: the view of this moment, log time, a place for picks and ends.

Implements `router.service.PickLog` on a tail and a writer of the same process. A pick or
end is queued and added to the overlay in one step; the overlay forgets what the fold has
come to hold. The replica's id is drawn at process start and stays for its whole life,
whatever writer carries its records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from app.log_tail import monotonic_us
from app.tail import Tail
from projections.events.control import PickSettings
from projections.events.held import SettingsHeld
from projections.events.picks import DispatchEnded, PickMade
from projections.view import Overlay, View

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

    @property
    def replica(self) -> bytes:
        """See PickLog."""
        return self._replica

    def go_on_with(self, tail: Tail) -> None:
        """Pick on another fold from now on. It must hold all that the one before held."""
        self._tail = tail

    def view(self) -> View:
        """See PickLog."""
        self.forget_folded()
        return self._tail.fold.view(self._overlay)

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

    @property
    def overlay_size(self) -> int:
        """Own picks and ends that the fold does not hold yet."""
        return len(self._overlay)
