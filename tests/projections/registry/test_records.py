"""Tolerant readers: every field optional, whatever a release ahead or behind writes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.bounds import DP_SIZE_MAX, MODEL_NAME_CHARACTERS_MAX
from projections.registry.json_text import Unreadable
from projections.registry.records import (
    Card,
    CardRecord,
    ChannelFault,
    ChannelRecord,
    EndpointRecord,
    Role,
    SourceRecord,
    parse_card,
    parse_channel,
    parse_endpoint,
    parse_source,
)
from tests.projections.fleet_script import card, channel, endpoint, source, text

PARSERS: tuple[Callable[[bytes], object], ...] = (parse_endpoint, parse_card, parse_channel, parse_source)


def typed(value: bytes) -> Card:
    record = parse_card(value)
    assert isinstance(record, CardRecord)
    return record.card


@pytest.mark.req("RED-02")
def test_an_id_as_number_or_hex_string_is_one_id() -> None:
    for spelled in (0x1A7F2B, "1a7f2b", "1A7F2B"):
        record = parse_endpoint(endpoint(spelled))
        assert record == EndpointRecord("backend", "generate", 0x1A7F2B)


@pytest.mark.req("RED-09", "RED-10")
def test_a_record_with_nothing_but_an_id_is_read_and_one_without_is_not() -> None:
    assert parse_endpoint(b'{"instance_id": 7}') == EndpointRecord("", "", 7)
    for bad in (b"{}", b'{"instance_id": null}', b'{"instance_id": -1}', b'{"instance_id": 1.5}'):
        assert parse_endpoint(bad) is Unreadable.ID
        assert parse_card(bad) is Unreadable.ID
        assert parse_channel(bad) is Unreadable.ID
    assert parse_source(b"{}") is Unreadable.ID


def test_a_record_that_says_it_is_of_another_type_is_refused() -> None:
    assert parse_endpoint(card(1)) is Unreadable.TYPE
    assert parse_card(endpoint(1)) is Unreadable.TYPE
    assert parse_channel(endpoint(1)) is Unreadable.TYPE
    assert parse_source(channel(1)) is Unreadable.TYPE


@pytest.mark.req("RED-10")
def test_unknown_fields_are_ignored_and_null_is_as_absent() -> None:
    plain = parse_card(card(1))
    more = parse_card(card(1, runtime={"of_next_year": {"deep": [1]}}, of_next_year=[None], aliases=None))
    assert plain == more
    bare = parse_card(text({"instance_id": 1, "component": None, "endpoint": None, "card_json": None}))
    assert isinstance(bare, CardRecord)
    assert (bare.component, bare.endpoint, bare.model_suffix) == ("", "", "")


@pytest.mark.req("RED-26")
def test_capacities_are_read_and_zero_means_unknown() -> None:
    full = typed(card(1, runtime={"context_length": 32_768}))
    assert (full.block_size, full.total_kv_blocks, full.max_num_batched_tokens) == (16, 256, 8192)
    assert (full.max_num_seqs, full.context_length) == (64, 32_768)
    zero = typed(card(1, runtime={"total_kv_blocks": 0, "max_num_seqs": 0, "context_length": 0}))
    assert (zero.total_kv_blocks, zero.max_num_seqs, zero.context_length) == (None, None, None)
    assert zero.faults == ()
    assert typed(card(1, context_length=4096)).context_length == 4096


@pytest.mark.parametrize("size", [0, -16, "x", 1.5, True, [16], 1 << 40])
@pytest.mark.req("RED-12")
@pytest.mark.field("B-023")
def test_a_block_size_that_cannot_be_used_reads_as_absent_and_is_named(size: object) -> None:
    odd = typed(card(1, kv_cache_block_size=size))
    assert odd.block_size is None
    assert odd.faults == ("kv_cache_block_size",)
    assert odd.total_kv_blocks == 256 and odd.model == "tiny"


@pytest.mark.parametrize(
    ("runtime", "expected", "faults"),
    [
        ({}, (0, 1, False), ()),
        ({"data_parallel_size": 4, "data_parallel_start_rank": 2}, (2, 4, True), ()),
        ({"data_parallel_size": 1}, (0, 1, True), ()),
        ({"data_parallel_size": 0}, (0, 1, True), ("data_parallel_size",)),
        ({"data_parallel_size": DP_SIZE_MAX + 1}, (0, 1, True), ("data_parallel_size",)),
        ({"data_parallel_size": "2"}, (0, 1, True), ("data_parallel_size",)),
        ({"data_parallel_start_rank": -1}, (0, 1, False), ("data_parallel_start_rank",)),
        ({"data_parallel_start_rank": 4294967295}, (0, 1, False), ("data_parallel_start_rank",)),
        ({"data_parallel_size": None}, (0, 1, False), ()),
    ],
)
@pytest.mark.req("RED-22")
@pytest.mark.field("B-021")
def test_ranks_of_a_card(
    runtime: dict[str, Any], expected: tuple[int, int, bool], faults: tuple[str, ...]
) -> None:
    read = typed(card(1, runtime=runtime))
    assert (read.dp_start_rank, read.dp_size, read.dp_declared) == expected
    assert read.faults == faults


@pytest.mark.parametrize(
    ("said", "role"),
    [
        ("prefill", Role.PREFILL),
        ("Decode", Role.DECODE),
        ("AGGREGATED", Role.AGGREGATED),
        ("encode", Role.ENCODE),
        ("unknown", None),
        ("planner", None),
        ("", None),
        (3, None),
        (None, None),
        ("prefill\u017f", None),
    ],
)
@pytest.mark.req("RED-11")
def test_worker_type_is_read_in_any_case_and_an_unknown_one_claims_nothing(
    said: object, role: Role | None
) -> None:
    assert typed(card(1, worker_type=said)).worker_type is role


def test_the_model_is_the_display_name_or_else_the_name() -> None:
    for shown, name, model in (("a", "b", "a"), (None, "b", "b"), ("", "b", "b"), (7, None, None)):
        value = text({"instance_id": 1, "card_json": {"display_name": shown, "name": name}})
        assert typed(value).model == model
    long = typed(card(1, model="x" * (MODEL_NAME_CHARACTERS_MAX + 1)))
    assert long.model is None and long.faults == ("display_name",)


@pytest.mark.req("RED-26")
def test_a_disaggregated_endpoint_is_a_map_and_a_string_is_no_fault() -> None:
    boot = {"bootstrap_port": 8998, "bootstrap_host": "10.0.0.1", "odd": [1]}
    read = typed(card(1, runtime={"disaggregated_endpoint": boot}))
    assert read.disaggregated_endpoint == (
        ("bootstrap_host", "10.0.0.1"),
        ("bootstrap_port", 8998),
        ("odd", None),
    )
    seed = typed(card(1, runtime={"disaggregated_endpoint": "dynamo/decode/generate"}))
    assert seed.disaggregated_endpoint is None and seed.faults == ()


@pytest.mark.req("RED-12")
def test_a_card_of_the_wrong_type_is_an_empty_card() -> None:
    read = typed(text({"instance_id": 1, "card_json": "no map"}))
    assert read.faults == ("card_json",) and read.model is None and read.dp_size == 1


@pytest.mark.req("RED-04")
def test_a_suffix_of_any_kind_marks_an_adapter() -> None:
    for suffix, expected in (
        (None, ""),
        ("", ""),
        ("my_adapter", "my_adapter"),
        (7, "?"),
        ("x" * 9_999, "?"),
    ):
        record = parse_card(card(1, suffix=suffix))
        assert isinstance(record, CardRecord) and record.model_suffix == expected


@pytest.mark.req("LOAD-01", "LOAD-03")
def test_channels_of_the_three_scopes_are_read() -> None:
    scopes: list[tuple[dict[str, Any], str, str | None]] = [
        ({"kind": "namespace", "name": "dynamo"}, "", None),
        ({"kind": "component", "namespace": "dynamo", "component": "c"}, "c", None),
        ({"kind": "endpoint", "endpoint": {"component": "c", "name": "e"}}, "c", "e"),
    ]
    for scope, component, name in scopes:
        assert parse_channel(channel(9, scope=scope)) == ChannelRecord(
            component, name, "kv_metrics", 9, "tcp://10.0.0.1:5000", ChannelFault.NONE
        )


def test_the_flat_form_of_dynamo_1_2_is_read() -> None:
    flat = {
        "namespace": "dynamo",
        "component": "backend",
        "topic": "kv-events",
        "instance_id": 9,
        "transport": {"kind": "Zmq", "config": {"endpoint": "tcp://10.0.0.1:5000"}},
    }
    record = parse_channel(text(flat))
    assert record == ChannelRecord("backend", None, "kv-events", 9, "tcp://10.0.0.1:5000", ChannelFault.NONE)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"scope": {"kind": "galaxy"}}, ChannelFault.SCOPE),
        ({"scope": "endpoint"}, ChannelFault.SCOPE),
        ({"transport": {"kind": "Nats", "config": {"subject_prefix": "x"}}}, ChannelFault.TRANSPORT),
        ({"transport": {"kind": "ZmqBroker", "config": {}}}, ChannelFault.TRANSPORT),
        ({"transport": None}, ChannelFault.TRANSPORT),
        ({"transport": {"kind": "Zmq", "config": {"endpoint": "ipc:///tmp/x"}}}, ChannelFault.ADDRESS),
        ({"transport": {"kind": "Zmq", "config": {"endpoint": "tcp://10.0.0.1"}}}, ChannelFault.ADDRESS),
        ({"transport": {"kind": "Zmq", "config": {"endpoint": "tcp://h:0"}}}, ChannelFault.ADDRESS),
        ({"transport": {"kind": "Zmq", "config": {"endpoint": "tcp://h:70000"}}}, ChannelFault.ADDRESS),
        ({"transport": {"kind": "Zmq", "config": {"endpoint": "tcp://a b:1"}}}, ChannelFault.ADDRESS),
        ({"transport": {"kind": "Zmq", "config": {"endpoint": "tcp://:5000"}}}, ChannelFault.ADDRESS),
        ({"transport": {"kind": "Zmq", "config": None}}, ChannelFault.ADDRESS),
    ],
)
@pytest.mark.req("LOAD-04")
def test_what_cannot_be_subscribed_to_is_told_apart(more: dict[str, Any], fault: ChannelFault) -> None:
    record = parse_channel(channel(9, **more))
    assert isinstance(record, ChannelRecord)
    assert record.fault is fault and record.address is None and record.publisher_id == 9


def test_ipv6_and_names_are_addresses() -> None:
    for address in ("tcp://[::1]:5000", "tcp://worker-0.svc:1"):
        record = parse_channel(channel(9, transport={"kind": "Zmq", "config": {"endpoint": address}}))
        assert isinstance(record, ChannelRecord) and record.address == address


def test_a_source_binds_a_publisher_to_a_rank() -> None:
    assert parse_source(source(9, 5, 3)) == SourceRecord("backend", "generate", "kv-events", 9, 5, 3)
    unset = parse_source(source(9, 5, 4294967295))
    assert isinstance(unset, SourceRecord) and unset.worker_id is None
    inner = parse_source(text({"metadata": {"publisher_id": 9}}))
    assert isinstance(inner, SourceRecord) and inner.publisher_id == 9 and inner.worker_id is None


_ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "prefill", "generate", "\ud800", "x" * 600, "1a7f2b"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["kind", "worker", "config", "endpoint", "name"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
_FIELDS = (
    ("type", "instance_id", "publisher_id", "component", "endpoint", "model_suffix"),
    ("card_json", "scope", "topic", "transport", "metadata"),
    ("display_name", "name", "worker_type", "kv_cache_block_size", "context_length", "runtime_config"),
    (
        "version",
        "total_kv_blocks",
        "data_parallel_size",
        "data_parallel_start_rank",
        "disaggregated_endpoint",
    ),
)
_OUTER = st.dictionaries(st.sampled_from(_FIELDS[0] + _FIELDS[1]), _ODD)
_INNER = st.dictionaries(st.sampled_from(_FIELDS[2] + _FIELDS[3]), _ODD)


@given(_OUTER, _INNER)
@pytest.mark.req("RED-10", "MEM-08")
def test_any_values_in_any_fields_read_the_same_twice(outer: dict[str, Any], inner: dict[str, Any]) -> None:
    document = {**outer, "instance_id": outer.get("instance_id", 1)}
    document.setdefault("card_json", {**inner, "runtime_config": inner.get("runtime_config", inner)})
    value = json.dumps(document).encode()
    for parse in PARSERS:
        assert repr(parse(value)) == repr(parse(bytes(value)))


@pytest.mark.req("MEM-08")
def test_values_with_any_bytes_changed_never_raise() -> None:
    """A mutation loop: flipped, cut, doubled and inserted bytes in real-looking values."""
    dice = random.Random(20_260_101)
    seeds = [
        endpoint(0x1A7F2B),
        card(1, runtime={"disaggregated_endpoint": {"a": 1}}),
        channel(9),
        source(9, 5),
    ]
    for round_number in range(4_000):
        value = bytearray(seeds[round_number % len(seeds)])
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(value))
            choice = dice.randrange(4)
            if choice == 0:
                value[at] = dice.randrange(256)
            elif choice == 1:
                del value[at : at + dice.randint(1, 20)]
            elif choice == 2:
                value[at:at] = value[at : at + dice.randint(1, 40)]
            else:
                value[at:at] = dice.choice([b"[", b"{", b'"', b"\\", b"\\ud800", b"NaN", b"1e999", b"9" * 30])
            if not value:
                value = bytearray(b"{")
        for parse in PARSERS:
            assert repr(parse(bytes(value))) == repr(parse(bytes(value)))
