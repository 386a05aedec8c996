"""What only the owner of a log says: ticks, checkpoints due, replicas gone, settings adopted.

Pure but for the `append` it is given: the same calls with the same times say the same. A
tick carries the owner's own notes at an earlier tick, because nobody knows the state at an
offset that is not assigned yet (decision 10).

Settings may want behaviours of the fold that are not in force (decision 8). The owner adopts
those first, and the settings behind them; it waits with both while a live replica has not
said that it can fold them, and asks again at every tick. What settings in force do not
want any more is given up behind them. What every log wants holds no settings back: it is adopted
as soon as no live replica lacks it, if it can be before the log's first tick, and never given up.

A checkpoint is due after an interval of log time, and sooner on a busy log: a start folds what came behind
the newest one, and that is to take seconds whatever the traffic is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from app.tail import Tail
from projections.bounds import CHECKPOINT_SPACING_US, CHECKPOINT_TAIL_MAX, REPLICA_GONE_US, SECOND_US
from projections.events.control import (
    CheckpointDue,
    ClockTicked,
    ConfigAdopted,
    ConfigProposed,
    FoldModeAdopted,
    PickSettings,
    ReplicaGone,
)
from projections.events.held import SettingsHeld
from projections.fold_modes import WANTED_ALWAYS, wanted_modes

TICK_EVERY_US = 1 * SECOND_US

Append = Callable[[tuple[Any, ...]], object]


class Owner:
    """Speaks for the owner. `checkpoint_every_us`: longest log time between due checkpoints."""

    def __init__(self, tail: Tail, append: Append, *, checkpoint_every_us: int, now_us: int) -> None:
        self.tail = tail
        self._append = append
        self._checkpoint_every_us = checkpoint_every_us
        self._tick_due_at = now_us
        self._checkpoint_said_at: int | None = None  # log time; of the first tick where none was said
        self._counted = tail
        self._folded_before = 0  # of `_counted`, when a checkpoint was last due
        self._listening_since: int | None = None
        self._declared_gone: set[bytes] = set()
        self._adopted: ConfigAdopted | None = None  # by this owner, perhaps not folded yet
        self._waiting: ConfigAdopted | None = None  # until all replicas can fold what it wants
        self._mode: tuple[int, ...] | None = None  # adopted by this owner, perhaps not folded yet

    def on_tick(self, now_us: int, wall_us: int) -> None:
        """Call at least twice a second, once the claim has been read back."""
        if now_us < self._tick_due_at:
            return
        if self._listening_since is None or now_us - self._tick_due_at > TICK_EVERY_US:
            self._listening_since = now_us  # log time leaps here: nobody was silent meanwhile
        self._tick_due_at = now_us + TICK_EVERY_US
        self._adopt_waiting()
        note = self.tail.notes_for_tick()
        if note is None:
            self._append(ClockTicked(wall_us, -1, (), 0, 0))
        else:
            self._append(ClockTicked(wall_us, note.offset, note.digests, note.records, note.check_sum))
        stamp = self.tail.fold.state.intake.stamp
        self._say_due(stamp)
        has_listened = now_us - self._listening_since >= REPLICA_GONE_US
        if has_listened and not self.tail.is_log_away(now_us):
            self._declare_gone(stamp)

    def checkpoint_now(self, cause: str) -> None:
        """Ask the follower for the state of this moment."""
        self._append(CheckpointDue(cause))

    def adopt(self, proposed_by: str, digest: bytes, settings: str, pick: PickSettings, enabled: bool) -> int:
        """Adopt settings; the version under which they are in force once this is folded.

        Nothing is written when the newest adopted settings are the same. Settings that wait give
        way to these.
        """
        newest = self._newest()
        for known in (newest, self._waiting):
            if known is not None and (known.digest, known.pick, known.enabled) == (digest, pick, enabled):
                if known is newest:
                    self._waiting = None
                return known.version
        version = (newest.version if newest is not None else 0) + 1
        self._waiting = ConfigAdopted(version, proposed_by, digest, settings, pick, enabled)
        self._adopt_waiting()
        return version

    def held_back_by(self) -> list[str]:
        """Names of live replicas that cannot fold what waiting settings want."""
        return self._lacking(self._missing())

    def on_proposed(self, fact: ConfigProposed, enabled: bool) -> int:
        """A replica's proposal was read from the log."""
        return self.adopt(fact.replica.hex(), fact.digest, fact.settings, fact.pick, enabled)

    def _say_due(self, stamp: int) -> None:
        if self._counted is not self.tail:  # a new fold: it counts from the checkpoint that it began with
            self._counted, self._folded_before = self.tail, 0
        if self._checkpoint_said_at is None:
            self._checkpoint_said_at = stamp
        waited_us, folded = stamp - self._checkpoint_said_at, self.tail.folded
        if waited_us >= self._checkpoint_every_us:
            cause = "time"
        elif waited_us >= CHECKPOINT_SPACING_US and folded - self._folded_before >= CHECKPOINT_TAIL_MAX:
            cause = "records"
        else:
            return
        self._checkpoint_said_at, self._folded_before = stamp, folded
        self._append(CheckpointDue(cause))

    def _newest(self) -> ConfigAdopted | SettingsHeld | None:
        """The newest settings that are adopted, whether that is folded or not."""
        held = self.tail.fold.settings_now
        if held is not None and (self._adopted is None or held.version > self._adopted.version):
            return held
        return self._adopted

    def _wanted(self) -> tuple[int, ...]:
        newest = self._waiting or self._newest()
        return wanted_modes(newest.pick) if newest is not None else self._mode_now()

    def _mode_now(self) -> tuple[int, ...]:
        return self.tail.fold.state.intake.fold_mode if self._mode is None else self._mode

    def _missing(self) -> list[int]:
        return [flag for flag in self._wanted() if flag not in self._mode_now()]

    def _lacking(self, flags: Iterable[int]) -> list[str]:
        """Names of live replicas that cannot fold some of these."""
        return [
            held.label or held.replica.hex()
            for held in self.tail.fold.state.status.replicas()
            if held.gone_at is None
            and held.replica != self.tail.replica
            and any(flag not in held.fold_modes for flag in flags)
        ]

    def _adopt_waiting(self) -> None:
        """Adopt what waits, the fold mode that it wants before it, and less of one behind it."""
        now, wanted = self._mode_now(), self._wanted()
        always = [flag for flag in WANTED_ALWAYS if flag in now or not self._lacking((flag,))]
        is_held_back = bool(self.held_back_by())
        self._adopt_mode({*now, *always, *(() if is_held_back else wanted)})
        if is_held_back:
            return
        if self._waiting is not None:
            self._adopted, self._waiting = self._waiting, None
            self._append(self._adopted)
        self._adopt_mode({*wanted, *always})

    def _adopt_mode(self, flags: set[int]) -> None:
        ascending = tuple(sorted(flags))
        if ascending != self._mode_now():
            self._mode = ascending
            self._append(FoldModeAdopted(ascending))

    def _declare_gone(self, stamp: int) -> None:
        for held in self.tail.fold.state.status.replicas():
            if held.replica == self.tail.replica:
                continue
            if held.gone_at is not None or stamp - held.seen_at < REPLICA_GONE_US:
                self._declared_gone.discard(held.replica)
            elif held.replica not in self._declared_gone:
                self._declared_gone.add(held.replica)
                self._append(ReplicaGone(held.replica, held.seen_at))
