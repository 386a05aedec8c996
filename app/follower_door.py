"""What a follower that runs alone answers: `/health`, `/ready`, `/metrics` and its checkpoints.

A follower is ready once it has folded what the log held when it began, until its fold stops. Below
/admin there are checkpoints alone: it picks for nobody and adopts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import isnan
from typing import Any, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest

from app.admin_auth import AdminGate
from app.admin_checkpoints import CheckpointRoutes
from app.audit_figures import AuditCounters, AuditFigures
from app.config_model import Config
from app.config_rules import beyond_loopback
from app.exposition import CONTENT_TYPE, tell_build
from app.follower_figures import FollowerMetrics
from app.follower_standing import FIGURES, UNKNOWN
from app.tail import StopReason, Tail
from projections.bounds import SECOND_US
from projections.events.ports import CheckpointInfo, LogReader
from router.ingress.answers import error_answer
from router.ingress.chat import request_id_of
from router.ingress.errors import ErrorCode, RequestRefused
from router.ingress.http_server import build_application


class Followed(Protocol):
    """How a follower stands; `Follower` is one."""

    @property
    def tail(self) -> Tail | None:
        """Its fold, None before it begins."""

    @property
    def restarts(self) -> int:
        """Folds that were begun anew."""


class FollowerState:
    """Reads figures of one follower, on the event loop.

    newest: the newest checkpoint there is, whoever wrote it. audit: None where no audit is written.
    """

    def __init__(
        self, follower: Followed, reader: LogReader, newest: Callable[[], CheckpointInfo | None]
    ) -> None:
        self.audit: AuditFigures | None = None
        self._follower = follower
        self._reader = reader
        self._newest = newest
        self._aim = reader.end_offset()
        self._caught_up = False
        self._figures: dict[str, Callable[[], float]] = {
            "picklog_audit_lag_records": self.audit_lag_records,
            "picklog_audit_offset": self.audit_offset,
            "picklog_audit_lag_seconds": self.audit_lag_s,
            "picklog_follower_restarts": self.restarts,
        }
        assert self._figures.keys() == FIGURES.keys()

    def ready(self) -> dict[str, Any]:
        """The document of `/ready`."""
        tail = self._follower.tail
        missing: list[str] = []
        if tail is not None and tail.fold.mark.offset + 1 >= self._aim:
            self._caught_up = True
        if tail is not None and tail.stopped is not StopReason.NONE:
            missing.append(f"fold_{tail.stopped.value}")
        elif not self._caught_up:
            missing.append("caught_up")
        return {"ready": not missing, "missing": missing, "degraded": []}

    def offset(self) -> float:
        """Newest record folded."""
        tail = self._follower.tail
        return tail.fold.mark.offset if tail is not None else UNKNOWN

    def lag_records(self) -> float:
        """Records committed and not folded."""
        return self._behind(self.offset())

    def audit_lag_records(self) -> float:
        """Records committed whose rows are not written yet."""
        return self._behind(self.audit_offset())

    def audit_offset(self) -> float:
        """Newest record whose rows are written."""
        return UNKNOWN if self.audit is None else self.audit.offset

    def audit_lag_s(self) -> float:
        """Log time from the newest record whose rows are written to the newest one folded."""
        tail, audit = self._follower.tail, self.audit
        if audit is not None and self.audit_lag_records() == 0:
            return 0.0
        if tail is None or audit is None or not audit.at:
            return UNKNOWN
        return max(0, tail.fold.state.intake.stamp - audit.at) / SECOND_US

    def checkpoint_age_s(self) -> float:
        """Log time since the newest checkpoint."""
        tail, newest = self._follower.tail, self._newest()
        if tail is None or newest is None:
            return UNKNOWN
        return max(0, tail.fold.state.intake.stamp - newest.time) / SECOND_US

    def log_offsets(self) -> tuple[int, int]:
        """Oldest record kept, and one past the newest."""
        return self._reader.first_offset(), self._reader.end_offset()

    def restarts(self) -> int:
        """Folds that were begun anew."""
        return self._follower.restarts

    def figure(self, name: str) -> float:
        """One of follower_standing.FIGURES."""
        return self._figures[name]()

    def figures(self) -> dict[str, float]:
        """See Standing."""
        return {name: read() for name, read in self._figures.items()}

    def _behind(self, offset: float) -> float:
        """Committed records beyond an offset."""
        return UNKNOWN if isnan(offset) else max(0.0, self._reader.end_offset() - 1 - offset)


class FollowerRegistry:
    """The series of a follower that runs alone. told: takes the lines of those that ask picks again."""

    def __init__(self, state: FollowerState) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        self.told = FollowerMetrics(self.registry).take
        figures: dict[str, tuple[str, Callable[[], float]]] = {
            "picklog_ready": ("Whether /ready says 200.", lambda: float(state.ready()["ready"])),
            "picklog_fold_offset": ("Newest record folded.", state.offset),
            "picklog_log_first_offset": ("Oldest record kept.", lambda: state.log_offsets()[0]),
            "picklog_log_end_offset": ("One past the newest record.", lambda: state.log_offsets()[1]),
            "picklog_log_lag_records": ("Records committed and not folded.", state.lag_records),
            "picklog_checkpoint_age_seconds": (
                "Log time since the newest checkpoint; NaN before the first.",
                state.checkpoint_age_s,
            ),
            **{name: (text, partial(state.figure, name)) for name, text in FIGURES.items()},
        }
        for name, (text, read) in figures.items():
            Gauge(name, text, registry=self.registry).set_function(read)
        tell_build(self.registry)
        self.registry.register(AuditCounters(lambda: state.audit))


def follower_application(
    config: Config, state: FollowerState, registry: CollectorRegistry, checkpoints: CheckpointRoutes
) -> web.Application:
    """Everything that a follower serves."""

    async def ready(_: web.Request) -> web.StreamResponse:
        document = state.ready()
        return web.json_response(document, status=200 if document["ready"] else 503)

    async def metrics(request: web.Request) -> web.StreamResponse:
        if not config.metrics.enabled:
            return error_answer(RequestRefused(ErrorCode.NOT_FOUND), request_id_of(request))
        text = generate_latest(registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    admin = web.Application()
    AdminGate(lambda: config.admin.auth, beyond_loopback(config) is None).open(admin, checkpoints.handlers())
    return build_application(None, {"/ready": ready, "/metrics": metrics}, admin)
