"""What only the owner of a log says: ticks, checkpoints due, replicas gone, settings adopted.

Pure but for the `append` it is given: the same calls with the same times say the same. A
tick carries the owner's own notes at an earlier tick, because nobody knows the state at an
offset that is not assigned yet (decision 10).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.tail import Tail
from projections.bounds import REPLICA_GONE_US, SECOND_US
from projections.events.control import (
    CheckpointDue,
    ClockTicked,
    ConfigAdopted,
    ConfigProposed,
    PickSettings,
    ReplicaGone,
)
from projections.events.held import SettingsHeld

TICK_EVERY_US = 1 * SECOND_US

Append = Callable[[tuple[Any, ...]], object]


class Owner:
    """Speaks for the owner. `checkpoint_every_us`: log time between due checkpoints."""

    def __init__(self, tail: Tail, append: Append, *, checkpoint_every_us: int, now_us: int) -> None:
        self.tail = tail
        self._append = append
        self._checkpoint_every_us = checkpoint_every_us
        self._tick_due_at = now_us
        self._checkpoint_due_at: int | None = None
        self._listening_since: int | None = None
        self._declared_gone: set[bytes] = set()
        self._adopted: ConfigAdopted | None = None  # by this owner, perhaps not folded yet

    def on_tick(self, now_us: int, wall_us: int) -> None:
        """Call at least twice a second, once the claim has been read back."""
        if now_us < self._tick_due_at:
            return
        if self._listening_since is None or now_us - self._tick_due_at > TICK_EVERY_US:
            self._listening_since = now_us  # log time leaps here: nobody was silent meanwhile
        self._tick_due_at = now_us + TICK_EVERY_US
        note = self.tail.notes_for_tick()
        if note is None:
            self._append(ClockTicked(wall_us, -1, (), 0, 0))
        else:
            self._append(ClockTicked(wall_us, note.offset, note.digests, note.records, note.check_sum))
        stamp = self.tail.fold.state.intake.stamp
        if self._checkpoint_due_at is None:
            self._checkpoint_due_at = stamp + self._checkpoint_every_us
        elif stamp >= self._checkpoint_due_at:
            self._checkpoint_due_at = stamp + self._checkpoint_every_us
            self._append(CheckpointDue("time"))
        has_listened = now_us - self._listening_since >= REPLICA_GONE_US
        if has_listened and not self.tail.is_log_away(now_us):
            self._declare_gone(stamp)

    def checkpoint_now(self, cause: str) -> None:
        """Ask the follower for the state of this moment."""
        self._append(CheckpointDue(cause))

    def adopt(self, proposed_by: str, digest: bytes, settings: str, pick: PickSettings, enabled: bool) -> int:
        """Adopt settings; the version under which they are in force once this is folded.

        Nothing is written when the newest adopted settings are the same.
        """
        held = self.tail.fold.settings_now
        newest: ConfigAdopted | SettingsHeld | None = self._adopted or held
        if held is not None and (newest is None or held.version > newest.version):
            newest = held
        if (
            newest is not None
            and newest.digest == digest
            and newest.pick == pick
            and newest.enabled == enabled
        ):
            return newest.version
        version = (newest.version if newest is not None else 0) + 1
        self._adopted = ConfigAdopted(version, proposed_by, digest, settings, pick, enabled)
        self._append(self._adopted)
        return version

    def on_proposed(self, fact: ConfigProposed, enabled: bool) -> int:
        """A replica's proposal was read from the log."""
        return self.adopt(fact.replica.hex(), fact.digest, fact.settings, fact.pick, enabled)

    def _declare_gone(self, stamp: int) -> None:
        for held in self.tail.fold.state.status.replicas():
            if held.replica == self.tail.replica:
                continue
            if held.gone_at is not None or stamp - held.seen_at < REPLICA_GONE_US:
                self._declared_gone.discard(held.replica)
            elif held.replica not in self._declared_gone:
                self._declared_gone.add(held.replica)
                self._append(ReplicaGone(held.replica, held.seen_at))
