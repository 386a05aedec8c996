"""What `GET /admin/dynamo/workers` says, made row by row from a published fleet.

A fleet never changes, so the rows may be made over several turns of the event loop. What a
worker's transport, a publisher's socket or a card says is never among them; of a
`disaggregated_endpoint` the numbers are shown and the texts, which name hosts, are masked.
Times are log times; the log's clock was set by the wall clock when the log was created.

Sources: requirement rows ADM-02..08, RED-23; specification, "Observability".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

from app.config_dynamo import DiscoverySource
from app.config_model import MASK, Config
from app.marks import time_text
from ingest.subscriptions.engine_bindings import EngineRow
from ingest.subscriptions.families import engine_publisher_id
from projections.events.held import PublisherHeld
from projections.events.signals import Family, SubscriptionState, Transport
from projections.fold import Fold
from projections.registry.fleet import Fleet, Worker
from projections.registry.records import KV_EVENTS, KV_METRICS
from router.prompt.self_check import MatchState

FAMILY_NAMES: Final = {int(Family.LOAD): KV_METRICS, int(Family.KV): KV_EVENTS}
_STATES: Final = {int(state): state.label for state in SubscriptionState}
_TRANSPORTS: Final = {int(transport): transport.label for transport in Transport}
_EXTRAS_OF: Final = {DiscoverySource.ETCD: frozenset(("etcd", "etcd3"))}


def is_source_installed(config: Config, extras: frozenset[str]) -> bool:
    """Whether the extra that the configured source needs is installed; some need none."""
    needed = _EXTRAS_OF.get(config.dynamo.discovery.source)
    return needed is None or bool(needed & extras)


def workers_pieces(
    fold: Fold,
    config: Config,
    is_active: bool,
    matches: Sequence[MatchState] = (),
    engines: Sequence[EngineRow] = (),
) -> Iterator[bytes]:
    """The document's JSON text in pieces of one row.

    is_active: this installation can run discovery of the configured source. What is in force
    is what the log adopted; before the first adoption, the file's settings.
    matches: how true predicted blocks were, by model. engines: which worker each configured engine
    belongs to, as far as this process listens to the fleet.
    """
    settings = fold.settings_now
    enabled = is_active and settings is not None and settings.enabled
    source = settings.pick.source if settings is not None else str(config.dynamo.discovery.source)
    configured = config.dynamo.discovery.namespaces
    adopted = settings.pick.namespaces if settings is not None else ()
    # the log keeps them sorted; the file's order says which one is first
    namespaces = list(configured if not adopted or sorted(configured) == sorted(adopted) else adopted)
    fleet = fold.state.registry.fleet if enabled else None
    has_signals = source != str(DiscoverySource.KUBERNETES_PODS)
    head = {
        "enabled": enabled,
        "connected": enabled and bool(namespaces) and all(map(fold.state.registry.is_connected, namespaces)),
        "source": source,
        "signals": {"load": has_signals, "capacity": has_signals},
        "namespace": namespaces[0] if namespaces else None,
        "namespaces": namespaces,
        "generation": fold.state.registry.generation,
        "load_publishers": _publishers(fleet, KV_METRICS),
        "kv_event_publishers": _publishers(fleet, KV_EVENTS),
        "kv": {
            "enabled": enabled and settings is not None and settings.pick.kv is not None,
            "models": [match_row(state) for state in matches] if enabled else [],
            "engine_sources": [engine_row(row) for row in engines] if enabled else [],
        },
    }
    yield json_bytes(head)[:-1]
    yield b',"workers":['
    yield from _rows(map(worker_row, fleet.workers.values()) if fleet is not None else iter(()))
    yield b'],"subscriptions":['
    held = fold.state.status.subscriptions if enabled else {}
    yield from _rows(map(subscription_row, [held[key] for key in sorted(held)]))
    yield b"]}"


def worker_row(worker: Worker) -> dict[str, Any]:
    """One worker (ADM-04)."""
    key = worker.key
    endpoint = worker.disaggregated_endpoint
    return {
        "instance_id": key.to_hex(),
        "namespace": key.namespace,
        "worker_id": key.to_decimal(),
        "role": worker.role.label,
        "model": worker.model,
        "component": worker.component,
        "endpoint": worker.endpoint,
        "dp_start_rank": worker.dp_start_rank,
        "dp_size": worker.dp_size,
        "block_size": worker.block_size,
        "capacity": {
            "total_kv_blocks": worker.total_kv_blocks,
            "max_num_batched_tokens": worker.max_num_batched_tokens,
            "max_num_seqs": worker.max_num_seqs,
            "context_length": worker.context_length,
        },
        "disaggregated_endpoint": None if endpoint is None else {name: _masked(v) for name, v in endpoint},
        "first_seen": time_text(worker.first_seen),
        "last_updated": time_text(worker.last_updated),
    }


def match_row(state: MatchState) -> dict[str, Any]:
    """How many predicted blocks of served prompts their workers reported, of one model."""
    return {
        "model": state.model,
        "match_ratio": state.ratio,
        "checks": state.checks,
        "predicted_blocks": state.predicted,
        "confirmed_blocks": state.held,
        "is_trusted": state.is_trusted,
    }


def engine_row(row: EngineRow) -> dict[str, Any]:
    """One entry of `dynamo.kv.engine_sources`; its address is not shown."""
    return {
        "entry": row.place,
        "namespace": row.source.namespace,
        "publisher_id": str(engine_publisher_id(row.source.endpoint)),
        "state": row.binding.value,
        "worker_id": row.worker.to_decimal() if row.worker is not None else None,
        "missing": row.missing or None,
    }


def subscription_row(held: PublisherHeld) -> dict[str, Any]:
    """One running subscription (ADM-05). No broker carries any in this release."""
    return {
        "family": FAMILY_NAMES.get(held.family, "unknown"),
        "publisher_id": str(held.publisher_id),
        "namespace": held.namespace,
        "component": held.component,
        "state": _STATES.get(held.state, "unknown"),
        "transport": _TRANSPORTS.get(held.transport, "unknown"),
    }


def json_bytes(document: Any) -> bytes:
    """JSON text of anything that a document may hold; odd strings and numbers included."""
    try:
        return orjson.dumps(document)
    except (TypeError, ValueError):
        return json.dumps(document, default=str, separators=(",", ":")).encode()


def _rows(rows: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    for place, row in enumerate(rows):
        yield (b"," if place else b"") + json_bytes(row)


def _publishers(fleet: Fleet | None, topic: str) -> int:
    return 0 if fleet is None else sum(1 for publisher in fleet.publishers if publisher.topic == topic)


def _masked(value: str | int | None) -> str | int | None:
    return MASK if isinstance(value, str) else value
