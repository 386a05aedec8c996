"""Keys of the four keyspaces: recorded ones to parts and back, foreign ones refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.wire.fleet_keys import (
    BUCKETS,
    CardKey,
    FleetKey,
    InstanceKey,
    KeyFault,
    KeyRefused,
    PublisherKeyParts,
    ScopeKind,
    decode_segment,
    encode_segment,
    file_of_key,
    full_key,
    key_of,
    key_of_file,
    parse_key,
    prefix_of,
    relative_key,
    text_of_key,
)
from projections.bounds import KEY_BYTES_MAX
from projections.events.discovery import Keyspace
from tests.ingest.wire.recorded import recorded_lines

KINDS = {
    "Endpoint": Keyspace.INSTANCES,
    "Model": Keyspace.CARDS,
    "EventChannel": Keyspace.CHANNELS,
    "EventSource": Keyspace.SOURCES,
}


def parts_of(identity: dict[str, Any]) -> FleetKey:
    """The parts that a record's own value speaks of."""
    if identity["type"] == "Endpoint":
        return InstanceKey(*(identity[name] for name in InstanceKey._fields))
    if identity["type"] == "Model":
        return CardKey._make(identity.get(name) for name in CardKey._fields)
    endpoint = identity["scope"]["endpoint"]
    return PublisherKeyParts(
        ScopeKind.ENDPOINT,
        endpoint["namespace"],
        endpoint["component"],
        endpoint["name"],
        identity["topic"],
        identity["id"],
    )


# Recorded


@pytest.mark.req("LOAD-01", "LOAD-03", "ETCD-03")
def test_every_recorded_key_gives_the_identity_of_its_value_and_is_written_back() -> None:
    seen = set()
    for line in recorded_lines("fleet_keys.jsonl.gz"):
        key, identity = line["key"], line["identity"]
        assert isinstance(key, str) and isinstance(identity, dict)
        keyspace = KINDS[identity["type"]]
        parts = parse_key(key)
        assert parts == parts_of(identity)
        assert not isinstance(parts, KeyRefused)
        assert key_of(keyspace, parts) == key
        relative = relative_key(keyspace, parts.namespace, key)
        assert relative is not None and full_key(keyspace, parts.namespace, relative) == key
        seen.add(keyspace)
    assert seen == set(Keyspace)


@pytest.mark.req("FILE-02")
def test_every_recorded_file_name_is_read_as_a_key_and_written_back() -> None:
    seen = set()
    for line in recorded_lines("file_names.jsonl.gz"):
        file, identity = line["file"], line["identity"]
        assert isinstance(file, str) and isinstance(identity, dict)
        keyspace = KINDS[identity["type"]]
        folder, _, name = file.rpartition("/")
        assert folder == BUCKETS[keyspace]
        key = key_of_file(keyspace, name)
        assert isinstance(key, str)
        assert parse_key(key) == parts_of(identity)
        assert file_of_key(key) == (folder, name)
        seen.add(keyspace)
    assert seen == set(Keyspace)


# Prefixes


@pytest.mark.req("ETCD-03", "ETCD-04", "LOAD-02")
def test_prefixes_of_a_namespace_with_a_dot_are_raw_for_two_and_encoded_for_two() -> None:
    assert [prefix_of(keyspace, "ns.one") for keyspace in Keyspace] == [
        "v1/instances/ns.one/",
        "v1/mdc/ns.one/",
        "v1/event_channels/namespace/ns%2Eone/",
        "v1/event_sources/namespace/ns%2Eone/",
    ]


@pytest.mark.req("ETCD-05")
@pytest.mark.field("B-008")
@pytest.mark.parametrize("keyspace", Keyspace)
def test_keys_of_a_longer_namespace_lie_outside_a_prefix(keyspace: Keyspace) -> None:
    assert prefix_of(keyspace, "prod").endswith("/")
    assert relative_key(keyspace, "prod", prefix_of(keyspace, "prod2") + "x") is None
    assert relative_key(keyspace, "prod", prefix_of(keyspace, "prod")) is None
    assert relative_key(keyspace, "prod", prefix_of(keyspace, "prod") + "x/y") == "x/y"


# Shapes

ID = "7a74a2282562b207"
TAIL = "topic/kv_metrics/10f8eed7768a9f"


@pytest.mark.req("LOAD-01")
@pytest.mark.parametrize("bucket", ["event_channels", "event_sources"])
def test_publishers_of_all_three_scopes_are_read(bucket: str) -> None:
    publisher = 0x10F8EED7768A9F
    cases = {
        f"v1/{bucket}/namespace/prod/{TAIL}": (ScopeKind.NAMESPACE, None, None),
        f"v1/{bucket}/namespace/prod/component/c/{TAIL}": (ScopeKind.COMPONENT, "c", None),
        f"v1/{bucket}/namespace/prod/component/c/endpoint/e/{TAIL}": (ScopeKind.ENDPOINT, "c", "e"),
    }
    for key, (kind, component, endpoint) in cases.items():
        expected = PublisherKeyParts(kind, "prod", component, endpoint, "kv_metrics", publisher)
        assert parse_key(key) == expected
        keyspace = Keyspace.CHANNELS if bucket == "event_channels" else Keyspace.SOURCES
        assert key_of(keyspace, expected) == key


def test_lora_card_has_its_suffix_and_a_base_card_none() -> None:
    base = CardKey("prod", "backend", "generate", 0x7A74A2282562B207, None)
    assert parse_key(f"v1/mdc/prod/backend/generate/{ID}") == base
    lora = base._replace(model_suffix="my_adapter_v1_0")
    assert parse_key(f"v1/mdc/prod/backend/generate/{ID}/my_adapter_v1_0") == lora
    assert key_of(Keyspace.CARDS, lora) == f"v1/mdc/prod/backend/generate/{ID}/my_adapter_v1_0"


def test_segments_of_instances_are_never_decoded() -> None:
    parts = parse_key(f"v1/instances/a%2Eb/c/d/{ID}")
    assert isinstance(parts, InstanceKey) and parts.namespace == "a%2Eb"


@pytest.mark.req("LOAD-02")
def test_every_variable_segment_of_a_publisher_is_decoded() -> None:
    key = "v1/event_channels/namespace/ns%2Eone/component/a%2Fb/endpoint/%C3%A9/topic/x%20y/1"
    expected = PublisherKeyParts(ScopeKind.ENDPOINT, "ns.one", "a/b", "é", "x y", 1)
    assert parse_key(key) == expected
    assert key_of(Keyspace.CHANNELS, expected) == key


REFUSED_KEYS = {
    "": KeyFault.KEYSPACE,
    "v1": KeyFault.KEYSPACE,
    "v1/other/a/b/c/1": KeyFault.KEYSPACE,
    "v2/instances/a/b/c/1": KeyFault.KEYSPACE,
    "/v1/instances/a/b/c/1": KeyFault.KEYSPACE,
    "v1/instances": KeyFault.SHAPE,
    "v1/instances/": KeyFault.SHAPE,
    "v1/instances/a/b/1": KeyFault.SHAPE,
    "v1/instances/a/b/c/1/d": KeyFault.SHAPE,
    "v1/instances/a//c/1": KeyFault.SHAPE,
    "v1/instances/a/b/c/1/": KeyFault.SHAPE,
    "v1/mdc/a/b/c/1/": KeyFault.SHAPE,
    "v1/mdc/a/b/c/1/d/e": KeyFault.SHAPE,
    "v1/instances/a/b/c/0x1": KeyFault.ID,
    "v1/instances/a/b/c/-1": KeyFault.ID,
    "v1/instances/a/b/c/12345678901234567": KeyFault.ID,
    "v1/mdc/a/b/c/lora": KeyFault.ID,
    "v1/event_channels/a/b/c/1": KeyFault.SHAPE,  # the form of Dynamo 1.2 and before
    "v1/event_channels/ns//topic/1": KeyFault.SHAPE,
    "v1/event_channels/topic/t/1": KeyFault.SHAPE,
    "v1/event_channels/namespace/a/topics/t/1": KeyFault.SHAPE,
    "v1/event_channels/namespace/a/topic/t/1/2": KeyFault.SHAPE,
    "v1/event_channels/component/a/topic/t/1": KeyFault.SHAPE,
    "v1/event_channels/namespace/a/endpoint/b/topic/t/1": KeyFault.SHAPE,
    "v1/event_channels/namespace/a/component/b/endpoint/c/x/d/topic/t/1": KeyFault.SHAPE,
    "v1/event_channels/namespace/a/topic/t/xyz": KeyFault.ID,
    "v1/event_channels/namespace/a%/topic/t/1": KeyFault.ESCAPE,
    "v1/event_channels/namespace/a%2/topic/t/1": KeyFault.ESCAPE,
    "v1/event_channels/namespace/a/topic/%GG/1": KeyFault.ESCAPE,
    "v1/event_channels/namespace/a/topic/%FF/1": KeyFault.ESCAPE,
    "v1/instances/" + "a" * KEY_BYTES_MAX + "/b/c/1": KeyFault.TOO_LONG,
}


@pytest.mark.req("ETCD-16")
@pytest.mark.parametrize("key", REFUSED_KEYS, ids=lambda key: key[:60] or "empty")
def test_foreign_key_is_refused_with_its_fault(key: str) -> None:
    assert parse_key(key) == KeyRefused(REFUSED_KEYS[key])


def test_key_bytes_become_text_within_the_bound() -> None:
    assert text_of_key("v1/mdc/é".encode()) == "v1/mdc/é"
    assert text_of_key(b"v1/\xff") == KeyRefused(KeyFault.TEXT)
    assert text_of_key(b"a" * KEY_BYTES_MAX) == "a" * KEY_BYTES_MAX
    assert text_of_key(b"a" * (KEY_BYTES_MAX + 1)) == KeyRefused(KeyFault.TOO_LONG)


# Encodings


@pytest.mark.req("LOAD-02")
def test_a_segment_keeps_letters_digits_dash_and_underscore_alone() -> None:
    assert encode_segment("ns.one") == "ns%2Eone"
    assert encode_segment("aZ09-_") == "aZ09-_"
    assert encode_segment("é~ /%") == "%C3%A9%7E%20%2F%25"


def test_escapes_of_lower_case_hex_are_read() -> None:
    assert decode_segment("ns%2eone") == "ns.one"


@pytest.mark.req("FILE-02")
def test_a_file_name_escapes_an_escape_again() -> None:
    key = "v1/event_channels/namespace/ns%2Eone/topic/kv_metrics/1f"
    assert file_of_key(key) == ("v1/event_channels", "namespace%2Fns%252Eone%2Ftopic%2Fkv%5Fmetrics%2F1f")
    assert key_of_file(Keyspace.CHANNELS, "namespace%2Fns%252Eone%2Ftopic%2Fkv%5Fmetrics%2F1f") == key
    assert file_of_key("v1/other/x") is None


@pytest.mark.req("FILE-02")
def test_files_under_construction_are_no_records() -> None:
    assert key_of_file(Keyspace.INSTANCES, ".tmp_0123456789abcdef") is None


@pytest.mark.parametrize("name", ["a%2", "a%", "%zz", "%FF", "a\udcff"])
def test_file_name_with_a_broken_escape_is_refused(name: str) -> None:
    assert key_of_file(Keyspace.INSTANCES, name) == KeyRefused(KeyFault.ESCAPE)


def test_file_name_beyond_the_bound_is_refused() -> None:
    assert key_of_file(Keyspace.INSTANCES, "a" * (3 * KEY_BYTES_MAX + 1)) == KeyRefused(KeyFault.TOO_LONG)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
raw_names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), min_size=1, max_size=20)
ids = st.integers(0, 2**64 - 1)


@given(names)
def test_a_decoded_segment_is_what_was_encoded(text: str) -> None:
    assert decode_segment(encode_segment(text)) == text
    assert set(encode_segment(text)) <= set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_%"
    )


@given(
    st.tuples(st.just(Keyspace.INSTANCES), st.builds(InstanceKey, raw_names, raw_names, raw_names, ids))
    | st.tuples(
        st.just(Keyspace.CARDS),
        st.builds(CardKey, raw_names, raw_names, raw_names, ids, st.none() | raw_names),
    )
    | st.tuples(
        st.sampled_from([Keyspace.CHANNELS, Keyspace.SOURCES]),
        st.builds(PublisherKeyParts, st.just(ScopeKind.ENDPOINT), names, names, names, names, ids)
        | st.builds(PublisherKeyParts, st.just(ScopeKind.COMPONENT), names, names, st.none(), names, ids)
        | st.builds(PublisherKeyParts, st.just(ScopeKind.NAMESPACE), names, st.none(), st.none(), names, ids),
    )
)
def test_parts_survive_the_key_and_the_file_name(case: tuple[Keyspace, FleetKey]) -> None:
    keyspace, parts = case
    key = key_of(keyspace, parts)
    assert parse_key(key) == parts
    file = file_of_key(key)
    assert file is not None
    assert key_of_file(keyspace, file[1]) == key
    assert relative_key(keyspace, parts.namespace, key) is not None


@given(st.text(max_size=80))
def test_any_text_is_a_key_or_refused_and_never_raises(text: str) -> None:
    for keyspace in Keyspace:
        answer = parse_key(f"{BUCKETS[keyspace]}/{text}")
        assert isinstance(answer, InstanceKey | CardKey | PublisherKeyParts | KeyRefused)
        assert isinstance(key_of_file(keyspace, text), str | KeyRefused | None)
