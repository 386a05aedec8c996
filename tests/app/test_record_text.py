from __future__ import annotations

import orjson
import pytest

from app.record_text import kind_of_text, record_document
from projections.events.codec import decode_record, encode_record
from projections.events.control import ClockTicked
from projections.events.discovery import KeyPut
from projections.events.kinds import Kind
from tests.ingest.log.facts import pick, sample

W = bytes(range(16))


def test_a_record_is_told_with_its_envelope_and_fields() -> None:
    fact = sample(3)._replace(publisher_id=2**64 - 1, worker_id=2**63)
    record = decode_record(9, encode_record(1_790_000_000_000_000, W, 2, 5, fact))
    document = record_document(record, skew_us=1_000_000)
    assert document["at"] == "2026-09-21T14:13:21.000000Z"
    assert {key: document[key] for key in ("lane", "offset", "kind", "writer", "epoch", "sequence")} == {
        "lane": 0,
        "offset": 9,
        "kind": "SampleReceived",
        "writer": W.hex(),
        "epoch": 2,
        "sequence": 5,
    }
    assert document["fields"]["publisher_id"] == "18446744073709551615"
    assert document["fields"]["worker_id"] == "9223372036854775808"
    assert document["fields"]["active_prefill_tokens"] is None


def test_inner_facts_are_objects_and_bytes_are_hex() -> None:
    record = decode_record(0, encode_record(1, W, 0, 1, pick(1)))
    fields = record_document(record, 0)["fields"]
    assert fields["question"]["model"] == "m"
    assert fields["outcome"]["decode"]["chosen"]["instance_id"] == "9"
    assert fields["pick_id"] == (1).to_bytes(16, "big").hex()
    assert orjson.loads(orjson.dumps(fields)) == fields


@pytest.mark.parametrize(("value", "shown"), [(b'{"a": "\xc3\xbc"}', '{"a": "ü"}'), (b"\xff\xfe", "fffe")])
def test_a_keys_value_is_shown_as_text_where_it_is_text(value: bytes, shown: str) -> None:
    fact = KeyPut(1, "dynamo", "a/b", 7, value, len(value), bytes(32))
    record = decode_record(0, encode_record(1, W, 1, 1, fact))
    assert record_document(record, 0)["fields"]["value"] == shown


def test_digests_inside_arrays_are_printed_too() -> None:
    record = decode_record(0, encode_record(1, W, 1, 1, ClockTicked(1, -1, (("load", 5),), 2, 2**64 - 1)))
    fields = record_document(record, 0)["fields"]
    assert fields["digests"] == [["load", 5]]
    assert fields["check_sum"] == str(2**64 - 1)


@pytest.mark.parametrize("text", ["PickMade", "pickmade", "pick_made", "PICK_MADE", "pick-made", "20"])
def test_kinds_are_named_as_people_name_them(text: str) -> None:
    assert kind_of_text(text) == Kind.PICK_MADE


@pytest.mark.parametrize("text", ["", "Pick", "999", "-1", "²"])
def test_other_names_are_no_kinds(text: str) -> None:
    assert kind_of_text(text) is None
