"""What the new owner of a log says first of the subscriptions that it held as a standby.

Every fact that it heard and that the log does not know yet, in the order and with the times at
which it was heard; nothing twice.

    load   Above the newest number that the fold knows of a publisher. Where the standby has heard
           all from there on, `SubscriptionContinued` goes before, and the samples held stay.
           Elsewhere it connects anew: `SubscriptionChanged` drops them, and what this connection
           told follows.
    kv     Batches with an event above the fold's cursors; where one was missed the ids of the events
           say so, and the fold clears the rank as for any gap. An engine that is listened to
           without a relay has no ids of its own: it begins anew, and its next event is a gap. One that
           finds its worker by itself is ended first, as the owner before may have found another one.
    both   Frames that were refused since the old owner fell silent. A publisher that is not
           connected now, or is gone, is said to be so last.

A standby numbers its connections by itself. Here each gets a number above those that the log knows.

Sources: decision 45; requirement row EVS-16.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from ingest.subscriptions.held_frames import Fact, HeldFact, HeldFrames
from ingest.subscriptions.reasons import Reason
from ingest.subscriptions.supervisor import SubscriptionRow
from projections.events.signals import (
    KV_EVENT_HEAD,
    Family,
    FrameRefused,
    KvBatchReceived,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionContinued,
    SubscriptionState,
)
from projections.fold_state import State
from projections.identity import PublisherKey

_CONNECTED: Final = SubscriptionState.CONNECTED
_EVENT_BYTES: Final = KV_EVENT_HEAD.size
SubscriptionKey = tuple[int, str, int]  # family, namespace, publisher id


class Takeover(NamedTuple):
    """facts: to append, in order. shifts: what to add to the numbers of connections from now on."""

    facts: list[HeldFact]
    shifts: dict[SubscriptionKey, int]


class _Plan(NamedTuple):
    """How one publisher goes on.

    shift: of its connections' numbers. first: facts of connections from this one on are told, 0
    for none. above: samples up to this number are known. is_joined: the connection `first` is
    continued, so that what happened to it later is told too.
    """

    row: SubscriptionRow
    shift: int
    first: int
    above: int = -1
    is_joined: bool = False


def take_over(
    held: HeldFrames, rows: Iterable[SubscriptionRow], state: State, silent_since: int, now_us: int
) -> Takeover:
    """See the module's text.

    rows: where the subscriptions stand. state: of the fold, which has read the own claim.
    silent_since: own time at which the owner before was heard last.
    """
    plans = {(int(row.family), *row.key): _plan(held, row, state) for row in rows}
    heads: list[HeldFact] = []
    tails: list[HeldFact] = []
    for key in sorted(plans):
        plan = plans[key]
        if plan.row.finds_worker:
            forgotten = plan.row._replace(reason=Reason.REBOUND.value)
            heads.append(HeldFact(silent_since, _changed(forgotten, SubscriptionState.ENDED, plan.shift)))
        if plan.row.state is _CONNECTED or plan.is_joined:
            heads.append(HeldFact(silent_since, _opening(plan)))
        if plan.row.state is not _CONNECTED and not plan.is_joined:
            tails.append(HeldFact(now_us, _changed(plan.row, plan.row.state, plan.shift)))
    for key in sorted(state.status.subscriptions.keys() - plans.keys()):
        gone = state.status.subscriptions[key]
        ended = int(SubscriptionState.ENDED)
        reason = Reason.DEPARTED.value
        end = SubscriptionChanged(*key, gone.component, ended, gone.connection, gone.transport, reason)
        tails.append(HeldFact(now_us, end))
    facts = [said for one in held if (said := _told(one, plans, state, silent_since)) is not None]
    return Takeover([*heads, *facts, *tails], {key: plan.shift for key, plan in plans.items()})


def said_again(rows: Iterable[SubscriptionRow]) -> list[Fact]:
    """What an owner says that had to claim its own log anew: its claim made all subscriptions pending.

    It listened all the time, and what it heard is on its way to the log, in order.
    """
    return [
        _continued(row, row.connection) if row.state is _CONNECTED else _changed(row, row.state, 0)
        for row in rows
    ]


def _plan(held: HeldFrames, row: SubscriptionRow, state: State) -> _Plan:
    subscription = state.status.subscriptions.get((int(row.family), *row.key))
    known = 0 if subscription is None else subscription.connection
    is_connected = row.state is _CONNECTED
    if row.family is Family.LOAD:
        known = max(known, state.load.connection(*row.key))
        last = state.load.last_sequence(*row.key)
        run = None if last is None else held.run_that_joins(row.key, last)
        if run is not None and last is not None:
            shift = max(0, known + 1 - run.connection)
            return _Plan(row, shift, run.connection, last, is_joined=True)
    shift = max(0, known + is_connected - row.connection)
    if row.family is Family.KV:
        return _Plan(row, shift, 0 if row.has_own_ids else 1)
    return _Plan(row, shift, row.connection if is_connected else 0)


def _opening(plan: _Plan) -> Fact:
    """A connection stands: the same one goes on, or a new one begins."""
    row = plan.row
    if plan.is_joined:
        connection = plan.first + plan.shift
    elif row.family is Family.KV and not row.has_own_ids:
        connection = row.connection + plan.shift
    else:
        return _changed(row, _CONNECTED, plan.shift)
    return _continued(row, connection)


def _continued(row: SubscriptionRow, connection: int) -> SubscriptionContinued:
    return SubscriptionContinued(int(row.family), *row.key, row.component, connection, int(row.transport))


def _changed(row: SubscriptionRow, state: SubscriptionState, shift: int) -> SubscriptionChanged:
    return SubscriptionChanged(
        int(row.family),
        *row.key,
        row.component,
        int(state),
        row.connection + shift,
        int(row.transport),
        row.reason,
    )


def _told(
    one: HeldFact, plans: dict[SubscriptionKey, _Plan], state: State, silent_since: int
) -> HeldFact | None:
    """The fact as the log is told it, None where it is not."""
    fact = one.fact
    if isinstance(fact, SampleReceived):
        plan = plans.get((int(Family.LOAD), fact.namespace, fact.publisher_id))
        is_new = plan is not None and 0 < plan.first <= fact.connection
        if plan is None or not is_new or (fact.connection == plan.first and fact.sequence <= plan.above):
            return None
        return HeldFact(one.heard_at, fact._replace(connection=fact.connection + plan.shift))
    if isinstance(fact, KvBatchReceived):
        plan = plans.get((int(Family.KV), fact.namespace, fact.publisher_id))
        if plan is None or not plan.first or not _has_news(fact, state):
            return None
        return HeldFact(one.heard_at, fact._replace(connection=plan.row.connection + plan.shift))
    if isinstance(fact, FrameRefused):
        plan = plans.get((fact.family, fact.namespace, fact.publisher_id))
        if plan is None or one.heard_at <= silent_since:
            return None
        return HeldFact(one.heard_at, fact._replace(connection=fact.connection + plan.shift))
    if isinstance(fact, SubscriptionChanged):
        plan = plans.get((fact.family, fact.namespace, fact.publisher_id))
        if plan is None or not plan.is_joined or not _is_behind(fact, plan.first):
            return None
        return HeldFact(one.heard_at, fact._replace(connection=fact.connection + plan.shift))
    return None


def _is_behind(fact: SubscriptionChanged, connection: int) -> bool:
    """Whether it happened after this connection was made."""
    return fact.connection > connection or (fact.connection == connection and fact.state != _CONNECTED)


def _has_news(fact: KvBatchReceived, state: State) -> bool:
    """Whether an event of the batch is above the cursor of its rank, or the fold knows none of it."""
    publisher = state.kv.publishers.by_key.get(PublisherKey(fact.namespace, fact.publisher_id))
    whole = fact.heads[: len(fact.heads) // _EVENT_BYTES * _EVENT_BYTES]
    if publisher is None or len(whole) != len(fact.heads):
        return True
    binding = publisher.binding
    for worker_id, claimed, event_id, *_ in KV_EVENT_HEAD.iter_unpack(whole):
        is_bound = binding is not None and binding.instance_id == worker_id
        feed = publisher.feeds.get((worker_id, binding.dp_rank if binding and is_bound else claimed))
        if feed is None or event_id > feed.last_event_id:
            return True
    return False
