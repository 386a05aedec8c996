"""What happened, as counters: notices of the fold, what ingest left out, what the router did.

Gauges, which say how things stand, are made at each scrape by `observe_state`; the lines of
the process log by `observe_lines`. Every label value here comes from an enum of ours and
every combination exists from the start at 0, so nothing that a client or the fleet writes
can make a series (MET-12), and an alert on `rate()` sees the first event.

Counters cannot be rebuilt from the log where they count what never came into it (frames
and keys refused at ingest, requests, retries); the others count what this process folded.

Calls come from the event loop, cost about a microsecond and never raise.

Sources: requirement rows MET-01..13, PICK-11; continuum.md T3, T8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import generate_latest

from app.exposition import tell_build
from app.observe_kv import KvCounters
from app.observe_lines import NoticeLines
from app.observe_state import StateSource, StateText
from app.quick_metrics import Count, Observations, QuickCounter, QuickHistogram
from projections.bounds import SECOND_US
from projections.events.picks import Phase, PickMade, PickReason
from projections.notices import (
    DiscoveryKind,
    DiscoveryNotice,
    FleetPublished,
    FrameResult,
    IntakeNotice,
    IntakeResult,
    KvEventResult,
    KvNotice,
    Notice,
    SampleNotice,
    WorkersDeparted,
)
from router.ingress.errors import ErrorCode
from router.metrics import ErrorPhase, Route, RoutingPath
from router.prompt.artifact_set import ArtifactResult

SLICE_PIECES: Final = 256  # made between two turns of the event loop, about half a millisecond
FOLDED_STEP_MAX: Final = 4096  # offsets jump by up to 2^20 after a recovery; no slice is this long

_PICK_BUCKETS_S: Final = (50e-6, 100e-6, 150e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 100e-3)
_APPEND_BUCKETS_S: Final = (0.5e-3, 1e-3, 2e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 1.0, 5.0)
_AGE_BUCKETS_S: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_ANSWER_BUCKETS_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)

_REASONS: Final[dict[Phase, tuple[PickReason, ...]]] = {
    Phase.PREFILL: (
        PickReason.LOAD,
        PickReason.ROUND_ROBIN_STALE,
        PickReason.NO_PREFILL_POOL,
        PickReason.KV_AWARE,
        PickReason.CONDITIONAL_BYPASS,
    ),
    Phase.DECODE: (PickReason.LOAD, PickReason.ROUND_ROBIN_STALE, PickReason.KV_AWARE),
}
"""Reasons that the metric has. `no_candidate` is in the log alone (decision 38)."""

STATUS_CLASSES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx")


class RestartCause(Enum):
    """Why a fold started anew."""

    CONDEMNED = "condemned"
    DISAGREED = "disagreed"
    OVERTAKEN = "overtaken"
    OTHER = "other"


class ReloadResult(Enum):
    """What became of a changed configuration."""

    ADOPTED = "adopted"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


class Observer:
    """Implements `router.metrics.RouterMetrics` and `app.ingest_side.IngestMetrics`."""

    def __init__(self, lines: NoticeLines | None = None) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.source: StateSource | None = None
        self.is_quiet = False  # while a fold catches up: old news is counted, not told
        self._lines = lines or NoticeLines()
        self._scrape: asyncio.Task[bytes] | None = None
        self._folded_offset: int | None = None
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the `_created` twins would double the series
        ProcessCollector(registry=self.registry)
        self._make_fleet_counters()
        self._make_router_counters()
        self._make_log_counters()
        self._kv = KvCounters(self.registry)

    # Making them ---------------------------------------------------------------------

    def _make_fleet_counters(self) -> None:
        self._discovery = self._enum_counter(
            "continuum_dynamo_discovery_events_total", "Discovery events by kind.", "kind", DiscoveryKind
        )
        self._load = self._enum_counter(
            "continuum_dynamo_load_events_total",
            "Frames of load publishers by result.",
            "result",
            FrameResult,
        )
        self._intake = self._enum_counter(
            "picklog_records_without_effect_total", "Records that changed nothing.", "result", IntakeResult
        )
        self._departed = self._counter("picklog_workers_departed_total", "Workers that left the fleet.")
        self._published = self._counter("picklog_fleet_changes_total", "Changes of the published fleet.")

    def _make_router_counters(self) -> None:
        pairs = [(phase, reason) for phase, reasons in _REASONS.items() for reason in reasons]
        selection = QuickCounter(
            self.registry,
            "continuum_dynamo_selection_total",
            "Picks by role and reason.",
            ("role", "reason"),
            [(phase.label, reason.label) for phase, reason in pairs],
        )
        self._selection: dict[tuple[int, int], Count] = {
            (phase, reason): selection.series[phase.label, reason.label] for phase, reason in pairs
        }
        self._routed = self._enum_counter(
            "disaggregated_requests_total", "Requests that were sent, by path.", "routing_path", RoutingPath
        )
        self._failed = self._enum_counter(
            "disaggregated_errors_total", "Pinned dispatches that went wrong.", "phase", ErrorPhase
        )
        self._unlogged = self._counter(
            "picks_unlogged_total", "Answers begun before their pick was acknowledged by the log."
        )
        answered = [(route, status) for route in Route for status in STATUS_CLASSES]
        answers = QuickCounter(
            self.registry,
            "picklog_answers_total",
            "Answered requests.",
            ("route", "status"),
            [(route.value, status) for route, status in answered],
        )
        self._answers = {(route, status): answers.series[route.value, status] for route, status in answered}
        self._errors = self._enum_counter(
            "picklog_errors_total", "Answers that are errors of this router.", "code", ErrorCode
        )
        self._retries = self._counter("picklog_retries_total", "Further replicas tried with the same pins.")
        self._unusable = self._counter(
            "picklog_frontend_unusable_total", "404s of frontends for models that the fleet serves."
        )
        seconds = QuickHistogram(
            self.registry,
            "picklog_answer_seconds",
            "From acceptance to the end of the answer.",
            _ANSWER_BUCKETS_S,
            "route",
            [route.value for route in Route],
        )
        self._answer_seconds = {route: seconds.series[route.value] for route in Route}
        self._pick_seconds = self._histogram(
            "picklog_pick_seconds", "Question, pick and record of one request.", _PICK_BUCKETS_S
        )
        self._input_age = self._histogram(
            "picklog_pick_input_age_seconds", "Age of the picked decode rank's sample.", _AGE_BUCKETS_S
        )
        self._no_input = self._counter(
            "picklog_picks_without_sample_total", "Picks of a decode rank that has no sample."
        )

    def _make_log_counters(self) -> None:
        self._append_seconds = self._histogram(
            "picklog_append_seconds", "From the append of a record to its durable receipt.", _APPEND_BUCKETS_S
        )
        self._lost = self._counter(
            "picklog_appends_lost_total", "Own records that the log did not take, shed ones included."
        )
        self._folded = self._counter("picklog_folded_records_total", "Records folded by this process.")
        self._restarts = self._enum_counter(
            "picklog_fold_restarts_total", "Folds that started anew.", "reason", RestartCause
        )
        self._stalls = self._counter(
            "picklog_stalls_total", "Times that this process stood still for over a second."
        )
        self._reloads = self._enum_counter(
            "picklog_config_reloads_total", "Changed configurations.", "result", ReloadResult
        )
        tell_build(self.registry)

    def _counter(self, name: str, text: str) -> Count:
        return QuickCounter(self.registry, name, text).series[()]

    def _enum_counter(self, name: str, text: str, label: str, values: Iterable[Any]) -> dict[Any, Count]:
        members = list(values)
        labels = [(_label(value),) for value in members]
        series = QuickCounter(self.registry, name, text, (label,), labels).series
        return {value: series[key] for value, key in zip(members, labels, strict=True)}

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Observations:
        return QuickHistogram(self.registry, name, text, bounds).series[""]

    # What the fold and ingest tell ---------------------------------------------------

    def on_notices(self, notices: Sequence[Notice]) -> None:
        """Count what a slice of the fold told, and write the lines of it; of new fleets the last one."""
        frames: dict[FrameResult, int] = {}
        published: FleetPublished | None = None
        for notice in notices:
            if isinstance(notice, SampleNotice):
                result = notice.result
                frames[result] = frames.get(result, 0) + max(0, notice.times)
                if result is FrameResult.APPLIED:
                    continue
            else:
                self._count(notice)
            if isinstance(notice, FleetPublished):
                published = notice
            elif not self.is_quiet and not _is_everyday(notice):
                self._lines.tell(notice)
        if published is not None and not self.is_quiet:
            self._lines.tell(published)
        for result, times in frames.items():
            self._load[result].inc(times)

    def _count(self, notice: Notice) -> None:
        if isinstance(notice, DiscoveryNotice):
            self._discovery[notice.kind].inc(max(0, notice.times))
        elif isinstance(notice, IntakeNotice):
            self._intake[notice.result].inc()
        elif isinstance(notice, KvNotice):
            self._kv.noticed(notice)
        elif isinstance(notice, WorkersDeparted):
            self._departed.inc(len(notice.workers))
        elif isinstance(notice, FleetPublished):
            self._published.inc()

    def discovery_refused(self, notice: DiscoveryNotice) -> None:
        """A key or value was left out at ingest: it never reaches the fold."""
        self.on_notices((notice,))

    def noticed(self, notice: Notice) -> None:
        """Something at ingest that people should read."""
        self.on_notices((notice,))

    # What the log's dealings tell ----------------------------------------------------

    def appended(self, duration_us: int) -> None:
        """An own record became durable, this long after it was handed over."""
        self._append_seconds.observe(duration_us / SECOND_US)

    def append_lost(self) -> None:
        """An own record was shed or lost."""
        self._lost.inc()

    def folded(self, offset: int) -> None:
        """The fold stands at `offset`. Call after each slice."""
        before = self._folded_offset
        self._folded_offset = offset
        if before is not None and offset > before:
            self._folded.inc(min(offset - before, FOLDED_STEP_MAX))

    def fold_restarted(self, reason: str) -> None:
        """The fold starts anew (`app.tail.Restart.reason`)."""
        self._folded_offset = None
        known = {cause.value: cause for cause in RestartCause}
        self._restarts[known.get(reason, RestartCause.OTHER)].inc()

    def stood_still(self, duration_us: int) -> None:
        """The event loop did not turn for this long (decision 46)."""
        self._stalls.inc()
        self._lines.stood_still(duration_us)

    def config_read(self, result: ReloadResult) -> None:
        """A changed configuration was read."""
        self._reloads[result].inc()

    # RouterMetrics -------------------------------------------------------------------

    def picked(self, pick: PickMade, pick_us: int, input_age_us: int | None) -> None:
        """See RouterMetrics."""
        self._pick_seconds.observe(pick_us / SECOND_US)
        outcome = pick.outcome
        for phase, decided in ((Phase.PREFILL, outcome.prefill), (Phase.DECODE, outcome.decode)):
            child = self._selection.get((phase, decided.reason))
            if child is not None:
                child.inc()
        self._kv.picked(pick)
        if outcome.decode.chosen is None:
            return
        if input_age_us is None:
            self._no_input.inc()
        else:
            self._input_age.observe(input_age_us / SECOND_US)

    def routed(self, path: RoutingPath) -> None:
        """See RouterMetrics."""
        self._routed[path].inc()

    def failed(self, phase: ErrorPhase) -> None:
        """See RouterMetrics."""
        self._failed[phase].inc()

    def pick_unlogged(self) -> None:
        """See RouterMetrics."""
        self._unlogged.inc()

    def answered(self, route: Route, status: int, code: ErrorCode | None, duration_us: int) -> None:
        """See RouterMetrics."""
        status_class = STATUS_CLASSES[min(max(status // 100, 1), 5) - 1]
        self._answers[route, status_class].inc()
        self._answer_seconds[route].observe(duration_us / SECOND_US)
        if code is not None:
            self._errors[code].inc()

    def retried(self) -> None:
        """See RouterMetrics."""
        self._retries.inc()

    def replica_unusable(self) -> None:
        """See RouterMetrics."""
        self._unusable.inc()

    def artifact(self, result: ArtifactResult) -> None:
        """See RouterMetrics."""
        self._kv.artifact(result)

    def prediction_checked(self, predicted: int, held: int) -> None:
        """See RouterMetrics."""
        self._kv.prediction_checked(predicted, held)

    def cached_compared(self, predicted_tokens: int, reported_tokens: int) -> None:
        """See RouterMetrics."""
        self._kv.cached_compared(predicted_tokens, reported_tokens)

    # Scrapes -------------------------------------------------------------------------

    async def text(self) -> bytes:
        """All metrics in Prometheus' text format.

        Scrapes at the same time share one: the path needs no key, so asking often must not
        cost more. Gives the event loop back every few hundred lines.
        """
        if self._scrape is None:
            self._scrape = asyncio.get_running_loop().create_task(self._text())
            self._scrape.add_done_callback(self._scraped)
        return await asyncio.shield(self._scrape)

    def _scraped(self, task: asyncio.Task[bytes]) -> None:
        self._scrape = None
        if not task.cancelled():
            task.exception()  # the waiting ones have it; without any it is told by none

    async def _text(self) -> bytes:
        parts: list[str] = []
        if self.source is not None:
            for step, part in enumerate(StateText(self.source).parts(), 1):
                parts.append(part)
                if step % SLICE_PIECES == 0:
                    await asyncio.sleep(0)
        state = "".join(parts).encode()
        return await asyncio.to_thread(generate_latest, self.registry) + state


def _is_everyday(notice: Notice) -> bool:
    """Block events that were applied: thousands a second, and nothing to tell."""
    return isinstance(notice, KvNotice) and notice.result is KvEventResult.APPLIED


def _label(value: Any) -> str:
    """The spelling of a member in metrics: `label` where it has one, else its text."""
    label = getattr(value, "label", None)
    return label if isinstance(label, str) else str(value.value)
