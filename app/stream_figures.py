"""What a stream worker's `/metrics` says: what it has written since it began, and how far it is behind.

Where the partitions end is asked of the brokers, with the consumer that the group has, when somebody scrapes:
once in ASK_EVERY_S at most, one question at a time, whatever the number of scrapes. What the consumer
remembers of its fetches would cost nothing, but it stands still while the buffers are full, which is when
the figure is needed. A scrape waits for the answer for WAIT_S; then it says what was known before, and that
the brokers are away.

Partitions are the only labels of an open kind, and the topic has PARTITIONS of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from app.audit_database import AuditAway
from app.exposition import tell_build
from app.stream_worker import Peer, StreamWorker

log = structlog.get_logger("picklog.stream")

ASK_EVERY_S = 5.0
WAIT_S = 2.0  # Prometheus gives a scrape 10 s unless told otherwise

Ends = Callable[[Sequence[int]], Awaitable[Mapping[int, int]]]


class StreamFigures(Collector):
    """Figures of one worker, on its event loop.

    owned: partitions that the group gives this worker now, ascending. ends: asks the brokers for the offset
    behind the newest message of each; raises AuditAway.
    """

    def __init__(
        self,
        worker: StreamWorker,
        owned: Callable[[], Sequence[int]],
        ends: Ends,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._owned = owned
        self._ask_ends = ends
        self._now = now
        self._ends: dict[int, int] = {}
        self._asked_for: frozenset[int] = frozenset()  # partitions owned when the brokers were asked last
        self._looked_for: frozenset[int] = frozenset()  # and when the database told how far it has them
        self._asking: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._due_at = float("-inf")
        self._brokers_away = False
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        tell_build(self._registry)
        self._registry.register(self)

    async def text(self) -> bytes:
        """All figures in Prometheus' text format."""
        await self._ask()
        return generate_latest(self._registry)

    async def close(self) -> None:
        """Ask no more."""
        questions = [task for task in (self._asking, self._looking) if task is not None]
        for task in questions:
            task.cancel()
        await asyncio.gather(*questions, return_exceptions=True)

    def lags(self) -> dict[int, int]:
        """Of each owned partition the messages that are not written yet, as far as that is known."""
        positions = self._worker.positions
        return {
            partition: max(0, self._ends[partition] - positions[partition])
            for partition in self._owned()
            if partition in self._ends and partition in positions
        }

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        worker = self._worker
        yield _gauge("picklog_stream_partitions", "Partitions that the worker has.", len(self._owned()))
        for name, text, count in (
            ("messages_written", "Messages written, unreadable ones included.", worker.written),
            ("messages_fetched", "Messages that were not delivered, and read directly.", worker.fetched),
            ("messages_refused", "Messages passed over as unreadable.", worker.refused),
            ("rows", "Rows of the messages written.", worker.rows),
        ):
            counter = CounterMetricFamily(f"picklog_stream_{name}_total", text)
            counter.add_metric((), count)
            yield counter
        lag = GaugeMetricFamily(
            "picklog_stream_lag_messages", "Messages not written yet.", labels=("partition",)
        )
        for partition, messages in self.lags().items():
            lag.add_metric((str(partition),), messages)
        yield lag
        yield _gauge(
            "picklog_stream_batch_age_seconds",
            "Since a batch was last written; before the first, since the worker began.",
            self._now() - worker.written_at,
        )
        away = GaugeMetricFamily("picklog_stream_away", "Whether it cannot be reached.", labels=("peer",))
        for peer in Peer:
            is_away = peer in worker.away or (peer is Peer.BROKERS and self._brokers_away)
            away.add_metric((peer.value,), int(is_away))
        yield away

    # -- what others have to be asked --------------------------------------------------

    async def _ask(self) -> None:
        """Ask what is due, and wait for the answers for a while."""
        owned = frozenset(self._owned())
        is_due = self._now() >= self._due_at or not self._asked_for >= owned
        if owned and is_due and _is_idle(self._asking):
            self._asking = asyncio.create_task(self._ask_brokers(owned))
        if not self._looked_for >= owned and _is_idle(self._looking):
            self._looking = asyncio.create_task(self._look(owned))
        questions = [task for task in (self._asking, self._looking) if task is not None]
        if questions:
            done, _ = await asyncio.wait(questions, timeout=WAIT_S)
            for task in done:
                task.result()
        if not _is_idle(self._asking):
            self._brokers_away = True

    async def _ask_brokers(self, owned: frozenset[int]) -> None:
        self._asked_for = owned
        try:
            self._ends = dict(await self._ask_ends(sorted(owned)))
            self._brokers_away = False
        except AuditAway as problem:
            self._brokers_away = True
            log.debug("the ends of the partitions are not known", cause=str(problem))
        self._due_at = self._now() + ASK_EVERY_S

    async def _look(self, owned: frozenset[int]) -> None:
        """Others may have written the partitions that are new here. While the database is away: next time."""
        with suppress(AuditAway):  # the worker tells it
            await self._worker.look()
            self._looked_for = owned


def _is_idle(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
