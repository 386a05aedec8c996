"""Numbers of one connection: repeats, gaps, and what is merged into the newest sample of a rank.

A publisher numbers its messages. Each sample that goes to the log covers a run of numbers,
`covers_from..sequence`, which ends with its own: over older samples of its rank that it
replaced, samples of other ranks told before or beside it, and refused frames that stood in
line. So the runs join without a break as long as nothing was missed, and the fold finds a gap
exactly where a number never came (decision 17).

A number at or below the highest is a repeat. A number beyond the next is a hole: whatever
waits from before it is dropped, as the fold would drop it at the next record, and the run
begins anew. A refused frame fills the next place and no other: a broken number in a broken
frame must not turn all later frames into repeats. The first sample of a connection begins a
run; there is nothing before it to miss.

Waiting samples are bounded: RANKS_WAITING_MAX, one a rank. A sample that finds no room was
missed, and shows as a hole. Raw frames wait with them up to RAW_WAITING_BYTES_MAX together;
beyond that a sample goes without.

Sources: decisions 12, 17; requirement rows LOAD-19, STORE-14.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ingest.wire.publisher_frames import Sample
from ingest.wire.zmtp_frames import Message
from projections.bounds import KIB
from projections.notices import FrameResult

RANKS_WAITING_MAX: Final = 256
RAW_WAITING_BYTES_MAX: Final = 64 * KIB


class Covering(NamedTuple):
    """A sample for the log. frames: as they came, None where raw frames are not kept."""

    covers_from: int
    sample: Sample
    frames: Message | None


class Continuity:
    """See the module's text. One instance a connection."""

    __slots__ = ("_covers_from", "_highest", "_raw_bytes", "_waiting")

    def __init__(self) -> None:
        self._highest: int | None = None
        self._covers_from = 0  # of the next sample that is drained
        self._waiting: dict[tuple[int, int], tuple[Sample, Message | None]] = {}  # in order of sequence
        self._raw_bytes = 0

    @property
    def waiting(self) -> int:
        """Samples that `drain` would give."""
        return len(self._waiting)

    def has_room(self, sample: Sample) -> bool:
        """Whether `take` would not miss it for want of room."""
        rank = (sample.worker_id, sample.dp_rank)
        return len(self._waiting) < RANKS_WAITING_MAX or rank in self._waiting

    def take(self, sample: Sample, frames: Message | None = None) -> FrameResult | None:
        """Let a sample wait, in place of an older one of its rank. Says why where it does not."""
        sequence, highest = sample.sequence, self._highest
        if highest is None:
            self._covers_from = sequence
        elif sequence <= highest:
            return FrameResult.DUPLICATE
        elif sequence != highest + 1:
            self._begin_run(sequence)
        self._highest = sequence
        if not self.has_room(sample):
            self._begin_run(sequence + 1)
            return FrameResult.OVER_CAPACITY
        rank = (sample.worker_id, sample.dp_rank)
        older = self._waiting.pop(rank, None)
        if older is not None and older[1] is not None:
            self._raw_bytes -= _bytes_of(older[1])
        if frames is not None:
            size = _bytes_of(frames)
            if self._raw_bytes + size > RAW_WAITING_BYTES_MAX:
                frames = None
            else:
                self._raw_bytes += size
        self._waiting[rank] = (sample, frames)
        return None

    def fill(self, sequence: int) -> None:
        """A refused frame had this number."""
        if self._highest is not None and sequence == self._highest + 1:
            self._highest = sequence

    def drain(self) -> list[Covering]:
        """All that waits, by ascending sequence."""
        drained = []
        covers_from = self._covers_from
        for sample, frames in self._waiting.values():
            drained.append(Covering(covers_from, sample, frames))
            covers_from = sample.sequence + 1
        self._covers_from = covers_from
        self._waiting.clear()
        self._raw_bytes = 0
        return drained

    def _begin_run(self, sequence: int) -> None:
        self._waiting.clear()
        self._raw_bytes = 0
        self._covers_from = sequence


def _bytes_of(frames: Message) -> int:
    return sum(map(len, frames))
