"""A key that says otherwise than its value is told; a key of another shape says nothing."""

from __future__ import annotations

import pytest

from projections.events.discovery import Keyspace
from projections.registry.key_parts import disagreement
from projections.registry.records import parse_card, parse_channel, parse_endpoint, parse_source
from tests.projections.fleet_script import card, channel, endpoint, source

INST, C, CH, S = (int(k) for k in (Keyspace.INSTANCES, Keyspace.CARDS, Keyspace.CHANNELS, Keyspace.SOURCES))


@pytest.mark.parametrize(
    ("keyspace", "key", "record", "where"),
    [
        (INST, "backend/generate/5", parse_endpoint(endpoint(5)), None),
        (INST, "backend/generate/6", parse_endpoint(endpoint(5)), "id"),
        (INST, "decode/generate/5", parse_endpoint(endpoint(5)), "component"),
        (INST, "backend/load/5", parse_endpoint(endpoint(5)), "endpoint"),
        (INST, "backend/generate/zz", parse_endpoint(endpoint(5)), "id"),
        (INST, "backend/5", parse_endpoint(endpoint(5)), None),
        (C, "backend/generate/5/adapter", parse_card(card(5, suffix="adapter")), None),
        (C, "backend/generate/6", parse_card(card(5)), "id"),
        (C, "backend/generate/5", parse_card(card(5, component="", name="")), None),
        (CH, "component/backend/endpoint/generate/topic/kv_metrics/9", parse_channel(channel(9)), None),
        (CH, "component/backend/endpoint/generate/topic/kv_metrics/8", parse_channel(channel(9)), "id"),
        (CH, "component/b%61ckend/endpoint/generate/topic/kv%5Fmetrics/9", parse_channel(channel(9)), None),
        (CH, "component/other/endpoint/generate/topic/kv_metrics/9", parse_channel(channel(9)), "component"),
        (CH, "component/backend/endpoint/generate/topic/kv-events/9", parse_channel(channel(9)), "topic"),
        (CH, "topic/kv_metrics/9", parse_channel(channel(9, scope={"kind": "namespace"})), None),
        (CH, "nowhere", parse_channel(channel(9)), None),
        (S, "component/backend/endpoint/generate/topic/kv-events/9", parse_source(source(9, 5)), None),
        (S, "component/backend/topic/kv-events/9", parse_source(source(9, 5)), "endpoint"),
    ],
)
@pytest.mark.req("RED-15")
def test_where_key_and_value_disagree(keyspace: int, key: str, record: object, where: str | None) -> None:
    assert disagreement(keyspace, key, record) == where
