"""What the front door and the dispatch are set to: backends, pools, keys, deadlines.

One `RouterSettings` is one immutable value; a request captures the one in force when it is
accepted and uses it to its end (decision 28). `app.wiring` fills it from the configuration,
secrets included, so nothing here is ever printed.

All durations are integer microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from router.prompt.artifact_set import ArtifactSettings

SECOND_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """One OpenAI-wire server: a direct-mode frontend (shim replica) or an ordinary backend.

    name: shown in X-Continuum-Backend and `dispatch_ends.backend`.
    url: http(s)://host[:port][/prefix], no /v1 at its end.
    api_key: sent as a bearer token; None or "" sends no Authorization header (B-101).
    models: ids that it serves; empty means those that it lists.
    """

    name: str
    url: str
    api_key: str | None = field(default=None, repr=False)
    models: tuple[str, ...] = ()
    enabled: bool = True
    internal: bool = False


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The shim replicas of one Dynamo namespace, by backend name."""

    namespace: str
    backends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeySettings:
    """One client key. allowed_backends: names, None for all. expires_at_s: Unix seconds, None for never."""

    id: str
    key: str = field(repr=False)
    enabled: bool = True
    expires_at_s: float | None = None
    allowed_backends: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """How backends are probed. Source: specification, health checks; defaults are the reference product's."""

    enabled: bool = True
    path: str = "/v1/models"
    interval_us: int = 30 * SECOND_US
    timeout_us: int = 10 * SECOND_US
    unhealthy_threshold: int = 3
    healthy_threshold: int = 2
    warmup_interval_us: int = 1 * SECOND_US
    warmup_us_max: int = 300 * SECOND_US


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When a failing backend is left alone: failures in a row, and for how long."""

    enabled: bool = True
    failure_threshold: int = 5
    open_us: int = 30 * SECOND_US
    half_open_requests: int = 1


@dataclass(frozen=True, slots=True)
class DeadlineSettings:
    """Layered deadlines of one request; the inner one fires first (DYN-17).

    connect_us < first_byte_us < total_us is what a validator asks for; here the smaller
    of two that are due wins whatever their order. idle_us: silence inside an answer.
    body_us: for the client's body to arrive. output_wait_us: how long a client's first
    byte waits for the log before the outage rule (decision 32).
    retries_max: further replicas that are tried with the same pins.
    """

    total_us: int = 600 * SECOND_US
    connect_us: int = 5 * SECOND_US
    first_byte_us: int = 300 * SECOND_US
    idle_us: int = 300 * SECOND_US
    body_us: int = 60 * SECOND_US
    output_wait_us: int = 250_000
    retries_max: int = 2


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """How prompts are turned into blocks, where picks are prefix-aware.

    engine: minijinja or jinja2. match_ratio_min: share of predicted blocks that workers must
    confirm, 0..1. send_token_data: rendered tokens go along as nvext.token_data.
    keeps_all_hashes: questions record all hashes of a prompt (`log.questions: full`).
    """

    artifacts: ArtifactSettings = field(default_factory=ArtifactSettings)
    engine: str = "minijinja"
    match_ratio_min: float = 0.5
    send_token_data: bool = False
    keeps_all_hashes: bool = False


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """Everything that the router is told.

    keys_required: blocking mode, an unknown key gets 401.
    pinning: `disaggregated_serving.enabled` and `dynamo.enabled` together.
    prompt: None where no prompt is read.
    The model map is not here: it is part of the adopted `PickSettings`.
    """

    backends: tuple[BackendSettings, ...] = ()
    pools: tuple[PoolSettings, ...] = ()
    pinning: bool = False
    fallback_to_unified: bool = False
    allow_metadata_upload: bool = False
    keys: tuple[KeySettings, ...] = ()
    keys_required: bool = False
    body_bytes_max: int = 16 * 1024 * 1024
    deadlines: DeadlineSettings = DeadlineSettings()
    health: HealthSettings = HealthSettings()
    breaker: BreakerSettings = BreakerSettings()
    prompt: PromptSettings | None = None

    def pool_of(self, backend: str) -> str | None:
        """The namespace whose pool holds the backend, or None for an ordinary one."""
        for pool in self.pools:
            if backend in pool.backends:
                return pool.namespace
        return None
