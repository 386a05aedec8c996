"""What a standby has heard and may have to say: its subscriptions' facts of the last ten seconds.

While another process owns the log a standby listens like an owner and says nothing. Its facts
wait here, oldest out beyond their age, number or bytes, and are counted. `takeover` makes of them
what a new owner says.

Beside them stands, for every publisher of load, which numbers each of its connections has heard
without a fact missing here: `begins..highest`. A connection that heard nothing yet takes over the
number that the log knows, `settle`: whatever was published before was heard by the owner, which
was connected and spoke well after this connection began; what comes later will be heard here.

Sources: decisions 17, 45.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from projections.bounds import HELD_FRAMES_BYTES_MAX, HELD_FRAMES_MAX, HELD_FRAMES_US_MAX, SECOND_US
from projections.events.signals import (
    Family,
    KvBatchReceived,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
)
from projections.fold_state import State
from projections.identity import PublisherKey

FACT_BYTES: Final = 300  # of memory that a fact takes beside its columns, about
SETTLED_US: Final = 1 * SECOND_US  # from a connect until the owner has surely logged what came before
RUNS_MAX: Final = 8  # connections remembered of one publisher, oldest out

Fact = tuple[Any, ...]


class HeldFact(NamedTuple):
    """A fact and the process's own monotonic time at which it was heard."""

    heard_at: int
    fact: Fact


class Run:
    """Numbers that one connection has heard and of which every fact is held; begins None: nothing yet."""

    __slots__ = ("begins", "connected_at", "connection", "highest")

    def __init__(self, connection: int, connected_at: int) -> None:
        self.connection = connection
        self.connected_at = connected_at
        self.begins: int | None = None
        self.highest = -1

    def joins(self, last: int) -> bool:
        """Whether it goes on where `last` was the newest number that is known."""
        return self.begins is not None and self.begins <= last + 1 <= self.highest + 1


class HeldFrames:
    """See the module's text. aged, crowded: facts dropped by age, and by number or bytes."""

    def __init__(
        self,
        *,
        us_max: int = HELD_FRAMES_US_MAX,
        facts_max: int = HELD_FRAMES_MAX,
        bytes_max: int = HELD_FRAMES_BYTES_MAX,
    ) -> None:
        self.aged = 0
        self.crowded = 0
        self.held_bytes = 0
        self._us_max = us_max
        self._facts_max = facts_max
        self._bytes_max = bytes_max
        self._facts: deque[HeldFact] = deque()
        self._runs: dict[PublisherKey, deque[Run]] = {}
        self._unheard: set[PublisherKey] = set()  # whose newest connection heard nothing yet

    def __len__(self) -> int:
        return len(self._facts)

    def __iter__(self) -> Iterator[HeldFact]:
        """In the order in which they were heard."""
        return iter(self._facts)

    def hold(self, now_us: int, fact: Fact) -> None:
        """A fact that an owner would append now."""
        self._facts.append(HeldFact(now_us, fact))
        self.held_bytes += _bytes_of(fact)
        if isinstance(fact, SampleReceived):
            self._hear(now_us, fact)
        elif isinstance(fact, SubscriptionChanged) and fact.family == Family.LOAD:
            self._change(now_us, fact)
        while len(self._facts) > self._facts_max or self.held_bytes > self._bytes_max:
            self.crowded += 1
            self._drop_oldest()
        self.expire(now_us)

    def expire(self, now_us: int) -> None:
        """Drop what is too old. Call now and then, also while nothing is heard."""
        while self._facts and now_us - self._facts[0].heard_at > self._us_max:
            self.aged += 1
            self._drop_oldest()

    def settle(self, state: State, owner_heard_at: int) -> None:
        """Connections that heard nothing stand where the log stands. state: of the fold, the owner alive.

        owner_heard_at: own time at which the owner was heard last.
        """
        for key in sorted(self._unheard):
            run = self._runs[key][-1]
            if owner_heard_at - run.connected_at < SETTLED_US:
                continue
            subscription = state.status.subscriptions.get((int(Family.LOAD), *key))
            last = state.load.last_sequence(*key)
            if last is None or subscription is None or subscription.state != SubscriptionState.CONNECTED:
                continue
            run.begins, run.highest = last + 1, last
            self._unheard.discard(key)

    def run_that_joins(self, key: PublisherKey, last: int) -> Run | None:
        """The newest connection to a publisher of load that goes on behind the number `last`."""
        for run in reversed(self._runs.get(key, ())):
            if run.joins(last):
                return run
        return None

    # inside

    def _change(self, now_us: int, fact: SubscriptionChanged) -> None:
        key = PublisherKey(fact.namespace, fact.publisher_id)
        if fact.state == SubscriptionState.CONNECTED:
            self._begin(key, fact.connection, now_us)
        elif fact.state == SubscriptionState.ENDED:
            self._runs.pop(key, None)
            self._unheard.discard(key)

    def _begin(self, key: PublisherKey, connection: int, now_us: int) -> Run:
        run = Run(connection, now_us)
        self._runs.setdefault(key, deque(maxlen=RUNS_MAX)).append(run)
        self._unheard.add(key)
        return run

    def _hear(self, now_us: int, fact: SampleReceived) -> None:
        key = PublisherKey(fact.namespace, fact.publisher_id)
        runs = self._runs.get(key)
        run = runs[-1] if runs and runs[-1].connection == fact.connection else None
        if run is None:
            run = self._begin(key, fact.connection, now_us)
        if run.begins is None:
            run.begins = fact.covers_from
            self._unheard.discard(key)
        run.highest = max(run.highest, fact.sequence)

    def _drop_oldest(self) -> None:
        fact = self._facts.popleft().fact
        self.held_bytes -= _bytes_of(fact)
        if isinstance(fact, SampleReceived):
            for run in self._runs.get(PublisherKey(fact.namespace, fact.publisher_id), ()):
                if run.connection == fact.connection and run.begins is not None:
                    run.begins = max(run.begins, fact.sequence + 1)
        elif isinstance(fact, SubscriptionChanged) and fact.family == Family.LOAD:
            self._forget_before(fact)

    def _forget_before(self, fact: SubscriptionChanged) -> None:
        """What ended a connection cannot be told any more, so neither can what it heard."""
        runs = self._runs.get(PublisherKey(fact.namespace, fact.publisher_id))
        ended = fact.connection - (fact.state == SubscriptionState.CONNECTED)
        while runs and runs[0].connection <= ended:
            runs.popleft()
        if runs is not None and not runs:
            self._unheard.discard(PublisherKey(fact.namespace, fact.publisher_id))
            del self._runs[PublisherKey(fact.namespace, fact.publisher_id)]


def _bytes_of(fact: Fact) -> int:
    if isinstance(fact, KvBatchReceived):
        return FACT_BYTES + len(fact.heads) + len(fact.hashes)
    return FACT_BYTES


assert HELD_FRAMES_US_MAX > 4 * SETTLED_US, "a takeover of three seconds finds all that was heard"
