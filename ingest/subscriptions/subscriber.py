"""One publisher for as long as its record exists: a session, a wait, the next session.

Facts go to the log through `append`:

    SubscriptionChanged   when the state or, in backoff, the reason changed; the first CONNECTING
                          is told, later dials are not, so a peer that is down for hours is silent
    FrameRefused          once a second and result
    and what the publisher's stream makes of its messages (`message_stream`)

A connection has a number, from 1, that never comes back for this publisher; it grows when the
handshake is over. Retries go on as long as the record exists (B-069): nobody tells us that a
publisher now listens.

Sources: decision 17; requirement rows LOAD-22, STORE-13, ZMTP-09, ZMTP-10; field report B-072.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ingest.subscriptions.connectors import ConnectFailed, Connector
from ingest.subscriptions.dial_gate import DialGate
from ingest.subscriptions.loop_watch import LoopWatch
from ingest.subscriptions.message_stream import Fact, StreamPlan
from ingest.subscriptions.reasons import Reason
from ingest.subscriptions.reconnect_wait import ReconnectWait
from ingest.subscriptions.refusal_counts import RefusalCounts
from ingest.subscriptions.session import ZmtpSession
from ingest.wire.zmtp_frames import Message
from projections.events.signals import FrameRefused, SubscriptionChanged, SubscriptionState
from projections.identity import PublisherKey
from projections.notices import FrameResult, Notice, StatusNotice
from projections.registry.fleet import Publisher

# Counted as refused too, so that it shows in the metrics: the rest is a matter of networks.
_COUNTED: Final = frozenset((Reason.TRANSPORT_REFUSED, Reason.DENIED_ADDRESS))


@dataclass(frozen=True, slots=True)
class SubscriberPorts:
    """What all subscribers of a process share.

    append:      takes facts in order; must not block or raise.
    keep_raw:    keeps the frames of a fact, returns their digest; None where nothing is kept.
    is_shedding: whether the log takes no samples and block events now.
    on_notice:   what people should read.
    random_unit: numbers from 0 up to 1.
    """

    append: Callable[[Fact], object]
    connector: Connector
    gate: DialGate
    watch: LoopWatch
    random_unit: Callable[[], float]
    on_notice: Callable[[Notice], object]
    keep_raw: Callable[[Message], int | None] | None
    is_shedding: Callable[[], bool]


class Subscriber:
    """See the module's text. `run` is its task; `close` silences it at once, whatever the task does.

    publisher: as the fleet names it. connection: number of its last connection so far. To its
    stream it is the StreamHost.
    """

    __slots__ = (
        "_connected_at_s", "_ended", "_is_closed", "_plan", "_ports", "_refusals", "_session", "_stream",
        "_told", "_wait", "connection", "key", "publisher", "reason", "state",
    )  # fmt: skip

    def __init__(
        self, publisher: Publisher, connection: int, ports: SubscriberPorts, plan: StreamPlan
    ) -> None:
        self.publisher = publisher
        self.key: PublisherKey = publisher.key
        self.connection = connection
        self.state = SubscriptionState.PENDING
        self.reason = Reason.STARTED
        self._ports = ports
        self._plan = plan
        self._wait = ReconnectWait(plan.limits, ports.random_unit)
        self._stream = plan.make(self)
        self._refusals: RefusalCounts | None = None  # most publishers never need it
        self._session: ZmtpSession | None = None
        self._ended: asyncio.Future[None] | None = None
        self._connected_at_s: float | None = None
        self._told: tuple[SubscriptionState, Reason, int] | None = None
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
        self._stream.forget()
        if self._session is not None:
            self._session.end(reason)

    def close(self) -> None:
        """No further fact and no connection. The task must be cancelled as well."""
        if self._refusals is not None:
            self._refusals.close()
        self._is_closed = True
        self._stream.forget()
        if self._session is not None:
            self._session.end(Reason.STOPPED)

    def renumber(self, shift: int) -> None:
        """Its connections have higher numbers from here on; the log was told of this one already."""
        self.connection += shift
        is_connected = self.state is SubscriptionState.CONNECTED
        self._told = (self.state, self.reason, self.connection if is_connected else 0)
        self._stream.renumbered()

    # one session

    async def _one_session(self) -> float | None:
        """Seconds that it stood, None where the handshake was never over."""
        loop = asyncio.get_running_loop()
        ports = self._ports
        self._connected_at_s = None
        self._ended = loop.create_future()
        self._session = session = ZmtpSession(self._plan.limits, self._plan.topic, self, ports.watch)
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
        self.connection += 1
        self._change(SubscriptionState.CONNECTED, Reason.CONNECTED)
        self._stream.begin()

    def session_received(self, messages: list[Message]) -> None:
        """See SessionListener."""
        self._stream.receive(messages)

    def session_ended(self, reason: Reason, detail: str) -> None:
        """See SessionListener. What waits is told first: it came before the end."""
        try:
            if not self._is_closed:
                self._tell_end(reason, detail)
        finally:  # `run` must go on in any case
            self._stream.forget()
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)

    # what the stream asks for, see StreamHost

    def append(self, fact: Fact) -> None:
        """See StreamHost."""
        self._ports.append(fact)

    @property
    def keeps_raw(self) -> bool:
        """See StreamHost."""
        return self._ports.keep_raw is not None

    def keep_raw(self, frames: Message) -> int | None:
        """See StreamHost."""
        keep = self._ports.keep_raw
        return keep(frames) if keep is not None else None

    def is_shedding(self) -> bool:
        """See StreamHost."""
        return self._ports.is_shedding()

    def count(self, result: FrameResult, times: int = 1) -> None:
        """See StreamHost."""
        if self._refusals is None:
            self._refusals = RefusalCounts(self._tell_refused)
        self._refusals.count(result, times)

    def notice(self, notice: Notice) -> None:
        """See StreamHost."""
        self._ports.on_notice(notice)

    def hold(self) -> None:
        """See StreamHost."""
        if self._session is not None:
            self._session.hold()

    def release(self) -> None:
        """See StreamHost."""
        if self._session is not None:
            self._session.release()

    @property
    def peer(self) -> str | None:
        """See StreamHost."""
        return self._session.peer if self._session is not None else None

    def renew(self, reason: Reason, *, is_end: bool = False) -> None:
        """See StreamHost."""
        if is_end:
            self._tell(SubscriptionState.ENDED, reason)
        self.connection += 1
        self._change(SubscriptionState.CONNECTED, reason)

    # facts

    def _tell_end(self, reason: Reason, detail: str) -> None:
        self._stream.finish()
        if reason in _COUNTED:
            self.count(FrameResult.TRANSPORT_REFUSED)
        self._change(SubscriptionState.BACKOFF, reason, detail)

    def _tell_refused(self, result: FrameResult, frames: int) -> None:
        namespace, publisher_id = self.publisher.key
        self._ports.append(
            FrameRefused(
                int(self._plan.family), namespace, publisher_id, self.connection, int(result), frames
            )
        )

    def _change(self, state: SubscriptionState, reason: Reason, detail: str = "") -> None:
        """Take a state and tell it, unless it is what was told last."""
        self.state, self.reason = state, reason
        number = self.connection if state is SubscriptionState.CONNECTED else 0
        if self._told == (state, reason, number):
            return
        self._told = (state, reason, number)
        self._tell(state, reason)
        if state is SubscriptionState.BACKOFF and reason not in (Reason.STALLED, Reason.STOPPED):
            said = f": {detail}" if detail else ""
            text = f"{self.key.namespace}/{self.key.publisher_id}, {reason}{said}"
            self._ports.on_notice(
                StatusNotice(f"{self._plan.family.label} subscription backs off", text, "warning")
            )

    def _tell(self, state: SubscriptionState, reason: Reason) -> None:
        ports, publisher = self._ports, self.publisher
        ports.append(
            SubscriptionChanged(
                int(self._plan.family),
                *publisher.key,
                publisher.component,
                int(state),
                self.connection,
                int(ports.connector.transport),
                reason.value,
            )
        )
