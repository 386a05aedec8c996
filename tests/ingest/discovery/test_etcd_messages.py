"""The messages are etcd's on the wire: field numbers, and fields that we do not describe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.discovery import etcd_messages as messages
from tests.ingest.discovery.fake_etcd import bytes_field, int_field


def test_range_request_has_etcds_field_numbers() -> None:
    request = messages.RangeRequest(key=b"a", range_end=b"b", limit=500, revision=7, keys_only=True)
    assert request.SerializeToString() == (
        bytes_field(1, b"a") + bytes_field(2, b"b") + int_field(3, 500) + int_field(4, 7) + int_field(8, 1)
    )


def test_watch_request_has_etcds_field_numbers() -> None:
    create = messages.WatchCreateRequest(
        key=b"a", range_end=b"b", start_revision=9, watch_id=3, fragment=True
    )
    inner = bytes_field(1, b"a") + bytes_field(2, b"b") + int_field(3, 9) + int_field(7, 3) + int_field(8, 1)
    assert messages.WatchRequest(create_request=create).SerializeToString() == bytes_field(1, inner)
    progress = messages.WatchRequest(progress_request=messages.WatchProgressRequest())
    assert progress.SerializeToString() == bytes_field(3, b"")


def test_login_request_has_etcds_field_numbers() -> None:
    request = messages.AuthenticateRequest(name="n", password="p")
    assert request.SerializeToString() == bytes_field(1, b"n") + bytes_field(2, b"p")


def test_watch_response_is_read_with_all_that_is_not_described() -> None:
    kv = bytes_field(1, b"k") + int_field(2, 3) + int_field(3, 4) + bytes_field(5, b"v") + int_field(6, 99)
    event = int_field(1, 1) + bytes_field(2, kv) + bytes_field(3, kv)
    header = int_field(1, 2**63) + int_field(3, 12) + int_field(4, 2)
    answer = messages.WatchResponse.FromString(
        bytes_field(1, header) + int_field(2, 5) + int_field(7, 1) + bytes_field(11, event)
    )
    assert (answer.header.revision, answer.watch_id) == (12, 5)
    (read,) = answer.events
    assert (read.type, read.kv.key, read.kv.mod_revision, read.kv.value) == (
        messages.EVENT_DELETE,
        b"k",
        4,
        b"v",
    )


def test_watch_id_of_the_whole_stream_is_minus_one() -> None:
    answer = messages.WatchResponse.FromString(int_field(2, 2**64 - 1))
    assert answer.watch_id == -1


@pytest.mark.req("MEM-08")
@given(data=st.binary(max_size=200))
def test_no_bytes_raise_in_a_decoder(data: bytes) -> None:
    for answer in (messages.RangeResponse, messages.WatchResponse, messages.AuthenticateResponse):
        decoded = messages.decoder_of(answer)(data)
        assert decoded is None or isinstance(decoded, answer)
