"""Load samples of one publisher: the newest of each rank, merged so that no publisher floods the log.

A lone sample is told at once. After n of them the next are told no sooner than n quarters of a
millisecond later, at least 2 ms, and merged until then: at most some 4,000 records a second and
publisher, whatever it sends. While the log sheds they are merged for longer. A burst over more
ranks than may wait is told ahead of its time, up to DEBT_S.

Sources: decisions 15, 17; requirement rows LOAD-19, STORE-14; field report B-071.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ingest.subscriptions.continuity import Continuity
from ingest.subscriptions.message_stream import StreamHost, StreamPlan
from ingest.wire.publisher_frames import KV_METRICS_TOPIC, Refused, decode_sample_message
from ingest.wire.zmtp_frames import Message
from ingest.wire.zmtp_limits import KV_METRICS_LIMITS
from projections.events.signals import Family, SampleReceived
from projections.notices import FrameResult

MERGE_S_MIN: Final = 0.002
RECORD_S: Final = 0.00025  # time that one record of a publisher must be worth
DEBT_S: Final = 0.25
SHED_PAUSE_S: Final = 0.05  # between two looks whether the log takes samples again


class SampleStream:
    """See the module's text, and MessageStream."""

    __slots__ = ("_continuity", "_host", "_quiet_until_s", "_timer")

    def __init__(self, host: StreamHost) -> None:
        self._host = host
        self._continuity = Continuity()
        self._quiet_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Samples that were not told yet."""
        return self._continuity.waiting

    def begin(self) -> None:
        """See MessageStream."""
        self._continuity = Continuity()

    def renumbered(self) -> None:
        """See MessageStream. The publisher's own numbers go on."""

    def receive(self, messages: list[Message]) -> None:
        """See MessageStream."""
        host, continuity = self._host, self._continuity
        publisher_id = host.key.publisher_id
        for frames in messages:
            said = decode_sample_message(frames, publisher_id)
            result: FrameResult | None
            if isinstance(said, Refused):
                result = said.result
                if said.sequence is not None:
                    continuity.fill(said.sequence)
            else:
                if not continuity.has_room(said):
                    self._tell_ahead()
                result = continuity.take(said, frames if host.keeps_raw else None)
            if result is not None:
                host.count(result)
        if continuity.waiting and self._timer is None:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._quiet_until_s:
                self._tell()
            else:
                self._timer = loop.call_at(self._quiet_until_s, self._tell)

    def finish(self) -> None:
        """See MessageStream. What waits came before the end."""
        if self._continuity.waiting and not self._host.is_shedding():
            self._tell()
        self.forget()

    def forget(self) -> None:
        """See MessageStream."""
        self._continuity = Continuity()
        self._stop_timer()

    def _tell_ahead(self) -> None:
        """Room is short: tell what waits now, unless that was done too often already."""
        loop = asyncio.get_running_loop()
        if self._quiet_until_s - loop.time() < DEBT_S and not self._host.is_shedding():
            self._tell()

    def _tell(self) -> None:
        """Tell all that waits, and be quiet for what that was worth."""
        self._stop_timer()
        host = self._host
        loop = asyncio.get_running_loop()
        if host.is_shedding():
            self._timer = loop.call_later(SHED_PAUSE_S, self._tell)
            return
        namespace, publisher_id = host.key
        drained = self._continuity.drain()
        for covers_from, sample, frames in drained:
            digest = host.keep_raw(frames) if frames else None
            host.append(
                SampleReceived(
                    namespace,
                    publisher_id,
                    host.connection,
                    covers_from,
                    sample.sequence,
                    sample.worker_id,
                    sample.dp_rank,
                    sample.active_decode_blocks,
                    sample.active_prefill_tokens,
                    sample.kv_used_blocks,
                    sample.published_at_ms,
                    digest,
                )
            )
        begin_s = max(loop.time(), self._quiet_until_s)
        self._quiet_until_s = begin_s + max(MERGE_S_MIN, RECORD_S * len(drained))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


SAMPLE_PLAN: Final = StreamPlan(Family.LOAD, KV_METRICS_TOPIC, KV_METRICS_LIMITS, SampleStream)
