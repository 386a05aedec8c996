"""Block events of an engine that is listened to without a relay.

Its messages are numbered, its events are not; `EngineReader` gives the events their ids, and this
stream tells it when something was missed: a hole in the numbers, a message that could not be
read. A number that goes back is another engine process at the same address (B-066): the
connection is numbered anew, and all that the process before told is cleared with it.

An engine that names no worker is bound to one by `EngineBindings`, which may change its mind while
a connection stands. Nothing passes from one worker to the next: that the old one's connection has
ended is told, so that the fold forgets its blocks, then a connection of the new one begins. The same
goes before the first connection of this process, as nobody knows here what an earlier one was bound
to. While there is no worker, messages are counted `identity_mismatch` and dropped.

No frame of an engine is kept: its grammar holds token ids (decision 12).

Sources: decisions 12, 17; wire contract 5.6; field reports B-065, B-066, B-068.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from ingest.subscriptions.engine_bindings import EngineBindings
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
    """See the module's text, and MessageStream. bindings: None where the source names its worker."""

    __slots__ = (
        "_bindings", "_has_warned", "_host", "_is_bound_anew", "_is_connected", "_queue", "_reader", "_run",
        "_source", "_topic", "_worker",
    )  # fmt: skip

    def __init__(
        self, source: EngineSource, host: StreamHost, bindings: EngineBindings | None = None
    ) -> None:
        self._bindings = bindings if source.instance_id is None else None
        self._source = source
        self._worker = source.instance_id
        self._is_bound_anew = self._bindings is not None  # the log has not been told by this stream
        self._is_connected = False
        self._host = host
        self._topic = source.topic.encode()
        self._reader = EngineReader(source)
        self._run = NumberRun()
        self._queue = BatchQueue(host)
        self._has_warned = False

    def begin(self) -> None:
        """See MessageStream."""
        self._is_connected = True
        if self._bindings is not None:
            worker = self._bindings.connected(self._source, self._host.peer, self._bound)
            if self._is_bound_anew or worker != self._worker:
                self._rebind(worker)
                return
        self._begin_anew()

    def renumbered(self) -> None:
        """See MessageStream. The ids that were given so far are nobody's: they begin anew, as for a gap."""
        self._begin_anew()

    def receive(self, messages: list[Message]) -> None:
        """See MessageStream."""
        if self._worker is None:
            self._host.count(FrameResult.IDENTITY_MISMATCH, len(messages))
            return
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
        self._is_connected = False
        self._queue.forget()

    def _bound(self, worker: int | None) -> None:
        """The engine belongs to another worker, or to none; without a connection `begin` will ask."""
        if self._is_connected and worker != self._worker:
            self._queue.drop()
            self._rebind(worker)

    def _rebind(self, worker: int | None) -> None:
        self._worker, self._is_bound_anew = worker, False
        self._host.renew(Reason.REBOUND, is_end=True)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._run = NumberRun()
        self._reader.begin(self._host.connection, self._worker)

    def _take(self, sequence: int, batch: bytes) -> None:
        host, run = self._host, self._run
        if run.is_repeat(sequence):
            host.renew(Reason.RESTARTED)
            self._begin_anew()
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


def engine_plan(source: EngineSource, bindings: EngineBindings | None = None) -> StreamPlan:
    """How an engine is listened to. Of a long topic its beginning is subscribed, and frames are compared."""
    topic = source.topic.encode()[:SUBSCRIPTION_BYTES_MAX]
    make = partial(EngineStream, source, bindings=bindings)
    return StreamPlan(Family.KV, topic, ENGINE_EVENTS_LIMITS, make)
