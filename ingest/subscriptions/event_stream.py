"""Block events of one publisher: every frame is a record, in order; nothing is merged or left out.

While the log sheds, block events are dropped before control records and picks are (decision 15). So
the stream then reads nothing more: what was read waits, at most the messages of one read step, and
the rest stays in the socket, where the publisher's own queue holds it. A publisher that gives up
on us meanwhile leaves a gap in its event ids, which the fold finds.

A repeated number is a repeat of the transport and is left out. Gaps in the numbers are shown by
`covers_from`; what they mean for the blocks, the ids of the events say.

Frames of one read step are not merged into one record: a record keeps the one raw frame that it was
read from.

Sources: decisions 11, 12, 15, 17; requirement rows KVX-02, KVX-03, KVX-19; field report B-071.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from ingest.subscriptions.message_stream import StreamHost, StreamPlan
from ingest.wire.publisher_frames import Refused
from ingest.wire.router_events import KV_EVENTS_TOPIC, KvFrame, decode_kv_message
from ingest.wire.zmtp_frames import Message
from ingest.wire.zmtp_limits import KV_EVENTS_LIMITS
from projections.events.signals import Family, KvBatchReceived
from projections.notices import FrameResult

SHED_PAUSE_S: Final = 0.05  # between two looks whether the log takes block events again


class NumberRun:
    """Numbers of one connection of which each is told.

    `covers_from` joins a run to the one before it over frames that were refused though numbered;
    after a hole it is the number itself.
    """

    __slots__ = ("covers_from", "highest")

    def __init__(self) -> None:
        self.highest: int | None = None
        self.covers_from = 0

    def is_repeat(self, sequence: int) -> bool:
        """Whether this number or a later one came before."""
        return self.highest is not None and sequence <= self.highest

    def take(self, sequence: int) -> int:
        """A frame with a new number is told; where what it covers begins."""
        joins = self.highest is not None and sequence == self.highest + 1
        covers_from = self.covers_from if joins else sequence
        self.highest, self.covers_from = sequence, sequence + 1
        return covers_from

    def fill(self, sequence: int) -> None:
        """A frame that is not told had this number; beyond the next one it is not to be trusted."""
        if self.highest is not None and sequence == self.highest + 1:
            self.highest = sequence


class Waiting(NamedTuple):
    """A batch while the log sheds. frames: as they came, None where they are not to be kept."""

    fact: KvBatchReceived
    frames: Message | None


class BatchQueue:
    """Batches on their way to the log, in order; holds the connection while the log takes none."""

    __slots__ = ("_host", "_timer", "_waiting")

    def __init__(self, host: StreamHost) -> None:
        self._host = host
        self._waiting: list[Waiting] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, fact: KvBatchReceived, frames: Message | None) -> None:
        """Tell a batch, now or when the log takes it."""
        if not self._waiting and not self._host.is_shedding():
            self._tell(fact, frames)
            return
        self._waiting.append(Waiting(fact, frames))
        if self._timer is None:
            self._host.hold()
            self._timer = asyncio.get_running_loop().call_later(SHED_PAUSE_S, self._look)

    def drop(self) -> None:
        """Drop what waits; the connection is held until the log takes batches again, as before."""
        self._waiting.clear()

    def forget(self) -> None:
        """Drop what waits, and let go of the connection's hold."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def finish(self) -> None:
        """Tell what waits if the log takes it, else drop it."""
        waiting = [] if self._host.is_shedding() else [*self._waiting]
        self.forget()
        for fact, frames in waiting:
            self._tell(fact, frames)

    def _look(self) -> None:
        self._timer = None
        if self._host.is_shedding():
            self._timer = asyncio.get_running_loop().call_later(SHED_PAUSE_S, self._look)
            return
        self.finish()
        self._host.release()

    def _tell(self, fact: KvBatchReceived, frames: Message | None) -> None:
        digest = self._host.keep_raw(frames) if frames is not None else None
        self._host.append(fact if digest is None else fact._replace(raw_digest=digest))


class EventStream:
    """See the module's text, and MessageStream."""

    __slots__ = ("_host", "_queue", "_run")

    def __init__(self, host: StreamHost) -> None:
        self._host = host
        self._run = NumberRun()
        self._queue = BatchQueue(host)

    def begin(self) -> None:
        """See MessageStream."""
        self._run = NumberRun()

    def renumbered(self) -> None:
        """See MessageStream. The publisher's own numbers go on."""

    def receive(self, messages: list[Message]) -> None:
        """See MessageStream."""
        publisher_id = self._host.key.publisher_id
        for frames in messages:
            said = decode_kv_message(frames, publisher_id)
            if isinstance(said, Refused):
                self._host.count(said.result)
                if said.sequence is not None:
                    self._run.fill(said.sequence)
            elif self._run.is_repeat(said.sequence):
                self._host.count(FrameResult.DUPLICATE)
            else:
                self._take(said, frames)

    def finish(self) -> None:
        """See MessageStream."""
        self._queue.finish()

    def forget(self) -> None:
        """See MessageStream."""
        self._queue.forget()

    def _take(self, said: KvFrame, frames: Message) -> None:
        host = self._host
        if said.dropped:
            host.count(FrameResult.MALFORMED, said.dropped)
        if not said.heads:
            self._run.fill(said.sequence)
            return
        covers_from = self._run.take(said.sequence)
        fact = KvBatchReceived(
            *host.key,
            host.connection,
            covers_from,
            said.sequence,
            said.heads,
            said.hashes,
            said.published_at_ms,
        )
        self._queue.offer(fact, frames)


EVENT_PLAN: Final = StreamPlan(Family.KV, KV_EVENTS_TOPIC, KV_EVENTS_LIMITS, EventStream)
