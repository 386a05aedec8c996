"""Step machine of ownership: who speaks for the log (decisions 7, 45, 46).

The owner is the pair (writer, epoch) of the winning `LaneOpened`: its epoch is one higher
than the last owner's, and of several such the first offset wins. A claimant appends its
claim and then reads the log up to it; only when it has read itself as the winner may it
append facts. On the embedded log the file lock keeps all other claimants away, so its
claim always wins; the machine does not lean on that.

A standby reads all of the log and pings; it claims where nobody speaks any more (`standby`).
One that loses its claim stands by again. One that wins goes on with the last owner's log
time, from the moment at which it read it.

An owner whose loop stood still for over a second may have been stopped while another one
took over. It sends nothing but a ping and reads the log up to that ping first.

    STANDBY --silence--> CLAIMING --another winner read--> STANDBY
    CLAIMING --own claim read as winner--> OWNER --stood still--> CHECKING --own ping--> OWNER
    any other --another winner read--> FENCED (final)
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from ingest.log.log_clock import OwnerSeen, anchor_stamp
from ingest.log.standby import Vigil
from projections.bounds import SECOND_US
from projections.events.control import LaneOpened, Pinged
from projections.events.envelope import Record

STILL_US_MAX = 1 * SECOND_US  # the loop stood still longer than this: check who is the owner

CLAIM_PING_NUMBER = 1 << 62  # numbers of these pings begin here, beyond those of readers
STANDBY_PING_NUMBER = CLAIM_PING_NUMBER + (1 << 61)
TAKEOVER = "takeover"


class ClaimState(Enum):
    """See the module's text."""

    STANDBY = "standby"
    CLAIMING = "claiming"
    OWNER = "owner"
    CHECKING = "checking"
    FENCED = "fenced"


class AppendUrgent(NamedTuple):
    """Append this fact at once, with this log time (None: the writer's own)."""

    fact: tuple[Any, ...]
    time: int | None


class MayClaim(NamedTuple):
    """Nobody speaks for the log. Answer with `on_silence`.

    last: whom this machine heard last; None where it heard nobody: look into the log.
    """

    last: OwnerSeen | None


class Won(NamedTuple):
    """Facts may go out. anchor: log time that the claim was stamped with.

    anchored_at: own time at which it was that late; None for now.
    """

    epoch: int
    anchor: int
    anchored_at: int | None = None


class Lost(NamedTuple):
    """Another pair won the claim of a standby, which stands by again."""

    writer: bytes
    epoch: int


class Hold(NamedTuple):
    """Send nothing but what is urgent; treat all subscriptions as cut: it stood still so long."""

    still_us: int


class Release(NamedTuple):
    """Still the owner."""


class Fenced(NamedTuple):
    """Another pair owns the log: this process appends no fact any more."""

    writer: bytes
    epoch: int


ClaimEffect = AppendUrgent | MayClaim | Won | Lost | Hold | Release | Fenced


class Claim:
    """See the module's text. writer: the claimant's id, as its records carry it.

    stands_by: begin as a standby. replica: in whose name it pings, the writer's own by default;
    a replica that the log knows, or it would look like one that can fold nothing.
    """

    def __init__(
        self, writer: bytes, now_us: int, *, stands_by: bool = False, replica: bytes | None = None
    ) -> None:
        self.writer = writer
        self.state = ClaimState.STANDBY if stands_by else ClaimState.CLAIMING
        self.epoch = 0
        self._stands_by = stands_by
        self._replica = writer if replica is None else replica
        self._vigil = Vigil(now_us)
        self.owner: tuple[bytes, int] | None = None  # as far as this machine knows
        self._stamp = 0  # of the owner's newest record, and when it was read; None: not as it came
        self._heard_at: int | None = None
        self._claimed_epoch = 0
        self._anchor = 0
        self._anchored_at: int | None = None
        self._ticked_at = now_us
        self._pings = 0

    def go_on_from(self, before: Claim) -> None:
        """The same standby under another writer id: what it knows of the owner is still true."""
        self.owner, self._stamp, self._heard_at = before.owner, before._stamp, before._heard_at
        self._vigil.begun_at = before._vigil.begun_at

    @property
    def owner_heard_at(self) -> int | None:
        """Own time at which the owner before was heard last; None where that is not known."""
        return self._heard_at

    def on_log_read(
        self, last: OwnerSeen | None, wall_us: int, cause: str = "restart", own_time: int | None = None
    ) -> list[ClaimEffect]:
        """The log was read to its end. last: its last owner, None in a new log.

        own_time: log time by the clock of a process that was the owner before. It goes on with
        that clock: the wall is for cold starts, and one that was stepped must move nothing.
        """
        self.state = ClaimState.CLAIMING
        self._anchored_at = None
        self.owner = None if last is None else (last.writer, last.epoch)
        if own_time is None or last is None:
            self._anchor = anchor_stamp(last, wall_us)
        else:
            self._anchor = max(last.stamp, own_time)
        self._claimed_epoch = 1 if last is None else last.epoch + 1
        previous = b"" if last is None else last.writer
        opened = LaneOpened(self._claimed_epoch, wall_us, previous, "new" if last is None else cause)
        return [AppendUrgent(opened, self._anchor)]

    def on_silence(self, last: OwnerSeen | None, now_us: int, wall_us: int) -> list[ClaimEffect]:
        """Claim, as `MayClaim` said. last: as it told, or else as the log does; None in a new log.

        The claim takes effect at the moment at which the owner was heard last: what this process
        heard since then is stamped with the time at which it heard it. So is the wall time in it.
        """
        heard_at = self._heard_at
        if last is None or heard_at is None:
            return self.on_log_read(last, wall_us, TAKEOVER)
        effects = self.on_log_read(last, wall_us - (now_us - heard_at), TAKEOVER, own_time=last.stamp)
        self._anchored_at = heard_at
        return effects

    def on_record(self, record: Record, now_us: int = 0) -> list[ClaimEffect]:
        """A committed claim or ping, in order of offsets; other kinds do not matter."""
        if self.state is ClaimState.FENCED:
            return []
        fact = record.fact
        if isinstance(fact, LaneOpened):
            return self._on_claim(record, fact.epoch, now_us)
        if not isinstance(fact, Pinged) or record.writer != self.writer:
            return []
        if self.state is ClaimState.CHECKING and fact.number == CLAIM_PING_NUMBER + self._pings:
            self.state = ClaimState.OWNER
            return [Release()]
        if self.state is ClaimState.STANDBY:
            self._vigil.ping_read(fact.number - STANDBY_PING_NUMBER, now_us)
            return self._look(now_us)
        return []

    def on_owner_record(self, writer: bytes, epoch: int, stamp: int, now_us: int) -> None:
        """A standby reads a committed record of an owner, claims aside. Superseded ones do not matter."""
        known = 0 if self.owner is None else self.owner[1]
        if epoch > known or (writer, epoch) == self.owner:
            self.owner = (writer, epoch)
            self._hear(stamp, now_us)

    def on_tick(self, now_us: int) -> list[ClaimEffect]:
        """Call several times a second; a long pause between two calls is the sign of having been stopped."""
        still_us, self._ticked_at = now_us - self._ticked_at, now_us
        if self.state is ClaimState.STANDBY:
            if still_us > STILL_US_MAX:
                self._vigil.begin_anew(now_us)
            return self._look(now_us)
        if still_us <= STILL_US_MAX or self.state not in (ClaimState.OWNER, ClaimState.CHECKING):
            return []
        self.state = ClaimState.CHECKING
        self._pings += 1
        ping = Pinged(self._replica, CLAIM_PING_NUMBER + self._pings, -1)
        return [Hold(still_us), AppendUrgent(ping, None)]

    def _look(self, now_us: int) -> list[ClaimEffect]:
        """What a standby does by the clock: ping, or claim."""
        effects: list[ClaimEffect] = []
        number = self._vigil.due_ping(now_us)
        if number is not None:
            effects.append(AppendUrgent(Pinged(self._replica, STANDBY_PING_NUMBER + number, -1), None))
        if self._vigil.may_claim(now_us):
            last = None
            if self.owner is not None and self._heard_at is not None:
                last = OwnerSeen(*self.owner, self._stamp, 0, 0)
            effects.append(MayClaim(last))
        return effects

    def _hear(self, stamp: int, now_us: int) -> None:
        """The owner spoke: just now, if this process is in touch with the log.

        A claim says nothing of the log time when it was made, see `on_silence`.
        """
        if stamp > self._stamp:
            self._stamp = stamp
            self._heard_at = now_us if self._vigil.is_in_touch else None
        self._vigil.begin_anew(now_us)

    def _on_claim(self, record: Record, epoch: int, now_us: int) -> list[ClaimEffect]:
        if self.state is ClaimState.STANDBY:
            return self._on_claim_of_others(record, epoch, now_us)
        newest = 0 if self.owner is None else self.owner[1]
        if epoch != newest + 1:
            return []  # lost against an earlier one, or repeated
        writer = record.writer
        self.owner = (writer, epoch)
        if writer == self.writer:
            self.state, self.epoch = ClaimState.OWNER, epoch
            return [Won(epoch, self._anchor, self._anchored_at)]
        if self._stands_by and self.epoch == 0:
            self.state = ClaimState.STANDBY
            self._hear(record.time, now_us)
            return [Lost(writer, epoch)]
        self.state = ClaimState.FENCED
        return [Fenced(writer, epoch)]

    def _on_claim_of_others(self, record: Record, epoch: int, now_us: int) -> list[ClaimEffect]:
        """A standby reads a claim. Which of several won it knows where it knows the owner before."""
        if self.owner is None:
            self._vigil.begin_anew(now_us)
        elif epoch == self.owner[1] + 1:
            self.owner = (record.writer, epoch)
            self._hear(record.time, now_us)
        return []
