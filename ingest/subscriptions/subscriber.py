"""One publisher for as long as its record exists: a session, a wait, the next session.

Facts go to the log through `append`:

    SubscriptionChanged   when the state or, in backoff, the reason changed; the first CONNECTING
                          is told, later dials are not, so a peer that is down for hours is silent
    SampleReceived        the newest of each rank
    FrameRefused          once a second and result

A lone sample is told at once. After n of them the next are told no sooner than n quarters of a
millisecond later, at least 2 ms, and merged until then: at most some 4,000 records a second and
publisher, whatever it sends. While the log sheds they are merged for longer. A burst over more
ranks than may wait is told ahead of its time, up to DEBT_S.

A connection has a number, from 1, that never comes back for this publisher; it grows when the
handshake is over. Retries go on as long as the record exists (B-069): nobody tells us that a
publisher now listens.

Sources: decisions 15, 17; requirement rows LOAD-22, STORE-13, ZMTP-09, ZMTP-10; B-071, B-072.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ingest.subscriptions.connectors import ConnectFailed, Connector
from ingest.subscriptions.continuity import Continuity
from ingest.subscriptions.dial_gate import DialGate
from ingest.subscriptions.loop_watch import LoopWatch
from ingest.subscriptions.reasons import Reason
from ingest.subscriptions.reconnect_wait import ReconnectWait
from ingest.subscriptions.refusal_counts import RefusalCounts
from ingest.subscriptions.session import ZmtpSession
from ingest.wire.publisher_frames import KV_METRICS_TOPIC, Refused, decode_sample_message
from ingest.wire.zmtp_frames import Message
from ingest.wire.zmtp_limits import ZmtpLimits
from projections.events.signals import (
    Family,
    FrameRefused,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
)
from projections.notices import FrameResult, Notice, StatusNotice
from projections.registry.fleet import Publisher

MERGE_S_MIN: Final = 0.002
RECORD_S: Final = 0.00025  # time that one record of a publisher must be worth
DEBT_S: Final = 0.25
SHED_PAUSE_S: Final = 0.05  # between two looks whether the log takes samples again

# Counted as refused too, so that it shows in the metrics: the rest is a matter of networks.
_COUNTED: Final = frozenset((Reason.TRANSPORT_REFUSED, Reason.DENIED_ADDRESS))

Fact = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SubscriberPorts:
    """What all subscribers of a process share.

    append:      takes facts in order; must not block or raise.
    keep_raw:    keeps the frames of a sample, returns their digest; None where nothing is kept.
    is_shedding: whether the log takes no samples now.
    on_notice:   what people should read.
    random_unit: numbers from 0 up to 1.
    """

    append: Callable[[Fact], object]
    connector: Connector
    limits: ZmtpLimits
    gate: DialGate
    watch: LoopWatch
    random_unit: Callable[[], float]
    on_notice: Callable[[Notice], object]
    keep_raw: Callable[[Message], int | None] | None
    is_shedding: Callable[[], bool]


class Subscriber:
    """See the module's text. `run` is its task; `close` silences it at once, whatever the task does.

    publisher: as the fleet names it. connection: number of its last connection so far.
    """

    __slots__ = (
        "_connected_at_s", "_continuity", "_ended", "_is_closed", "_ports", "_quiet_until_s", "_refusals",
        "_session", "_timer", "_told", "_wait", "connection", "publisher", "reason", "state",
    )  # fmt: skip

    def __init__(self, publisher: Publisher, connection: int, ports: SubscriberPorts) -> None:
        self.publisher = publisher
        self.connection = connection
        self.state = SubscriptionState.PENDING
        self.reason = Reason.STARTED
        self._ports = ports
        self._wait = ReconnectWait(ports.limits, ports.random_unit)
        self._continuity = Continuity()
        self._refusals: RefusalCounts | None = None  # most publishers never need it
        self._session: ZmtpSession | None = None
        self._ended: asyncio.Future[None] | None = None
        self._connected_at_s: float | None = None
        self._quiet_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._told: tuple[SubscriptionState, Reason] | None = None
        self._is_closed = False

    def start(self, reason: Reason) -> None:
        """Say that it begins; `run` does the rest."""
        self._change(SubscriptionState.CONNECTING, reason)

    async def run(self) -> None:
        """Connect, listen, wait, again. Ends by cancellation only; nothing of the fleet raises here."""
        while not self._is_closed:
            lasted_s = await self._one_session()
            await asyncio.sleep(self._wait.after_session(lasted_s))
            self.state = SubscriptionState.CONNECTING

    def cut(self, reason: Reason) -> None:
        """Drop the connection, if there is one, and what waits of it; `run` connects again."""
        if self.state is not SubscriptionState.CONNECTED:
            return  # nothing was subscribed yet, so nothing old can wait in the socket
        self._continuity = Continuity()
        if self._session is not None:
            self._session.end(reason)

    def close(self) -> None:
        """No further fact and no connection. The task must be cancelled as well."""
        if self._refusals is not None:
            self._refusals.close()
        self._is_closed = True
        self._stop_timer()
        if self._session is not None:
            self._session.end(Reason.STOPPED)

    # one session

    async def _one_session(self) -> float | None:
        """Seconds that it stood, None where the handshake was never over."""
        loop = asyncio.get_running_loop()
        ports = self._ports
        self._connected_at_s = None
        self._ended = loop.create_future()
        self._session = session = ZmtpSession(ports.limits, KV_METRICS_TOPIC, self, ports.watch)
        address = self.publisher.address
        try:
            await ports.gate.pass_through(lambda: ports.connector.connect(address, session))
            await self._ended
        except ConnectFailed as failed:
            session.end(failed.reason, str(failed))
        except Exception as problem:  # a mistake of ours must not end the subscription
            session.end(Reason.FAULT, f"{type(problem).__name__}: {problem}")
        finally:
            session.end(Reason.STOPPED)  # cancelled
            self._session = None
        return self._stood_s(loop.time())

    def _stood_s(self, now_s: float) -> float | None:
        return None if self._connected_at_s is None else now_s - self._connected_at_s

    def session_connected(self) -> None:
        """See SessionListener."""
        self._connected_at_s = asyncio.get_running_loop().time()
        self._continuity = Continuity()
        self.connection += 1
        self._change(SubscriptionState.CONNECTED, Reason.CONNECTED)

    def session_received(self, messages: list[Message]) -> None:
        """See SessionListener."""
        continuity, publisher_id = self._continuity, self.publisher.key.publisher_id
        keeps_raw = self._ports.keep_raw is not None
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
                result = continuity.take(said, frames if keeps_raw else None)
            if result is not None:
                self._count(result)
        if continuity.waiting and self._timer is None:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._quiet_until_s:
                self._tell_samples()
            else:
                self._timer = loop.call_at(self._quiet_until_s, self._tell_samples)

    def session_ended(self, reason: Reason, detail: str) -> None:
        """See SessionListener. What waits is told first: it came before the end."""
        try:
            if not self._is_closed:
                self._tell_end(reason, detail)
        finally:  # `run` must go on in any case
            self._continuity = Continuity()
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)

    # facts

    def _tell_end(self, reason: Reason, detail: str) -> None:
        if self._continuity.waiting and not self._ports.is_shedding():
            self._tell_samples()
        self._stop_timer()
        if reason in _COUNTED:
            self._count(FrameResult.TRANSPORT_REFUSED)
        self._change(SubscriptionState.BACKOFF, reason, detail)

    def _tell_ahead(self) -> None:
        """Room is short: tell what waits now, unless that was done too often already."""
        loop = asyncio.get_running_loop()
        if self._quiet_until_s - loop.time() < DEBT_S and not self._ports.is_shedding():
            self._tell_samples()

    def _tell_samples(self) -> None:
        """Tell all that waits, and be quiet for what that was worth."""
        self._stop_timer()
        ports, publisher = self._ports, self.publisher
        loop = asyncio.get_running_loop()
        if ports.is_shedding():
            self._timer = loop.call_later(SHED_PAUSE_S, self._tell_samples)
            return
        namespace, publisher_id = publisher.key
        drained = self._continuity.drain()
        for covers_from, sample, frames in drained:
            digest = ports.keep_raw(frames) if ports.keep_raw and frames else None
            ports.append(
                SampleReceived(
                    namespace,
                    publisher_id,
                    self.connection,
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

    def _count(self, result: FrameResult) -> None:
        if self._refusals is None:
            self._refusals = RefusalCounts(self._tell_refused)
        self._refusals.count(result)

    def _tell_refused(self, result: FrameResult, frames: int) -> None:
        namespace, publisher_id = self.publisher.key
        self._ports.append(
            FrameRefused(int(Family.LOAD), namespace, publisher_id, self.connection, int(result), frames)
        )

    def _change(self, state: SubscriptionState, reason: Reason, detail: str = "") -> None:
        """Take a state and tell it, unless it is what was told last."""
        self.state, self.reason = state, reason
        if self._told == (state, reason):
            return
        self._told = (state, reason)
        ports, publisher = self._ports, self.publisher
        namespace, publisher_id = publisher.key
        ports.append(
            SubscriptionChanged(
                int(Family.LOAD),
                namespace,
                publisher_id,
                publisher.component,
                int(state),
                self.connection,
                int(ports.connector.transport),
                reason.value,
            )
        )
        if state is SubscriptionState.BACKOFF and reason not in (Reason.STALLED, Reason.STOPPED):
            said = f": {detail}" if detail else ""
            text = f"{namespace}/{publisher_id}, {reason}{said}"
            ports.on_notice(StatusNotice("load subscription backs off", text, "warning"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
