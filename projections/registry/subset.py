"""The fields of a record that are read here, written anew as a value of the same grammar.

Where an opaque value cannot be kept, for its size or for the sum of all, this is kept in
its place: reading it gives the record again, field by field. It is small by construction,
since every text in a record is bounded. A record that could not be read has no subset.
Files of a card are left out: their paths name hosts, and no pick reads them.

Sources: requirement rows MEM-02, RED-12.
"""

from __future__ import annotations

import json
from typing import Any

from projections.registry.json_text import Unreadable
from projections.registry.records import (
    Card,
    CardRecord,
    ChannelFault,
    ChannelRecord,
    EndpointRecord,
    SourceRecord,
)


def subset_of(
    record: EndpointRecord | CardRecord | ChannelRecord | SourceRecord | Unreadable | None,
) -> bytes:
    """Compact JSON with sorted names, b"" for what could not be read."""
    if isinstance(record, EndpointRecord):
        return _written("Endpoint", record._asdict())
    if isinstance(record, CardRecord):
        fields = {**record._asdict(), "card": None, "card_json": _card_fields(record.card)}
        return _written("Model", fields)
    if isinstance(record, ChannelRecord):
        return _written("EventChannel", _channel_fields(record))
    if isinstance(record, SourceRecord):
        return _written("EventSource", _source_fields(record))
    return b""


def _written(kind: str, fields: dict[str, Any]) -> bytes:
    present = {name: value for name, value in fields.items() if value is not None}
    text = json.dumps({"type": kind, **present}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


def _card_fields(card: Card) -> dict[str, Any]:
    pairs = card.disaggregated_endpoint
    publishing = card.kv_event_publishing_enabled
    fields: dict[str, Any] = {
        "display_name": card.model,
        "worker_type": card.worker_type.label if card.worker_type is not None else None,
        "kv_cache_block_size": card.block_size,
        "version": card.release,
        "runtime_config": {
            "total_kv_blocks": card.total_kv_blocks,
            "max_num_batched_tokens": card.max_num_batched_tokens,
            "max_num_seqs": card.max_num_seqs,
            "context_length": card.context_length,
            "data_parallel_start_rank": card.dp_start_rank,
            "data_parallel_size": card.dp_size if card.dp_declared else None,
            "enable_eagle": card.enable_eagle,
            "disaggregated_endpoint": dict(pairs) if pairs is not None else None,
            **({} if publishing is None else {"kv_event_publishing_enabled": publishing}),
        },
    }
    if card.lora_name is not None:
        fields["lora"] = {"name": card.lora_name}
    return fields


def _scope_fields(component: str, endpoint: str | None) -> dict[str, Any]:
    if endpoint is not None:
        return {"kind": "endpoint", "endpoint": {"component": component, "name": endpoint}}
    return {"kind": "component", "component": component} if component else {"kind": "namespace"}


def _channel_fields(record: ChannelRecord) -> dict[str, Any]:
    unknown = {"kind": "unknown"}
    direct = record.fault in (ChannelFault.NONE, ChannelFault.ADDRESS)
    return {
        "topic": record.topic,
        "instance_id": record.publisher_id,
        "scope": unknown
        if record.fault is ChannelFault.SCOPE
        else _scope_fields(record.component, record.endpoint),
        "transport": {"kind": "Zmq", "config": {"endpoint": record.address}} if direct else unknown,
    }


def _source_fields(record: SourceRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "publisher_id": record.publisher_id,
        "scope": _scope_fields(record.component, record.endpoint),
        "metadata": {"worker": {"worker_id": record.worker_id, "dp_rank": record.dp_rank}},
    }
