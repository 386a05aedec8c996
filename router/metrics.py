"""What the router reports to be counted, as method calls of one protocol.

`app.observe` implements it. Label values come from the enums here and from
`projections.events.picks`, so that no text of a client or of the fleet can become a label
(MET-12).
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from projections.events.picks import PickMade
from router.ingress.errors import ErrorCode
from router.prompt.artifact_set import ArtifactResult


class RoutingPath(Enum):
    """Which way a request went; also the value of X-Continuum-Routing-Path.

    A pinned pair, a pinned worker alone or an ordinary backend from the start, and the
    send to an ordinary backend after a pinned dispatch failed (continuum.md, routing path).
    """

    PAIR = "prefill_then_decode"
    UNIFIED = "unified"
    FALLBACK = "fallback"


class ErrorPhase(Enum):
    """Where a pinned dispatch went wrong; label of disaggregated_errors_total."""

    ORCHESTRATION = "orchestration"
    PREFILL = "prefill"
    DECODE = "decode"


class Route(Enum):
    """Which of our routes was asked; anything else is OTHER."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    MODELS = "/v1/models"
    HEALTH = "/health"
    OTHER = "other"


class RouterMetrics(Protocol):
    """Calls are made on the event loop, must not block and must not raise."""

    def picked(self, pick: PickMade, pick_us: int, input_age_us: int | None) -> None:
        """A pick was made: selection_total by phase and reason, pick latency.

        pick_us: microseconds for question, pick and record. input_age_us: age of the
        chosen decode rank's sample at the question, None without one.
        """

    def routed(self, path: RoutingPath) -> None:
        """disaggregated_requests_total{routing_path}: once for each request that was sent."""

    def failed(self, phase: ErrorPhase) -> None:
        """disaggregated_errors_total{phase}."""

    def pick_unlogged(self) -> None:
        """picks_unlogged_total: an answer went out before its pick was acknowledged."""

    def answered(self, route: Route, status: int, code: ErrorCode | None, duration_us: int) -> None:
        """A request was answered; `code` where the answer is an error of ours."""

    def retried(self) -> None:
        """Another replica was tried with the same pins."""

    def replica_unusable(self) -> None:
        """A frontend answered 404 for a model that the registry serves (Q25)."""

    def artifact(self, result: ArtifactResult) -> None:
        """kv_artifacts_total{result}: what became of a file or block size of a model."""

    def prediction_checked(self, predicted: int, held: int) -> None:
        """Of `predicted` blocks of a served prompt its rank reports the first `held`."""

    def cached_compared(self, predicted_tokens: int, reported_tokens: int) -> None:
        """An answer told how many prompt tokens were cached; the pick had predicted some."""


class NoMetrics:
    """Counts nothing: for tests and tools."""

    def picked(self, pick: PickMade, pick_us: int, input_age_us: int | None) -> None:
        """See RouterMetrics."""

    def routed(self, path: RoutingPath) -> None:
        """See RouterMetrics."""

    def failed(self, phase: ErrorPhase) -> None:
        """See RouterMetrics."""

    def pick_unlogged(self) -> None:
        """See RouterMetrics."""

    def answered(self, route: Route, status: int, code: ErrorCode | None, duration_us: int) -> None:
        """See RouterMetrics."""

    def retried(self) -> None:
        """See RouterMetrics."""

    def replica_unusable(self) -> None:
        """See RouterMetrics."""

    def artifact(self, result: ArtifactResult) -> None:
        """See RouterMetrics."""

    def prediction_checked(self, predicted: int, held: int) -> None:
        """See RouterMetrics."""

    def cached_compared(self, predicted_tokens: int, reported_tokens: int) -> None:
        """See RouterMetrics."""
