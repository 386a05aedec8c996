"""Running subscriptions follow the folded fleet, so they too are driven by the log.

`follow` is called with every fleet that the fold publishes and compares its publishers of load
with what runs: new ones are started, gone ones ended, changed ones begun anew. In ascending
publisher id the first SUBSCRIPTIONS_MAX are admitted; the rest are PENDING, and one that has to
make room for a lower id is ENDED first, since samples that hear no change any more must go.

Ending is two things: the subscriber is silenced and its connection closed before `follow`
returns, and its task gets GRACE_S to end by itself, all of them at the same time. So the log
never hears of a publisher after its end, whatever a task still does.

After a restart of the process the fold still holds what an earlier one said. Publishers that
are gone are ENDED first; the others say anew where they stand, with connection numbers that go
on from the held ones.

A pause of this process over a second cuts every connection (decision 46): see `loop_watch`.

Sources: decisions 39, 46; requirement rows LOAD-04, LOAD-21, LOAD-23, REL-03, MET-06, ADM-05;
field reports B-069, B-146.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from ingest.subscriptions.connectors import Connector, SubscriptionSettings, connector_of
from ingest.subscriptions.dial_gate import DialGate
from ingest.subscriptions.loop_watch import LoopWatch, boot_clock_s
from ingest.subscriptions.reasons import Reason
from ingest.subscriptions.subscriber import Subscriber, SubscriberPorts
from ingest.wire.publisher_frames import KV_METRICS_TOPIC
from ingest.wire.zmtp_frames import Message
from ingest.wire.zmtp_limits import KV_METRICS_LIMITS, ZmtpLimits
from projections.bounds import SUBSCRIPTIONS_MAX
from projections.events.held import PublisherHeld
from projections.events.signals import Family, SubscriptionChanged, SubscriptionState, Transport
from projections.identity import PublisherKey
from projections.notices import Notice, StatusNotice
from projections.registry.fleet import Fleet, Publisher

GRACE_S: Final = 5.0
CONNECTIONS_REMEMBERED_MAX: Final = 4 * SUBSCRIPTIONS_MAX  # numbers of publishers that do not run now

_TOPIC: Final = KV_METRICS_TOPIC.decode()

Fact = tuple[Any, ...]


class SubscriptionRow(NamedTuple):
    """Where one subscription stands now, dials included, which the log is not told."""

    family: Family
    key: PublisherKey
    component: str
    address: str
    state: SubscriptionState
    transport: Transport
    connection: int
    reason: str


class Subscriptions:
    """All load subscriptions of the owner's process. Use it on one running event loop.

    append, keep_raw, is_shedding, on_notice, random_unit: see SubscriberPorts.
    held: what the fold says of subscriptions (`Status.subscriptions`) when this process begins.
    clock_s: of the watch for pauses; seconds, and runs on while the process does not.
    """

    def __init__(
        self,
        append: Callable[[Fact], object],
        settings: SubscriptionSettings,
        *,
        held: Iterable[PublisherHeld] = (),
        keep_raw: Callable[[Message], int | None] | None = None,
        is_shedding: Callable[[], bool] = lambda: False,
        on_notice: Callable[[Notice], object] = lambda notice: None,
        random_unit: Callable[[], float] = random.random,
        clock_s: Callable[[], float] = boot_clock_s,
        make_connector: Callable[[SubscriptionSettings], Connector] = connector_of,
        limits: ZmtpLimits = KV_METRICS_LIMITS,
    ) -> None:
        self.settings = settings
        self._append = append
        self._on_notice = on_notice
        self._make_connector = make_connector
        self._watch = LoopWatch(self._cut_all, clock_s)
        self._ports = SubscriberPorts(
            append,
            make_connector(settings),
            limits,
            DialGate(),
            self._watch,
            random_unit,
            on_notice,
            keep_raw,
            is_shedding,
        )
        self._held: dict[PublisherKey, PublisherHeld] | None = {
            PublisherKey(row.namespace, row.publisher_id): row for row in held if row.family == Family.LOAD
        }
        self._connections: OrderedDict[PublisherKey, int] = OrderedDict()
        for key, row in self._held.items():
            self._remember(key, row.connection)
        self._seen: tuple[Publisher, ...] | None = None
        self._publishers: list[Publisher] = []
        self._running: dict[PublisherKey, tuple[Subscriber, asyncio.Task[None]]] = {}
        self._waiting: dict[PublisherKey, Publisher] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    # following

    def follow(self, fleet: Fleet) -> None:
        """Start and end subscriptions as the fleet says. Cheap where its publishers are the same."""
        if self._is_stopped or fleet.publishers is self._seen:
            return
        self._seen = fleet.publishers
        publishers = sorted(
            (publisher for publisher in fleet.publishers if publisher.topic == _TOPIC),
            key=lambda publisher: _by_id(publisher.key),
        )
        if self._held is None and publishers == self._publishers:
            return
        self._publishers = publishers
        admitted = {publisher.key: publisher for publisher in publishers[:SUBSCRIPTIONS_MAX]}
        waiting = {publisher.key: publisher for publisher in publishers[SUBSCRIPTIONS_MAX:]}
        self._end_others(admitted, waiting)
        for key, publisher in waiting.items():
            if key not in self._waiting:
                self._tell(publisher, SubscriptionState.PENDING, Reason.OVER_LIMIT)
        self._waiting = waiting
        for key, publisher in admitted.items():
            running = self._running.get(key)
            if running is None:
                self._start(publisher, Reason.STARTED)
            elif running[0].publisher != publisher:
                self._stop_running(key)
                self._start(publisher, Reason.MOVED)

    def replace(self, settings: SubscriptionSettings) -> None:
        """Begin all subscriptions anew with other settings; equal ones change nothing (REL-03).

        Raises ValueError for settings that no connector has; nothing was changed then.
        """
        if settings == self.settings or self._is_stopped:
            return
        connector = self._make_connector(settings)
        self.settings = settings
        self._ports = dataclasses.replace(self._ports, connector=connector)
        for key, (subscriber, _task) in list(self._running.items()):
            self._stop_running(key)
            self._start(subscriber.publisher, Reason.SETTINGS_CHANGED)

    async def stop(self) -> None:
        """End all, within GRACE_S. The log hears that nobody is connected any more."""
        self._is_stopped = True
        self._watch.stop()
        for key, (subscriber, _task) in list(self._running.items()):
            subscriber.cut(Reason.STOPPED)
            self._stop_running(key)
        self._waiting = {}
        if self._ending:
            await asyncio.wait(self._ending, timeout=GRACE_S)

    # reading

    def rows(self) -> list[SubscriptionRow]:
        """All subscriptions by ascending publisher id, those that wait last."""
        transport = self._ports.connector.transport
        rows = [
            SubscriptionRow(
                Family.LOAD, key, one.publisher.component, one.publisher.address, one.state, transport,
                one.connection, one.reason.value,
            )
            for key, (one, _task) in sorted(self._running.items(), key=lambda item: _by_id(item[0]))
        ]  # fmt: skip
        for key, publisher in self._waiting.items():
            rows.append(
                SubscriptionRow(
                    Family.LOAD,
                    key,
                    publisher.component,
                    publisher.address,
                    SubscriptionState.PENDING,
                    transport,
                    self._connections.get(key, 0),
                    Reason.OVER_LIMIT.value,
                )
            )
        return rows

    def counts(self) -> dict[tuple[SubscriptionState, Transport], int]:
        """Subscriptions a state and transport, for the gauge; every state but ENDED is there."""
        states = Counter(subscriber.state for subscriber, _task in self._running.values())
        states[SubscriptionState.PENDING] += len(self._waiting)
        transport = self._ports.connector.transport
        return {
            (state, transport): states[state]
            for state in SubscriptionState
            if state is not SubscriptionState.ENDED
        }

    # inside

    def _end_others(
        self, admitted: dict[PublisherKey, Publisher], waiting: dict[PublisherKey, Publisher]
    ) -> None:
        """End what is neither admitted nor waiting, and what must wait now."""
        if self._held is not None:
            held, self._held = self._held, None
            for key in sorted(held, key=_by_id):
                if key not in admitted and key not in waiting:
                    self._tell_ended(key, held[key].component, Reason.DEPARTED)
        for key in sorted(self._running.keys() - admitted.keys(), key=_by_id):
            component = self._running[key][0].publisher.component
            self._stop_running(key)
            self._tell_ended(key, component, Reason.OVER_LIMIT if key in waiting else Reason.DEPARTED)
        for key, publisher in self._waiting.items():
            if key not in admitted and key not in waiting:
                self._tell_ended(key, publisher.component, Reason.DEPARTED)

    def _start(self, publisher: Publisher, reason: Reason) -> None:
        if not self._running:
            self._watch.stop()
            self._watch.start()
        key = publisher.key
        subscriber = Subscriber(publisher, self._connections.pop(key, 0), self._ports)
        subscriber.start(reason)
        task = asyncio.get_running_loop().create_task(subscriber.run())
        self._running[key] = (subscriber, task)

    def _stop_running(self, key: PublisherKey) -> None:
        """Silence it at once; its task ends beside us."""
        subscriber, task = self._running.pop(key)
        subscriber.close()
        self._remember(key, subscriber.connection)
        self._ending.add(task)
        timer = asyncio.get_running_loop().call_later(GRACE_S, self._give_up, task, key)
        task.add_done_callback(lambda ended: self._has_ended(ended, timer))
        task.cancel()

    def _has_ended(self, task: asyncio.Task[None], timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self._ending.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            self._on_notice(StatusNotice("load subscription ended badly", repr(problem), "error"))

    def _give_up(self, task: asyncio.Task[None], key: PublisherKey) -> None:
        self._ending.discard(task)
        text = f"{key.namespace}/{key.publisher_id} after {GRACE_S:g} s"
        self._on_notice(StatusNotice("load subscription does not end", text, "error"))

    def _remember(self, key: PublisherKey, connection: int) -> None:
        self._connections[key] = connection
        self._connections.move_to_end(key)
        if len(self._connections) > CONNECTIONS_REMEMBERED_MAX:
            self._connections.popitem(last=False)

    def _tell(self, publisher: Publisher, state: SubscriptionState, reason: Reason) -> None:
        self._tell_change(publisher.key, publisher.component, state, reason)

    def _tell_ended(self, key: PublisherKey, component: str, reason: Reason) -> None:
        self._tell_change(key, component, SubscriptionState.ENDED, reason)

    def _tell_change(
        self, key: PublisherKey, component: str, state: SubscriptionState, reason: Reason
    ) -> None:
        connection = self._connections.get(key, 0)
        transport = int(self._ports.connector.transport)
        self._append(
            SubscriptionChanged(
                int(Family.LOAD), *key, component, int(state), connection, transport, reason.value
            )
        )

    def _cut_all(self, late_s: float) -> None:
        """This process stood still: what waits in the sockets is as old as the pause."""
        for subscriber, _task in self._running.values():
            subscriber.cut(Reason.STALLED)
        self._on_notice(
            StatusNotice(
                "this process stood still, load subscriptions were cut", f"{late_s:.1f} s", "warning"
            )
        )


def _by_id(key: PublisherKey) -> tuple[int, str]:
    """The order of admission: ids first, over all namespaces."""
    return key.publisher_id, key.namespace
