"""When the next batch of a writer goes out: what waits for it, and for how long.

Only requests wait for a commit, for that of their pick. While picks are few, each goes out
as soon as the batch before it is durable; while a batch held several, the next ones of an
interval go together. Other facts wait for the interval too. The end of a dispatch keeps
nobody waiting: it goes with what comes next, within PATIENCE_US, so that a request costs
one commit and not two.
"""

from __future__ import annotations

from typing import Any

from projections.events.picks import DispatchEnded, PickMade

PATIENCE_US = 20_000


class Pacing:
    """Group commit of one writer. every_us: the interval, from the beginning of a batch on."""

    def __init__(self, every_us: int) -> None:
        self._every_us = every_us
        self._sent_at = -every_us
        self._wanted_at: int | None = None
        self._picks_crowd = False

    @property
    def due_at(self) -> int:
        """When what waits wants to go; the end of the interval where nothing said when."""
        return self.interval_end if self._wanted_at is None else self._wanted_at

    @property
    def interval_end(self) -> int:
        """When the interval of the newest batch ends."""
        return self._sent_at + self._every_us

    def on_fact(self, now_us: int, fact: tuple[Any, ...]) -> None:
        """A fact waits from now on."""
        if type(fact) is DispatchEnded:
            self._want(now_us + PATIENCE_US)
        elif type(fact) is PickMade and not self._picks_crowd:
            self._want(now_us)
        else:
            self._want(self.interval_end)

    def on_returned(self) -> None:
        """A batch that came to nothing waits again."""
        self._want(self.interval_end)

    def on_batch(self, now_us: int, picks: int, is_rest: bool) -> None:
        """A batch goes out, with so many picks. is_rest: more waits than it could take."""
        self._sent_at = now_us
        self._picks_crowd = picks > 1
        self._wanted_at = now_us if is_rest else None

    def _want(self, at: int) -> None:
        if self._wanted_at is None or at < self._wanted_at:
            self._wanted_at = at
