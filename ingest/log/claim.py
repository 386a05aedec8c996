"""Step machine of ownership: who speaks for the log (decisions 7, 46).

The owner is the pair (writer, epoch) of the winning `LaneOpened`: its epoch is one higher
than the last owner's, and of several such the first offset wins. A claimant appends its
claim and then reads the log up to it; only when it has read itself as the winner may it
append facts. On the embedded log the file lock keeps all other claimants away, so its
claim always wins; the machine does not lean on that.

An owner whose loop stood still for over a second may have been stopped while another one
took over. It sends nothing but a ping and reads the log up to that ping first.

    CLAIMING --own claim read as winner--> OWNER --stood still--> CHECKING --own ping--> OWNER
    any --another winner read--> FENCED (final)
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from ingest.log.log_clock import OwnerSeen, anchor_stamp
from projections.bounds import SECOND_US
from projections.events.control import LaneOpened, Pinged
from projections.events.envelope import Record

STILL_US_MAX = 1 * SECOND_US  # the loop stood still longer than this: check who is the owner

CLAIM_PING_NUMBER = 1 << 62  # numbers of these pings begin here, beyond those of readers


class ClaimState(Enum):
    """See the module's text."""

    CLAIMING = "claiming"
    OWNER = "owner"
    CHECKING = "checking"
    FENCED = "fenced"


class AppendUrgent(NamedTuple):
    """Append this fact at once, with this log time (None: the writer's own)."""

    fact: tuple[Any, ...]
    time: int | None


class Won(NamedTuple):
    """Facts may go out. anchor: log time that the claim was stamped with."""

    epoch: int
    anchor: int


class Hold(NamedTuple):
    """Send nothing but what is urgent; treat all subscriptions as cut: it stood still so long."""

    still_us: int


class Release(NamedTuple):
    """Still the owner."""


class Fenced(NamedTuple):
    """Another pair owns the log: this process appends no fact any more."""

    writer: bytes
    epoch: int


ClaimEffect = AppendUrgent | Won | Hold | Release | Fenced


class Claim:
    """See the module's text. writer: the claimant's id, as its records carry it."""

    def __init__(self, writer: bytes, now_us: int) -> None:
        self.writer = writer
        self.state = ClaimState.CLAIMING
        self.epoch = 0
        self._owner: tuple[bytes, int] | None = None
        self._claimed_epoch = 0
        self._anchor = 0
        self._ticked_at = now_us
        self._pings = 0

    def on_log_read(
        self, last: OwnerSeen | None, wall_us: int, cause: str = "restart", own_time: int | None = None
    ) -> list[ClaimEffect]:
        """The log was read to its end. last: its last owner, None in a new log.

        own_time: log time by the clock of a process that was the owner before. It goes on with
        that clock: the wall is for cold starts, and one that was stepped must move nothing.
        """
        self._owner = None if last is None else (last.writer, last.epoch)
        if own_time is None or last is None:
            self._anchor = anchor_stamp(last, wall_us)
        else:
            self._anchor = max(last.stamp, own_time)
        self._claimed_epoch = 1 if last is None else last.epoch + 1
        previous = b"" if last is None else last.writer
        opened = LaneOpened(self._claimed_epoch, wall_us, previous, "new" if last is None else cause)
        return [AppendUrgent(opened, self._anchor)]

    def on_record(self, record: Record) -> list[ClaimEffect]:
        """A committed record, in order of offsets; those that are no claim or ping do not matter."""
        if self.state is ClaimState.FENCED:
            return []
        fact = record.fact
        if isinstance(fact, LaneOpened):
            return self._on_claim(record.writer, fact.epoch)
        if (
            isinstance(fact, Pinged)
            and self.state is ClaimState.CHECKING
            and record.writer == self.writer
            and fact.number == CLAIM_PING_NUMBER + self._pings
        ):
            self.state = ClaimState.OWNER
            return [Release()]
        return []

    def on_tick(self, now_us: int) -> list[ClaimEffect]:
        """Call several times a second; a long pause between two calls is the sign of having been stopped."""
        still_us, self._ticked_at = now_us - self._ticked_at, now_us
        if still_us <= STILL_US_MAX or self.state not in (ClaimState.OWNER, ClaimState.CHECKING):
            return []
        self.state = ClaimState.CHECKING
        self._pings += 1
        ping = Pinged(self.writer, CLAIM_PING_NUMBER + self._pings, -1)
        return [Hold(still_us), AppendUrgent(ping, None)]

    def _on_claim(self, writer: bytes, epoch: int) -> list[ClaimEffect]:
        newest = 0 if self._owner is None else self._owner[1]
        if epoch != newest + 1:
            return []  # lost against an earlier one, or repeated
        self._owner = (writer, epoch)
        if writer != self.writer:
            self.state = ClaimState.FENCED
            return [Fenced(writer, epoch)]
        self.state, self.epoch = ClaimState.OWNER, epoch
        return [Won(epoch, self._anchor)]
