"""Records of every kind survive their bytes; bytes of nobody's making are refused, never raise."""

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.bounds import RECORD_BYTES_MAX
from projections.events.codec import (
    RecordRefused,
    Refusal,
    check_word,
    decode_parts,
    decode_record,
    encode_record,
    encode_value,
    owner_stamp,
    peek_kind,
)
from projections.events.control import (
    ClockTicked,
    ConfigAdopted,
    KvPickSettings,
    PickSettings,
    Pinged,
    RecordCondemned,
)
from projections.events.discovery import KeyPut
from projections.events.kinds import FACT_KINDS, FIRST_FIELDS, KIND_OF_FACT, Speaker
from projections.events.picks import Outcome, PhaseOutcome, PickMade, Question
from projections.events.signals import SampleReceived
from tests.fuzz.mutate import Target, first_failure
from tests.projections.events.fact_values import facts

GOLDEN = Path(__file__).parents[2] / "golden" / "records-1.json"
GOLDEN_2 = GOLDEN.with_name("records-2.json")  # kinds and fields that came later
WRITER = bytes(range(16))


def sealed(body: bytes) -> bytes:
    """Body with a right check word, whatever it says."""
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


def data_values(data: bytes) -> tuple[Any, ...]:
    """The values that a record's bytes hold."""
    values: tuple[Any, ...] = msgpack.unpackb(data[2:-8], use_list=False)
    return values


def record_of(*values: Any, schema: int = 1) -> bytes:
    return sealed(schema.to_bytes(2, "little") + msgpack.packb(values, use_bin_type=True))


def refusal(data: bytes) -> Refusal:
    with pytest.raises(RecordRefused) as caught:
        decode_record(0, data)
    return caught.value.reason


@pytest.mark.req("EVS-02")
@given(
    facts(),
    st.integers(0, 2**63),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 9),
    st.integers(1, 2**63),
)
@settings(max_examples=600, deadline=None)
def test_every_kind_of_fact_comes_back_as_it_was(
    fact: Any, time: int, writer: bytes, epoch: int, sequence: int
) -> None:
    data = encode_record(time, writer, epoch, sequence, fact)
    record = decode_record(77, data)
    assert record.fact == fact
    assert type(record.fact) is type(fact)
    assert (record.offset, record.time, record.writer) == (77, time, writer)
    assert (record.epoch, record.sequence) == (epoch, sequence)
    assert record.kind == KIND_OF_FACT[type(fact)] == peek_kind(data)
    assert record.check == check_word(data)
    assert decode_parts(data) == (record.check, (*record[2:7], *data_values(data)[5:]), record.fact)
    assert encode_record(time, writer, epoch, sequence, record.fact) == data


def test_inner_facts_come_back_by_name() -> None:
    phase = PhaseOutcome(1, None, 2, 0.5, b"rows")
    outcome = Outcome("ns", phase, phase, 1, 2, bytes(16))
    question = Question("r", 0, "m", "m", 1, 2, ("ns",), (("other", 3),), 9, 0, 0)
    fact = PickMade(bytes(16), bytes(16), 0, -1, 1, question, outcome)
    decoded: Any = decode_record(0, encode_record(1, WRITER, 0, 1, fact)).fact
    assert decoded.outcome.decode.margin == 0.5
    assert decoded.question.absent == (("other", 3),)
    assert encode_value(decoded.outcome) == encode_value(outcome)


@pytest.mark.req("EVS-21")
def test_fields_appended_by_a_newer_release_are_ignored() -> None:
    values = (35, 5, WRITER, 0, 9, WRITER, 1, 2, "new", [1, {"a": 2}])
    assert decode_record(0, record_of(*values)).fact == Pinged(WRITER, 1, 2)


@pytest.mark.req("EVS-21")
def test_fields_that_an_older_release_did_not_have_take_their_defaults() -> None:
    short = (10, 5, WRITER, 1, 9, "ns", 1, 1, 0, 0, 7, 0, None, None, 4, 123)
    assert decode_record(0, record_of(*short)).fact == SampleReceived(
        "ns", 1, 1, 0, 0, 7, 0, None, None, 4, 123
    )
    assert refusal(record_of(*short[:-1])) is Refusal.FIELDS


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", Refusal.TOO_SHORT),
        (bytes(10), Refusal.TOO_SHORT),
        (bytes(RECORD_BYTES_MAX + 1), Refusal.TOO_LONG),
        (bytes(40), Refusal.CHECK_WORD),
        (record_of(35, 5, WRITER, 0, 9, WRITER, 1, 2, schema=2), Refusal.SCHEMA),
        (record_of(35, 5, WRITER, 0, 9, WRITER, 1, 2, schema=0), Refusal.SCHEMA),
        (sealed(b"\x01\x00\xc1\xc1\xc1"), Refusal.NOT_MSGPACK),
        (sealed(b"\x01\x00\x81\xa1a\x01\x00\x00"), Refusal.NOT_MSGPACK),
        (record_of(35, 5, WRITER), Refusal.NOT_MSGPACK),
        (record_of("35", 5, WRITER, 0, 9, WRITER, 1, 2), Refusal.NOT_MSGPACK),
        (record_of(True, 5, WRITER, 0, 9, WRITER, 1, 2), Refusal.NOT_MSGPACK),
        (record_of(35, 5.0, WRITER, 0, 9, WRITER, 1, 2), Refusal.NOT_MSGPACK),
        (record_of(35, 5, WRITER[:-1], 0, 9, WRITER, 1, 2), Refusal.NOT_MSGPACK),
        (record_of(99, 5, WRITER, 0, 9), Refusal.UNKNOWN_KIND),
        (record_of(0, 5, WRITER, 0, 9), Refusal.UNKNOWN_KIND),
        (record_of(-1, 5, WRITER, 0, 9), Refusal.UNKNOWN_KIND),
        (record_of(35, 5, WRITER, 0, 9, WRITER, 1), Refusal.FIELDS),
        (record_of(35, 5, WRITER, 0, 9, WRITER, True, 2), Refusal.FIELDS),
        (record_of(35, 5, WRITER, 0, 9, WRITER, 1.0, 2), Refusal.FIELDS),
        (record_of(35, 5, WRITER, 0, 9, WRITER, None, 2), Refusal.FIELDS),
        (record_of(31, 5, WRITER, 1, 9, 0, 0, [["a", "b"]], 0, 0), Refusal.FIELDS),
        (record_of(31, 5, WRITER, 1, 9, 0, 0, [["a", 1, 2]], 0, 0), Refusal.FIELDS),
        (record_of(31, 5, WRITER, 1, 9, 0, 0, "text", 0, 0), Refusal.FIELDS),
        (record_of(38, 5, WRITER, 1, 9, 1, "x", b"", "{}", None), Refusal.FIELDS),
        (record_of(38, 5, WRITER, 1, 9, 1, "x", b"", "{}", [1, 2]), Refusal.FIELDS),
        (record_of(22, 5, WRITER, 0, 9, WRITER, [None]), Refusal.FIELDS),
        (record_of(22, 5, WRITER, 0, 9, WRITER, [[1]]), Refusal.FIELDS),
    ],
)
def test_what_no_writer_of_ours_makes_is_refused_with_its_reason(data: bytes, reason: Refusal) -> None:
    assert refusal(data) is reason


def test_a_shape_that_was_taken_once_does_not_let_another_one_in() -> None:
    good = (31, 5, WRITER, 1, 9, 0, 0, [["a", 1]], 0, 0)
    assert decode_record(0, record_of(*good)).fact == ClockTicked(0, 0, (("a", 1),), 0, 0)
    assert refusal(record_of(*good[:7], [["a", "b"]], 0, 0)) is Refusal.FIELDS


@given(st.binary(max_size=200))
def test_any_bytes_give_a_record_or_a_refusal(data: bytes) -> None:
    for attempt in (data, sealed(b"\x01\x00" + data)):
        with contextlib.suppress(RecordRefused):
            assert decode_record(0, attempt).offset == 0
        assert isinstance(peek_kind(attempt), int)
        owner_stamp(attempt)


def check_sealed(body: bytes) -> None:
    """Any body under a right check word is a record or refused; twice the same."""
    try:
        record = decode_record(0, sealed(body))
    except RecordRefused:
        return
    assert decode_record(0, sealed(body)) == record


def test_mutated_records_give_a_record_or_a_refusal() -> None:
    corpus = [bytes.fromhex(row["bytes"])[:-8] for row in json.loads(GOLDEN.read_text()).values()]
    failure = first_failure(Target("record", corpus, check_sealed), seed=1, cases=4000)
    assert failure is None, failure


def test_a_record_above_the_ceiling_is_not_written() -> None:
    large = KeyPut(1, "ns", "k", 1, bytes(RECORD_BYTES_MAX), 1, bytes(32))
    with pytest.raises(ValueError, match="above"):
        encode_record(1, WRITER, 1, 1, large)


def test_the_stamp_of_an_owners_record_is_read_without_decoding_it() -> None:
    assert owner_stamp(encode_record(12345, WRITER, 3, 1, RecordCondemned(1, "x"))) == 12345
    assert owner_stamp(encode_record(12345, WRITER, 0, 1, Pinged(WRITER, 1, 1))) is None


def test_kinds_are_numbered_once_and_every_fact_has_one() -> None:
    assert len(KIND_OF_FACT) == len(FACT_KINDS)
    assert all(row.speaker in Speaker for row in FACT_KINDS.values())
    assert all(0 < kind < 128 for kind in FACT_KINDS), "peek_kind reads one byte"


@pytest.mark.req("EVS-21")
@pytest.mark.parametrize("name", sorted(json.loads(GOLDEN.read_text())))
def test_records_of_the_first_release_read_as_they_did(name: str) -> None:
    """Bytes that were written once; they may never read differently."""
    golden = json.loads(GOLDEN.read_text())[name]
    record = decode_record(golden["offset"], bytes.fromhex(golden["bytes"]))
    assert type(record.fact).__name__ == name
    assert repr(tuple(map(as_it_was, record.fact))) == golden["fact"]
    data = encode_record(record.time, record.writer, record.epoch, record.sequence, record.fact)
    assert data.hex() == golden["bytes"], "nor be written differently"


def as_it_was(value: Any) -> Any:
    """A fact without the fields that the first release did not have; they must hold their defaults."""
    if not hasattr(value, "_fields"):
        return tuple(map(as_it_was, value)) if isinstance(value, tuple) else value
    first = FIRST_FIELDS.get(type(value), len(value))
    for name, later in zip(value._fields[first:], value[first:], strict=True):
        assert later == value._field_defaults[name]
    return Then(type(value).__name__, value._fields[:first], tuple(map(as_it_was, value[:first])))


class Then(NamedTuple):
    """Prints like the fact that it was."""

    name: str
    fields: tuple[str, ...]
    values: tuple[Any, ...]

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in zip(self.fields, self.values, strict=True))
        return f"{self.name}({said})"


@pytest.mark.req("EVS-21")
@pytest.mark.parametrize("name", sorted(json.loads(GOLDEN_2.read_text())))
def test_records_of_the_second_release_read_as_they_did(name: str) -> None:
    """The same for what came later; "fact" is the whole fact as text."""
    golden = json.loads(GOLDEN_2.read_text())[name]
    record = decode_record(golden["offset"], bytes.fromhex(golden["bytes"]))
    assert type(record.fact).__name__ == name
    assert repr(tuple(record.fact)) == golden["fact"]
    data = encode_record(record.time, record.writer, record.epoch, record.sequence, record.fact)
    assert data.hex() == golden["bytes"], "nor be written differently"


def test_there_is_a_golden_record_of_every_kind() -> None:
    known = {*json.loads(GOLDEN.read_text()), *json.loads(GOLDEN_2.read_text())}
    assert known == {row.fact.__name__ for row in FACT_KINDS.values()}


def test_later_fields_cost_no_byte_while_they_say_nothing() -> None:
    plain = PickSettings("load_based", "file", ("a",), (), 5)
    assert msgpack.unpackb(encode_value(plain)) == ["load_based", "file", ["a"], [], 5, True]
    with_kv = plain._replace(kv=KvPickSettings(1.0, 1.0, 0.0))
    assert len(msgpack.unpackb(encode_value(with_kv))) == len(PickSettings._fields)
    fact = ConfigAdopted(1, "start", b"d", "{}", with_kv)
    decoded: Any = decode_record(0, encode_record(1, WRITER, 1, 1, fact)).fact
    assert decoded == fact and type(decoded.pick.kv) is KvPickSettings


def test_settings_hold_their_inner_tuple() -> None:
    pick = PickSettings("load_based", "file", ("a",), (("b", "c"),), 5)
    fact = ConfigAdopted(1, "start", b"d", "{}", pick)
    decoded: Any = decode_record(0, encode_record(1, WRITER, 1, 1, fact)).fact
    assert decoded.pick.model_map == (("b", "c"),)
