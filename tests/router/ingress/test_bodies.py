"""What bodies are taken, and what is taken out of them."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.bounds import BODY_VALUES_MAX
from router.ingress.bodies import STEERING_MEMBERS, ChatBody, read_body, with_token_data
from router.ingress.errors import ErrorCode, RequestRefused

MINIMAL = {"model": "m", "messages": []}


def read(document: Any, *, discloses: bool = False, metadata_upload: bool = False) -> ChatBody:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_body(data, discloses=discloses, metadata_upload=metadata_upload)


@pytest.mark.field("B-112")
@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b'{"a",}', None),
        (b"null", None),
        (b"[]", None),
        (b'"text"', None),
        (b"7", None),
        (b'{"model":"m"} x', None),
        (b'{"model":"m","n":NaN}', None),
        (b'{"model":"m","n":Infinity}', None),
        (b'{"model":"\xff"}', None),
        (b'\xef\xbb\xbf{"model":"m"}', None),
        (b'{"model":"\\ud800"}', None),
        (b'{"model":' + b"[" * 5000 + b"]" * 5000 + b"}", None),
        (b'{"messages":[]}', "model"),
        (b'{"model":null}', "model"),
        (b'{"model":7}', "model"),
        (b'{"model":["m"]}', "model"),
        (b'{"model":""}', "model"),
        (b'{"model":"' + b"m" * 513 + b'"}', "model"),
        (b'{"model":"m","stream":"true"}', "stream"),
        (b'{"model":"m","stream":1}', "stream"),
        (b'{"model":"m","nvext":[7]}', "nvext"),
        (b'{"model":"m","nvext":"x"}', "nvext"),
        (b'{"model":"m","nvext":{"dp_rank":1},"nvext":{}}', None),
        (b'{"model":"m","nvext":{"dp_rank":1},"\\u006evext":null}', None),
        (b'{"model":"m","nvext":{"greed_sampling":true,"greed_sampling":false}}', None),
        (b'{"model":"m","nvext":{"agent_hints":{"a":1,"a":2}}}', None),
        (b'{"model":"m","n":1,"nvext":{"cache_salt":"s"},"n":2}', None),
        (b'{"model":"other","messages":[],"model":"m"}', None),
        (b'{"model":"other","messages":[],"mod\\u0065l":"m"}', None),
        (b'{"stream":true,"model":"m","stream":false}', None),
        (b'{"\\u0073tream":true,"model":"m","stream":false}', None),
        (b'{"model":"m",' + b",".join(b'"%d":1' % n for n in range(1024)) + b"}", None),
    ],
)
def test_malformed_bodies_are_refused_as_the_clients_fault(body: bytes, param: str | None) -> None:
    with pytest.raises(RequestRefused) as refused:
        read(body)
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert refused.value.param == param


def test_refusal_names_no_text_of_the_body() -> None:
    with pytest.raises(RequestRefused) as refused:
        read(b'{"model":"m","messages":[{"content":"my secret"}')
    assert "secret" not in refused.value.message
    assert "line 1" in refused.value.message


@pytest.mark.field("B-110")
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m"}',
        b' {"model" : "m", "stream":null, "n": 1e3, "big": 123456789012345678901234567890}\n',
        b'{"model":"m","nvext":null}',
        b'{"model":"m","nvext":{}}',
        b'{"model":"m","nvext":{"cache_salt":"a","annotations":["token_ids"],"extra_fields":["timing"]}}',
        b'{"model":"m","nvext":{"extra_fields":[]}}',
        b'{"model":"m","token_data":[1],"worker_id":7}',
        b'{"model":"m","messages":[{"role":"user","content":null,"tool_calls":[]}]}',
        b'{"model":"m","tools":[{"model":1,"stream":2,"\\u0061":3}],"metadata":{"model":1,"model":2}}',
        b'{"model":"m","stream":true,"messages":[{"content":"say \\"model\\": \\u0061"}],"nvext":{}}',
    ],
)
def test_clean_bodies_go_on_byte_for_byte(body: bytes) -> None:
    assert read(body).data == body


@pytest.mark.req("SHIM-12")
@pytest.mark.parametrize("member", sorted(STEERING_MEMBERS))
def test_steering_members_are_taken_out(member: str) -> None:
    body = read({**MINIMAL, "nvext": {member: 7, "cache_salt": "s"}, "n": 2})
    assert json.loads(body.data) == {**MINIMAL, "nvext": {"cache_salt": "s"}, "n": 2}
    assert json.loads(read({**MINIMAL, "nvext": {member: [1]}}).data) == MINIMAL


@pytest.mark.req("SHIM-12")
def test_steering_annotations_are_taken_out() -> None:
    steering = [
        "query_instance_id:",
        "query_instance_id:7",
        " Query_Instance_ID:7",
        "x-bypass-remote-prefill",
    ]
    body = read({**MINIMAL, "nvext": {"annotations": ["token_ids", *steering, 7]}})
    assert json.loads(body.data)["nvext"] == {"annotations": ["token_ids", 7]}
    assert "nvext" not in json.loads(read({**MINIMAL, "nvext": {"annotations": steering}}).data)


@pytest.mark.req("SHIM-12")
def test_metadata_upload_is_taken_out_unless_allowed() -> None:
    document = {**MINIMAL, "nvext": {"metadata_upload": {"url": "http://somewhere"}}}
    assert json.loads(read(document).data) == MINIMAL
    assert json.loads(read(document, metadata_upload=True).data) == document


@pytest.mark.req("SHIM-15")
def test_wish_to_be_told_the_worker_stays_only_with_x_backend() -> None:
    document = {**MINIMAL, "nvext": {"extra_fields": ["worker_id", "timing"]}}
    assert json.loads(read(document).data)["nvext"] == {"extra_fields": ["timing"]}
    assert json.loads(read(document, discloses=True).data) == document
    alone = {**MINIMAL, "nvext": {"extra_fields": ["worker_id"]}}
    assert json.loads(read(alone).data) == MINIMAL


@pytest.mark.req("SHIM-12")
@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b'{"nvext":{"dp_rank":1},"model":"m"}', b'{"model":"m"}'),
        (b'{"model":"m", "nvext" : {"dp_rank":1} }', b'{"model":"m"}'),
        (b'{ "model":"m", "nvext":{"dp_rank":1} , "n": 1.50}', b'{ "model":"m",  "n": 1.50}'),
        (
            b'{"model":"m","nv\\u0065xt":{"backend_instance\\u005fid":9},"a":[1,  2]}',
            b'{"model":"m","a":[1,  2]}',
        ),
        (
            b'{"model":"m","nvext": {"dp_rank":1, "cache_salt":"s"} ,"n":1e3}',
            b'{"model":"m","nvext": {"cache_salt":"s"} ,"n":1e3}',
        ),
    ],
)
def test_what_is_not_taken_out_keeps_its_bytes(body: bytes, sent: bytes) -> None:
    assert read(body).data == sent


@pytest.mark.req("MEM-08")
def test_a_body_of_more_values_than_memory_is_meant_for_is_not_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(data: bytes) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr("router.ingress.bodies._parse", never)
    for value in (b"{}", b"1", b"[]", b'{"a":1}'):
        body = b'{"model":"m","messages":[' + b",".join([value] * BODY_VALUES_MAX) + b"]}"
        with pytest.raises(RequestRefused) as refused:
            read(body)
        assert refused.value.code is ErrorCode.PAYLOAD_TOO_LARGE


def test_a_long_text_is_no_body_of_many_values() -> None:
    text = "One, two, three. " * (BODY_VALUES_MAX // 8)
    assert read({"model": "m", "prompt": text, "nvext": {"cache_salt": "s"}}).model == "m"


def test_numbers_and_texts_survive_a_rewrite() -> None:
    number = b"123456789012345678901234567890"
    body = b'{"model":"m","nvext":{"dp_rank":1},"n":' + number + b',"t":"\xe2\x82\xac \\ud83d\\ude00"}'
    rewritten = json.loads(read(body).data)
    assert rewritten == {"model": "m", "n": 123456789012345678901234567890, "t": "€ 😀"}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
MEMBERS = st.sampled_from(
    [*sorted(STEERING_MEMBERS), "cache_salt", "annotations", "extra_fields", "metadata_upload"]
)


@pytest.mark.req("SHIM-12", "SHIM-15")
@pytest.mark.field("B-090")
@given(nvext=st.dictionaries(MEMBERS, VALUES | st.just(["worker_id", "query_instance_id:1"])), other=VALUES)
def test_nothing_that_steers_gets_through_and_nothing_else_is_lost(nvext: dict[str, Any], other: Any) -> None:
    document = {"model": "m", "nvext": nvext, "other": other}
    body = read(document)
    sent = json.loads(body.data)
    left = sent.get("nvext") or {}
    assert not STEERING_MEMBERS.intersection(left)
    assert "metadata_upload" not in left
    for name in ("annotations", "extra_fields"):
        value = left.get(name)
        assert not isinstance(value, list) or "query_instance_id:1" not in value or name == "extra_fields"
        assert not isinstance(value, list) or "worker_id" not in value or name == "annotations"
    assert sent["other"] == other
    assert left.get("cache_salt") == nvext.get("cache_salt")


@pytest.mark.field("B-112")
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for body in (data, b'{"model":"m","nvext":' + data + b"}"):
        try:
            found: str | ErrorCode = read(body).model
        except RequestRefused as refused:
            found = refused.code
        assert found in ("m", ErrorCode.INVALID_REQUEST) or isinstance(found, str)


@pytest.mark.req("NVX-01", "NVX-05")
@pytest.mark.parametrize(
    ("body", "nvext"),
    [
        (b'{"model":"m"}', {}),
        (b' { "model" : "m" } ', {}),
        (b'{"nvext":null,"model":"m"}', {}),
        (b'{"model":"m","nvext":{}}', {}),
        (b'{"nvext":{"cache_salt":"s","agent_hints":{"priority":1}},"model":"m"}', None),
        ('{"model":"m","user":"\u00e9\u2028","nvext":{"cache_salt":"\u00e9"}}'.encode(), None),
    ],
)
def test_rendered_tokens_go_along_beside_all_that_the_client_wrote(
    body: bytes, nvext: dict[str, Any] | None
) -> None:
    tokens = (0, 1, 65536, 4294967295)
    sent = json.loads(with_token_data(body, struct.pack("<4I", *tokens)))
    before = json.loads(body)
    kept = (before.pop("nvext", None) or {}) if nvext is None else nvext
    assert sent.pop("nvext") == {**kept, "token_data": [*tokens]}
    before.pop("nvext", None)
    assert sent == before


@pytest.mark.req("NVX-03")
def test_a_clients_own_tokens_never_go_along() -> None:
    body = read({**MINIMAL, "nvext": {"token_data": [1, 2], "cache_salt": "s"}})
    assert json.loads(body.data)["nvext"] == {"cache_salt": "s"}
    sent = json.loads(with_token_data(body.data, struct.pack("<I", 7)))
    assert sent["nvext"] == {"cache_salt": "s", "token_data": [7]}
