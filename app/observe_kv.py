"""Counters of prefix-aware picks: block events, artifacts, what the prefix term was worth and if it was true.

Kept by `observe.Observer`, whose rules hold here too: every series is there from the start, no
label is a text of the fleet. What was predicted is compared twice: with the events of the rank that
served (`picklog_kv_checked_blocks_total`), and with what the answer says was cached
(`picklog_cached_tokens_total`).

Sources: requirement rows MET-08, KVP-13, ART-10; contract, truth of predictions.
"""

from __future__ import annotations

from typing import Final, TypeVar

from prometheus_client import CollectorRegistry

from app.quick_metrics import Count, QuickCounter
from projections.events.picks import KvResult, PickMade
from projections.notices import KvEventResult, KvNotice
from router.prompt.artifact_set import ArtifactResult

Key = TypeVar("Key")
SELECTION_RESULTS: Final = (
    KvResult.OVERLAP,
    KvResult.NO_OVERLAP,
    KvResult.TOKENIZER_UNAVAILABLE,
    KvResult.PROMPT_TOO_LARGE,
    KvResult.RENDER_UNAVAILABLE,
    KvResult.ARTIFACT_UNPINNED,
    KvResult.BYPASS,
)
"""Results that the metric has; log and SQL know `unsupported` and `mismatched` too (KVP-13)."""


class KvCounters:
    """All counters of one observer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events: dict[KvEventResult, Count] = _counter(
            registry,
            "continuum_dynamo_kv_events_total",
            "Block events by result.",
            "result",
            {result: result.label for result in KvEventResult},
        )
        self._artifacts: dict[ArtifactResult, Count] = _counter(
            registry,
            "continuum_dynamo_kv_artifacts_total",
            "Tokenizers and templates by result.",
            "result",
            {result: result.value for result in ArtifactResult},
        )
        self._selection: dict[int, Count] = _counter(
            registry,
            "continuum_dynamo_kv_selection_total",
            "Prefix-aware picks by result.",
            "result",
            {int(result): result.label for result in SELECTION_RESULTS},
        )
        self._checked: dict[bool, Count] = _counter(
            registry,
            "picklog_kv_checked_blocks_total",
            "Predicted blocks of served prompts, by whether their rank reports them.",
            "result",
            {True: "confirmed", False: "missing"},
        )
        self._cached: dict[bool, Count] = _counter(
            registry,
            "picklog_cached_tokens_total",
            "Cached prompt tokens of answers that tell them, as predicted by picks and as reported.",
            "said_by",
            {True: "pick", False: "answer"},
        )

    def noticed(self, notice: KvNotice) -> None:
        """What became of block events at the fold."""
        self._events[notice.result].inc(max(0, notice.times))

    def picked(self, pick: PickMade) -> None:
        """One pick; nothing is counted where prefix-aware picks are off."""
        count = self._selection.get(pick.outcome.kv_result)
        if count is not None:
            count.inc()

    def artifact(self, result: ArtifactResult) -> None:
        """See RouterMetrics."""
        self._artifacts[result].inc()

    def prediction_checked(self, predicted: int, held: int) -> None:
        """See RouterMetrics."""
        self._checked[True].inc(held)
        self._checked[False].inc(predicted - held)

    def cached_compared(self, predicted_tokens: int, reported_tokens: int) -> None:
        """See RouterMetrics."""
        self._cached[True].inc(predicted_tokens)
        self._cached[False].inc(max(0, reported_tokens))


def _counter(
    registry: CollectorRegistry, name: str, text: str, label: str, labels: dict[Key, str]
) -> dict[Key, Count]:
    series = QuickCounter(registry, name, text, (label,), [(value,) for value in labels.values()]).series
    return {key: series[(value,)] for key, value in labels.items()}
