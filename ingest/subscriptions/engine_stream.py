"""Block events of an engine that is listened to without a relay.

Its messages are numbered, its events are not; `EngineReader` gives the events their ids, and this
stream tells it when something was missed: a hole in the numbers, a message that could not be
read. A number that goes back is another engine process at the same address (B-066): the
connection is numbered anew, and all that the process before told is cleared with it.

No frame of an engine is kept: its grammar holds token ids (decision 12).

Sources: decisions 12, 17; wire contract 5.6; field reports B-065, B-066, B-068.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from ingest.subscriptions.event_stream import BatchQueue, NumberRun
from ingest.subscriptions.message_stream import StreamHost, StreamPlan
from ingest.subscriptions.reasons import Reason
from ingest.wire.engine_events import EngineReader, EngineSource, open_engine_message
from ingest.wire.publisher_frames import Refused
from ingest.wire.zmtp_frames import Message
from ingest.wire.zmtp_limits import ENGINE_EVENTS_LIMITS, SUBSCRIPTION_BYTES_MAX
from projections.events.signals import Family, KvBatchReceived
from projections.notices import FrameResult, StatusNotice

_PAIRS: Final = "an engine publishes pairs of tokens, of which no block can be named: no prefix credit"


class EngineStream:
    """See the module's text, and MessageStream."""

    __slots__ = ("_has_warned", "_host", "_queue", "_reader", "_run", "_topic")

    def __init__(self, source: EngineSource, host: StreamHost) -> None:
        self._host = host
        self._topic = source.topic.encode()
        self._reader = EngineReader(source)
        self._run = NumberRun()
        self._queue = BatchQueue(host)
        self._has_warned = False

    def begin(self) -> None:
        """See MessageStream."""
        self._run = NumberRun()
        self._reader.begin(self._host.connection)

    def renumbered(self) -> None:
        """See MessageStream. The ids that were given so far are nobody's: they begin anew, as for a gap."""
        self.begin()

    def receive(self, messages: list[Message]) -> None:
        """See MessageStream."""
        for frames in messages:
            opened = open_engine_message(frames, self._topic)
            if isinstance(opened, Refused):
                self._host.count(opened.result)
                self._reader.miss()
                if opened.sequence is not None:
                    self._run.fill(opened.sequence)
            elif opened.sequence == self._run.highest:
                self._host.count(FrameResult.DUPLICATE)
            else:
                self._take(opened.sequence, opened.batch)

    def finish(self) -> None:
        """See MessageStream."""
        self._queue.finish()

    def forget(self) -> None:
        """See MessageStream."""
        self._queue.forget()

    def _take(self, sequence: int, batch: bytes) -> None:
        host, run = self._host, self._run
        if run.is_repeat(sequence):
            host.renew(Reason.RESTARTED)
            self.begin()
            run = self._run
        elif run.highest is not None and sequence != run.highest + 1:
            self._reader.miss()
        said = self._reader.read(batch)
        if said is None:
            host.count(FrameResult.MALFORMED)
            run.fill(sequence)
            return
        if said.malformed:
            host.count(FrameResult.MALFORMED, said.malformed)
        if said.unsupported:
            host.count(FrameResult.UNSUPPORTED, said.unsupported)
        if said.has_pairs and not self._has_warned:
            self._has_warned = True
            host.notice(StatusNotice(_PAIRS, f"{host.key.namespace}/{host.key.publisher_id}", "warning"))
        covers_from = run.take(sequence)
        if said.heads:
            fact = KvBatchReceived(
                *host.key,
                host.connection,
                covers_from,
                sequence,
                said.heads,
                said.hashes,
                said.published_at_ms,
            )
            self._queue.offer(fact, None)
        else:
            run.covers_from = covers_from  # the next batch covers this one


def engine_plan(source: EngineSource) -> StreamPlan:
    """How an engine is listened to. Of a long topic its beginning is subscribed, and frames are compared."""
    topic = source.topic.encode()[:SUBSCRIPTION_BYTES_MAX]
    return StreamPlan(Family.KV, topic, ENGINE_EVENTS_LIMITS, partial(EngineStream, source))
