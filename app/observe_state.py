"""How things stand, as gauges: made from the fold and its surroundings at each scrape.

Nothing is kept between scrapes, so a worker that left has no series at the very next one
(STORE-15). The text is made piece by piece, without sorting, and the caller gives the event
loop back between pieces: a fleet of 16,384 workers is scraped without holding up a request.

Labels: configured namespaces (at most 16), configured backend names, worker ids in hex,
ranks in decimal, and closed words. No address (MET-13).

Sources: requirement rows MET-02, 03, 05, 06; STORE-15; continuum.md T3, T8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from app.tail import StopReason, Tail
from projections.bounds import SECOND_US
from projections.events.signals import Family, SubscriptionState, Transport
from projections.fold import Fold
from projections.load.store import HeldSample
from projections.registry.fleet import Role
from projections.registry.keyspace import KEYSPACE_LABELS
from projections.registry.records import TOPICS
from router.dispatch.breaker import BreakerState
from router.dispatch.shim_pools import Health, Replica
from router.prompt.self_check import MatchState

OTHER_NAMESPACE: Final = "other"  # of workers whose namespace is not configured any more
ROOMS: Final = ("plenty", "reserve", "none")
_STATES: Final = tuple(state for state in SubscriptionState if state is not SubscriptionState.ENDED)
_STATE_LABELS: Final = {int(state): state.label for state in _STATES}
_TRANSPORT_LABELS: Final = {int(transport): transport.label for transport in Transport}


class BackendState(NamedTuple):
    """One configured backend."""

    name: str
    health: Health
    breaker: BreakerState
    in_flight: int


class LogFigures(NamedTuple):
    """The log as its owner knows it; a reader leaves out what it does not know (None, ()).

    stored_bytes, ceiling_bytes: of segments and of retention. horizon_us: how long a
    record lasts. room: one of ROOMS. pending_bytes, pending_picks: appended and not durable.
    shed: (importance, facts) since start, importances in lower case. overlay: own picks and
    ends that the fold does not hold yet. routers, turned_away: see `log_access.StoreFigures`.
    spool_bytes, spool_records: of the disk, and facts on it, of an owner with a spool. owns: whether
    this process owns the log now.
    """

    first_offset: int
    end_offset: int
    stored_bytes: int | None = None
    ceiling_bytes: int | None = None
    horizon_us: int | None = None
    room: str | None = None
    pending_bytes: int | None = None
    pending_picks: int | None = None
    shed: tuple[tuple[str, int], ...] = ()
    overlay: int | None = None
    routers: int | None = None
    turned_away: int | None = None
    spool_bytes: int | None = None
    spool_records: int | None = None
    owns: bool | None = None


class StateSource(Protocol):
    """Where gauges are read from. Given by wiring; calls are cheap and on the event loop."""

    @property
    def tail(self) -> Tail:
        """The reader of this process, with its fold."""

    def now_us(self) -> int:
        """Monotonic time as the tail is given it."""

    def wall_us(self) -> int:
        """Unix time, microseconds."""

    def is_ready(self) -> bool:
        """What `/ready` says."""

    def backends(self) -> Sequence[BackendState]:
        """Every configured backend, see `backend_states`."""

    def log_figures(self) -> LogFigures:
        """The log and this process's writer."""

    def checkpoint_time(self) -> int | None:
        """Log time of the newest checkpoint, None before the first."""

    def match_states(self) -> Sequence[MatchState]:
        """How well predicted blocks matched, by model; none where no prompt is read."""


def backend_states(replicas: Iterable[Replica], now_us: int) -> list[BackendState]:
    """States of a pool table's replicas. now_us: the loop's time, as breakers are given it."""
    return [BackendState(one.name, one.health, one.breaker.state(now_us), one.in_flight) for one in replicas]


class StateText:
    """One scrape. `parts` may be drawn over several turns of the event loop."""

    def __init__(self, source: StateSource) -> None:
        self._source = source
        self._fold: Fold = source.tail.fold
        settings = self._fold.settings_now
        names = settings.pick.namespaces if settings is not None else ()
        self._namespaces = {name: _escaped(name) for name in names}

    def parts(self) -> Iterator[str]:
        """The text, in pieces of one line or a few."""
        yield from self._reader()
        yield from self._log()
        yield from self._fleet()
        yield from self._subscriptions()
        yield from self._projections()
        yield from self._backends()
        yield from self._workers()

    def _reader(self) -> Iterator[str]:
        source, tail = self._source, self._source.tail
        now_us = source.now_us()
        yield _gauge("picklog_ready", "Whether /ready says 200.", int(source.is_ready()))
        yield _gauge("picklog_log_away", "Nothing comes back from the log.", int(tail.is_log_away(now_us)))
        yield _gauge("picklog_log_lag_seconds", "Newest round trip of an own ping.", tail.lag_us / SECOND_US)
        yield _head("picklog_fold_stopped", "Whether the fold has stopped, by cause.")
        for reason in StopReason:
            if reason is not StopReason.NONE:
                yield f'picklog_fold_stopped{{reason="{reason.value}"}} {int(tail.stopped is reason)}\n'
        drift_us = source.wall_us() - tail.log_time(now_us)
        yield _gauge("picklog_clock_drift_seconds", "Wall clock minus log time.", drift_us / SECOND_US)
        written_at = source.checkpoint_time()
        if written_at is not None:
            age_us = max(0, self._fold.state.intake.stamp - written_at)
            text = "Log time since the newest checkpoint."
            yield _gauge("picklog_checkpoint_age_seconds", text, age_us / SECOND_US)

    def _log(self) -> Iterator[str]:
        figures = self._source.log_figures()
        behind = max(0, figures.end_offset - 1 - self._fold.mark.offset)
        yield _gauge("picklog_log_end_offset", "One past the newest record.", figures.end_offset)
        yield _gauge("picklog_log_first_offset", "Oldest record kept.", figures.first_offset)
        yield _gauge("picklog_fold_offset", "Newest record folded.", self._fold.mark.offset)
        yield _gauge("picklog_log_lag_records", "Records committed and not folded.", behind)
        horizon_s = None if figures.horizon_us is None else figures.horizon_us / SECOND_US
        for name, text, value in (
            ("log_horizon_seconds", "How long a record is kept at the present rate.", horizon_s),
            ("picklog_log_bytes", "Segments on disk, as far as they are written.", figures.stored_bytes),
            ("picklog_log_bytes_max", "Ceiling of retention.", figures.ceiling_bytes),
            ("picklog_append_pending_bytes", "Appended and not durable.", figures.pending_bytes),
            ("picklog_append_pending_picks", "Picks appended and not durable.", figures.pending_picks),
            ("picklog_spool_bytes", "Disk that the spool takes.", figures.spool_bytes),
            ("picklog_spool_records", "Facts that wait in the spool.", figures.spool_records),
            ("picklog_own_unfolded", "Own picks and ends that the fold lacks.", figures.overlay),
            (
                "picklog_owns_log",
                "1 while this process owns the log.",
                None if figures.owns is None else int(figures.owns),
            ),
            ("picklog_owner_routers", "Other processes that append through this one.", figures.routers),
        ):
            if value is not None:
                yield _gauge(name, text, value)
        if figures.turned_away is not None:
            name = "picklog_owner_turned_away_total"
            yield _head(name, "Connections of such processes that were refused.", "counter")
            yield f"{name} {figures.turned_away}\n"
        if figures.room is not None:
            yield _head("picklog_log_room", "Room for further records.")
            for room in ROOMS:
                yield f'picklog_log_room{{room="{room}"}} {int(room == figures.room)}\n'
        if figures.shed:
            yield _head("picklog_shed_total", "Facts left out for want of room.", "counter")
            for importance, facts in figures.shed:
                yield f'picklog_shed_total{{importance="{importance}"}} {facts}\n'

    def _fleet(self) -> Iterator[str]:
        registry = self._fold.state.registry
        enabled = self._fold.state.status.is_enabled()
        connected = enabled and bool(self._namespaces) and all(map(registry.is_connected, self._namespaces))
        text = "Discovery has read every configured namespace and watches it."
        yield _gauge("continuum_dynamo_discovery_connected", text, int(connected))
        yield _gauge("picklog_fleet_generation", "Number of the published fleet.", registry.generation)
        fleet = registry.fleet
        counts = dict.fromkeys(((name, role) for name in self._namespaces.values() for role in Role), 0)
        for step, worker in enumerate(fleet.workers.values()):
            pair = (self._namespaces.get(worker.key.namespace, OTHER_NAMESPACE), worker.role)
            counts[pair] = counts.get(pair, 0) + 1
            if step % 16 == 15:
                yield ""
        yield _head("continuum_dynamo_workers", "Published workers.")
        for (namespace, role), number in counts.items():
            labels = f'namespace="{namespace}",role="{role.label}"'
            yield f"continuum_dynamo_workers{{{labels}}} {number}\n"
        topics = dict.fromkeys(TOPICS, 0)
        for publisher in fleet.publishers:
            if publisher.topic in topics:
                topics[publisher.topic] += 1
        yield _head("picklog_publishers", "Published publishers.")
        for topic, number in topics.items():
            yield f'picklog_publishers{{topic="{topic}"}} {number}\n'

    def _subscriptions(self) -> Iterator[str]:
        pairs = [(state, transport) for state in _STATE_LABELS for transport in _TRANSPORT_LABELS]
        counts = {family: dict.fromkeys(pairs, 0) for family in (int(Family.LOAD), int(Family.KV))}
        for step, held in enumerate([*self._fold.state.status.subscriptions.values()]):
            pair = (held.state, held.transport)
            if pair in counts.get(held.family, ()):
                counts[held.family][pair] += 1
            if step % 16 == 15:
                yield ""
        for family, name in ((Family.LOAD, "load"), (Family.KV, "kv")):
            metric = f"continuum_dynamo_{name}_subscriptions"
            yield _head(metric, "Subscriptions to publishers.")
            for (state, transport), number in counts[int(family)].items():
                labels = f'state="{_STATE_LABELS[state]}",transport="{_TRANSPORT_LABELS[transport]}"'
                yield f"{metric}{{{labels}}} {number}\n"

    def _projections(self) -> Iterator[str]:
        state = self._fold.state
        registry, keyspaces = state.registry, state.registry.keyspaces
        yield _head("picklog_projection_entries", "Entries held, by projection.")
        sizes = {
            **{f"keys_{label}": keyspaces.count(number) for number, label in KEYSPACE_LABELS.items()},
            "workers": len(registry.fleet.workers),
            "publishers": len(registry.fleet.publishers),
            "samples": len(state.load),
            "ledger_lines": len(state.ledger),
            "kv_nodes": sum(index.nodes for index in state.kv.indexes),
            "kv_ownerships": sum(index.ownerships for index in state.kv.indexes),
            "subscriptions": len(state.status.subscriptions),
            "writers": len(state.intake.writers),
            "replicas": len([*state.status.replicas()]),
        }
        for projection, number in sizes.items():
            yield f'picklog_projection_entries{{projection="{projection}"}} {number}\n'
        yield _gauge("picklog_cards_bytes", "Opaque cards held.", keyspaces.value_bytes)
        settings = self._fold.settings_now
        states = [state for state in self._source.match_states() if state.ratio is not None]
        ratio = min((state.ratio for state in states if state.ratio is not None), default=1.0)
        text = "Least share of predicted blocks that workers report."
        yield _gauge("picklog_kv_match_ratio", text, ratio)
        mismatched = sum(not state.is_trusted for state in states)
        yield _gauge("picklog_kv_models_mismatched", "Models whose picks go by load for it.", mismatched)
        yield from self._models(states)
        version = settings.version if settings is not None else 0
        yield _gauge("picklog_config_version", "Settings in force.", version)

    def _models(self, states: Iterable[MatchState]) -> Iterator[str]:
        """Per-model shares, of models that were checked often enough: at most `self_check.MODELS_MAX`."""
        yield _head(
            "picklog_kv_model_match_ratio", "Share of a model's predicted blocks that workers report."
        )
        for state in states:
            yield f'picklog_kv_model_match_ratio{{model="{_escaped(state.model)}"}} {state.ratio}\n'

    def _backends(self) -> Iterator[str]:
        found = [(_escaped(one.name), one) for one in self._source.backends()]
        yield _head("picklog_backend_in_flight", "Requests in flight.")
        for name, one in found:
            yield f'picklog_backend_in_flight{{backend="{name}"}} {one.in_flight}\n'
        yield _head("picklog_backend_health", "What probes say.")
        for name, one in found:
            yield _one_hot("picklog_backend_health", name, Health, one.health)
        yield _head("picklog_breaker_state", "Where the breaker stands.")
        for name, one in found:
            yield _one_hot("picklog_breaker_state", name, BreakerState, one.breaker)

    def _workers(self) -> Iterator[str]:
        """Per-rank samples. The fold may change between two pieces: a worker that left is skipped."""
        for place, name, text in (
            (3, "continuum_dynamo_worker_active_decode_blocks", "Decode blocks in use, as reported."),
            (4, "continuum_dynamo_worker_active_prefill_tokens", "Prompt tokens waiting, as reported."),
            (5, "continuum_dynamo_worker_kv_used_blocks", "KV blocks in use, as reported."),
        ):
            yield _head(name, text)
            workers = self._fold.state.load.workers
            for key in [*workers]:
                held = workers.get(key)
                namespace = self._namespaces.get(key[0])
                if held is None or namespace is None or not held.samples:
                    yield ""
                    continue
                labels = f'{name}{{namespace="{namespace}",worker="{key[1]:x}",dp_rank="'
                yield "".join(
                    f'{labels}{dp_rank}"}} {sample[place]}\n'
                    for dp_rank, sample in held.samples.items()
                    if sample[place] is not None
                )


def _gauge(name: str, text: str, value: float) -> str:
    return f"{_head(name, text)}{name} {value}\n"


def _one_hot(metric: str, backend: str, states: Iterable[Enum], now: Enum) -> str:
    """One line a state, 1 for the one that holds."""
    return "".join(
        f'{metric}{{backend="{backend}",state="{state.value}"}} {int(state is now)}\n' for state in states
    )


def _head(name: str, text: str, kind: str = "gauge") -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _escaped(value: str) -> str:
    """A label value as the text format wants it; what UTF-8 cannot hold is replaced."""
    plain = value.encode("utf-8", "replace").decode("utf-8")
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


assert HeldSample._fields[3:] == ("active_decode_blocks", "active_prefill_tokens", "kv_used_blocks")
