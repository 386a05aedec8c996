"""Running subscriptions follow the folded fleet, so they too are driven by the log.

`follow` is called with every fleet that the fold publishes and compares its publishers of one
family (`families`) with what runs: new ones are started, gone ones ended, changed ones begun
anew. In ascending publisher id the first SUBSCRIPTIONS_MAX are admitted; the rest are PENDING, and
one that has to make room for a lower id is ENDED first, since what hears no change any more must go.

Ending is two things: the subscriber is silenced and its connection closed before `follow`
returns, and its task gets GRACE_S to end by itself, all of them at the same time. So the log
never hears of a publisher after its end, whatever a task still does.

After a restart of the process the fold still holds what an earlier one said. Publishers that
are gone are ENDED first; the others say anew where they stand, with connection numbers that go
on from the held ones.

A pause of this process over a second cuts every connection (decision 46): see `loop_watch`.

Sources: decisions 39, 46; requirement rows LOAD-04, LOAD-21, LOAD-23, KVX-04, KVX-20, REL-03,
MET-06, ADM-05; field reports B-069, B-146.
"""

from __future__ import annotations

import asyncio
import dataclasses
import operator
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from ingest.subscriptions.connectors import Connector, SubscriptionSettings, connector_of
from ingest.subscriptions.dial_gate import DialGate
from ingest.subscriptions.families import LOAD_FAMILY, FamilyPlan, Wanted, admission_order
from ingest.subscriptions.loop_watch import LoopWatch, boot_clock_s
from ingest.subscriptions.reasons import Reason
from ingest.subscriptions.subscriber import Subscriber, SubscriberPorts
from ingest.wire.zmtp_frames import Message
from ingest.wire.zmtp_limits import ZmtpLimits
from projections.bounds import SUBSCRIPTIONS_MAX
from projections.events.held import PublisherHeld
from projections.events.signals import Family, SubscriptionChanged, SubscriptionState, Transport
from projections.identity import PublisherKey
from projections.notices import Notice, StatusNotice
from projections.registry.fleet import Fleet

GRACE_S: Final = 5.0
CONNECTIONS_REMEMBERED_MAX: Final = 4 * SUBSCRIPTIONS_MAX  # numbers of publishers that do not run now

Fact = tuple[Any, ...]


class SubscriptionRow(NamedTuple):
    """Where one subscription stands now, dials included, which the log is not told.

    has_own_ids: its stream counts the events by itself, beginning with each connection.
    finds_worker: its worker is found here, and another process may have found another one.
    """

    family: Family
    key: PublisherKey
    component: str
    address: str
    state: SubscriptionState
    transport: Transport
    connection: int
    reason: str
    has_own_ids: bool = False
    finds_worker: bool = False


class _Running(NamedTuple):
    """A subscription that was started, and what for."""

    subscriber: Subscriber
    task: asyncio.Task[None]
    wanted: Wanted


class Subscriptions:
    """All subscriptions of one family in the owner's process. Use it on one running event loop.

    append, keep_raw, is_shedding, on_notice, random_unit: see SubscriberPorts.
    held: what the fold says of subscriptions (`Status.subscriptions`) when this process begins.
    limits: in place of the family's own, for tests.
    clock_s: of the watch for pauses; seconds, and runs on while the process does not.
    """

    def __init__(
        self,
        append: Callable[[Fact], object],
        settings: SubscriptionSettings,
        plan: FamilyPlan = LOAD_FAMILY,
        *,
        held: Iterable[PublisherHeld] = (),
        keep_raw: Callable[[Message], int | None] | None = None,
        is_shedding: Callable[[], bool] = lambda: False,
        on_notice: Callable[[Notice], object] = lambda notice: None,
        random_unit: Callable[[], float] = random.random,
        clock_s: Callable[[], float] = boot_clock_s,
        make_connector: Callable[[SubscriptionSettings], Connector] = connector_of,
        limits: ZmtpLimits | None = None,
    ) -> None:
        self.settings = settings
        self._plan = plan
        self._limits = limits
        self._append = append
        self._on_notice = on_notice
        self._make_connector = make_connector
        self._watch = LoopWatch(self._cut_all, clock_s)
        self._ports = SubscriberPorts(
            append,
            make_connector(settings),
            DialGate(),
            self._watch,
            random_unit,
            on_notice,
            keep_raw,
            is_shedding,
        )
        self._held: dict[PublisherKey, PublisherHeld] | None = {
            PublisherKey(row.namespace, row.publisher_id): row for row in held if row.family == plan.family
        }
        self._connections: OrderedDict[PublisherKey, int] = OrderedDict()
        for key, row in self._held.items():
            self._remember(key, row.connection)
        self._seen: tuple[object, ...] | None = None
        self._fleet: Fleet | None = None
        self._is_wanted = True
        self._wanted: list[Wanted] = []
        self._running: dict[PublisherKey, _Running] = {}
        self._waiting: dict[PublisherKey, Wanted] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    # following

    def follow(self, fleet: Fleet, is_wanted: bool = True) -> None:
        """Start and end subscriptions as the fleet says. Cheap where its publishers are the same.

        is_wanted: False ends them all: nobody uses what they would tell (KVX-20).
        """
        if self._is_stopped:
            return
        self._fleet, self._is_wanted = fleet, is_wanted
        seen = fleet.publishers, self.settings.engine_sources, is_wanted
        if self._seen is not None and all(map(operator.is_, seen, self._seen)):
            return
        self._seen = seen
        wanted = self._plan.wanted(fleet, self.settings) if is_wanted else []
        if self._held is None and wanted == self._wanted:
            return
        self._wanted = wanted
        admitted = {one.publisher.key: one for one in wanted[:SUBSCRIPTIONS_MAX]}
        waiting = {one.publisher.key: one for one in wanted[SUBSCRIPTIONS_MAX:]}
        self._end_others(admitted, waiting)
        for key, one in waiting.items():
            if key not in self._waiting:
                self._tell_change(key, one.publisher.component, SubscriptionState.PENDING, Reason.OVER_LIMIT)
        self._waiting = waiting
        for key, one in admitted.items():
            running = self._running.get(key)
            if running is None:
                self._start(one, Reason.STARTED)
            elif running.wanted != one:
                self._stop_running(key)
                if _worker_of(one) != _worker_of(running.wanted):
                    self._tell_ended(key, one.publisher.component, Reason.REBOUND)
                self._start(one, Reason.MOVED)

    def replace(self, settings: SubscriptionSettings) -> None:
        """Begin all subscriptions anew with other settings; equal ones change nothing (REL-03).

        Where engine sources alone differ, only those subscriptions change.
        Raises ValueError for settings that no connector has; nothing was changed then.
        """
        if settings == self.settings or self._is_stopped:
            return
        before, connector = self.settings, self._make_connector(settings)
        self.settings = settings
        if dataclasses.replace(before, engine_sources=settings.engine_sources) != settings:
            self._ports = dataclasses.replace(self._ports, connector=connector)
            for key, running in list(self._running.items()):
                self._stop_running(key)
                self._start(running.wanted, Reason.SETTINGS_CHANGED)
        if self._fleet is not None:
            self.follow(self._fleet, self._is_wanted)

    def renumber(self, shifts: Mapping[PublisherKey, int]) -> None:
        """Add to the numbers of connections: the log knows others of their publishers (decision 45)."""
        for key, shift in shifts.items():
            running = self._running.get(key)
            if running is not None:
                running.subscriber.renumber(shift)
            else:
                self._remember(key, self._connections.get(key, 0) + shift)

    async def stop(self) -> None:
        """End all, within GRACE_S. The log hears that nobody is connected any more."""
        self._is_stopped = True
        self._watch.stop()
        for key, running in list(self._running.items()):
            running.subscriber.cut(Reason.STOPPED)
            self._stop_running(key)
        self._waiting = {}
        if self._ending:
            await asyncio.wait(self._ending, timeout=GRACE_S)

    # reading

    def rows(self) -> list[SubscriptionRow]:
        """All subscriptions by ascending publisher id, those that wait last."""
        transport = self._ports.connector.transport
        running = sorted(self._running.items(), key=lambda item: admission_order(item[0]))
        rows = [
            SubscriptionRow(
                self._plan.family, key, one.publisher.component, one.publisher.address, one.state, transport,
                one.connection, one.reason.value, wanted.source is not None, _finds_worker(wanted),
            )
            for key, (one, _, wanted) in running
        ]  # fmt: skip
        for key, one in self._waiting.items():
            rows.append(
                SubscriptionRow(
                    self._plan.family,
                    key,
                    one.publisher.component,
                    one.publisher.address,
                    SubscriptionState.PENDING,
                    transport,
                    self._connections.get(key, 0),
                    Reason.OVER_LIMIT.value,
                )
            )
        return rows

    def counts(self) -> dict[tuple[SubscriptionState, Transport], int]:
        """Subscriptions a state and transport, for the gauge; every state but ENDED is there."""
        states = Counter(running.subscriber.state for running in self._running.values())
        states[SubscriptionState.PENDING] += len(self._waiting)
        transport = self._ports.connector.transport
        return {
            (state, transport): states[state]
            for state in SubscriptionState
            if state is not SubscriptionState.ENDED
        }

    # inside

    def _end_others(self, admitted: dict[PublisherKey, Wanted], waiting: dict[PublisherKey, Wanted]) -> None:
        """End what is neither admitted nor waiting, and what must wait now."""
        if self._held is not None:
            held, self._held = self._held, None
            for key in sorted(held, key=admission_order):
                if key not in admitted and key not in waiting:
                    self._tell_ended(key, held[key].component, Reason.DEPARTED)
        for key in sorted(self._running.keys() - admitted.keys(), key=admission_order):
            component = self._running[key].subscriber.publisher.component
            self._stop_running(key)
            self._tell_ended(key, component, Reason.OVER_LIMIT if key in waiting else Reason.DEPARTED)
        for key, one in self._waiting.items():
            if key not in admitted and key not in waiting:
                self._tell_ended(key, one.publisher.component, Reason.DEPARTED)

    def _start(self, one: Wanted, reason: Reason) -> None:
        if not self._running:
            self._watch.stop()
            self._watch.start()
        key, plan = one.publisher.key, self._plan.stream(one)
        if self._limits is not None:
            plan = plan._replace(limits=self._limits)
        subscriber = Subscriber(one.publisher, self._connections.pop(key, 0), self._ports, plan)
        subscriber.start(reason)
        task = asyncio.get_running_loop().create_task(subscriber.run())
        self._running[key] = _Running(subscriber, task, one)

    def _stop_running(self, key: PublisherKey) -> None:
        """Silence it at once; its task ends beside us."""
        subscriber, task, _one = self._running.pop(key)
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
            self._on_notice(
                StatusNotice(f"{self._plan.family.label} subscription ended badly", repr(problem), "error")
            )

    def _give_up(self, task: asyncio.Task[None], key: PublisherKey) -> None:
        self._ending.discard(task)
        text = f"{key.namespace}/{key.publisher_id} after {GRACE_S:g} s"
        self._on_notice(StatusNotice(f"{self._plan.family.label} subscription does not end", text, "error"))

    def _remember(self, key: PublisherKey, connection: int) -> None:
        self._connections[key] = connection
        self._connections.move_to_end(key)
        if len(self._connections) > CONNECTIONS_REMEMBERED_MAX:
            self._connections.popitem(last=False)

    def _tell_ended(self, key: PublisherKey, component: str, reason: Reason) -> None:
        self._tell_change(key, component, SubscriptionState.ENDED, reason)

    def _tell_change(
        self, key: PublisherKey, component: str, state: SubscriptionState, reason: Reason
    ) -> None:
        connection = self._connections.get(key, 0)
        transport = int(self._ports.connector.transport)
        self._append(
            SubscriptionChanged(
                int(self._plan.family), *key, component, int(state), connection, transport, reason.value
            )
        )

    def _cut_all(self, late_s: float) -> None:
        """This process stood still: what waits in the sockets is as old as the pause."""
        for running in self._running.values():
            running.subscriber.cut(Reason.STALLED)
        what = f"this process stood still, {self._plan.family.label} subscriptions were cut"
        self._on_notice(StatusNotice(what, f"{late_s:.1f} s", "warning"))


def _finds_worker(wanted: Wanted) -> bool:
    return wanted.source is not None and wanted.source.instance_id is None


def _worker_of(wanted: Wanted) -> int | None:
    """The worker that an engine's entry names: what it told of another one must be forgotten."""
    return wanted.source.instance_id if wanted.source is not None else None
