"""A redacted log holds no address, card or host name, and every pick in it is still the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
import xxhash

from projections.checkpoint import checkpoint_records, fold_from_checkpoint
from projections.events.codec import RecordRefused, decode_record
from projections.events.control import ClockTicked, RecordCondemned, ReplicaStarted
from projections.events.discovery import KeyPut, PassSettled
from projections.events.ports import LogReader
from projections.fold import Fold
from replay.capture import CaptureRefused, plan_capture, write_capture
from replay.log_walk import records_of
from replay.redaction import GONE, Redaction
from replay.verify import verify
from tests.replay.captured import SECRETS, MemoryCapture, busy_log, put_channel
from tests.replay.recorded_log import RecordedLog

LOG_ID, KEY = b"r" * 16, b"k" * 32


def redacted(world: RecordedLog, start: int = 0) -> MemoryCapture:
    plan = plan_capture(world.log, None, start, world.log.end_offset())
    capture = MemoryCapture()
    before = next(records_of(world.log, plan.base, plan.base + 1), None) if plan.base >= 0 else None
    write_capture(world.log, None, plan, capture, Redaction(LOG_ID, KEY, before, plan.condemned))
    return capture


def facts(reader: LogReader) -> list[Any]:
    return [decode_record(offset, data).fact for offset, data in records_of(reader, reader.first_offset())]


@pytest.mark.req("EVS-19", "EVS-06")
@pytest.mark.parametrize("start", [0, 12, 30])
def test_every_pick_of_a_redacted_window_is_asked_again_and_equal(start: int) -> None:
    world = busy_log()
    capture = redacted(world, start)
    end = world.log.end_offset()
    report = verify(capture.log, capture.checkpoints, max(start, 0), end)
    original = verify(world.log, None, start, end)
    assert report.picks == report.equal == original.picks > 5


@pytest.mark.req("EVS-18")
@pytest.mark.parametrize("start", [0, 30])
def test_no_address_card_text_or_host_is_left(start: int) -> None:
    world = busy_log()
    world.say(
        ReplicaStarted(b"q" * 16, "node-17.example.net:4711", "router", "0", "3", (), 62, ()), b"q" * 16
    )
    plain = b"".join(data for _, data in records_of(world.log, 0))
    assert all(secret.encode() in plain for secret in SECRETS)
    capture = redacted(world, start)
    left = b"".join(data for _, data in records_of(capture.log, capture.log.first_offset()))
    for info in capture.checkpoints.list():
        left += b"".join(capture.checkpoints.read(info))
    assert [secret for secret in SECRETS if secret.encode() in left] == []


def test_digests_of_values_are_none_that_an_address_could_be_tried_against() -> None:
    world = busy_log()
    before = {fact.value_digest for fact in facts(world.log) if isinstance(fact, KeyPut)}
    after = [fact.value_digest for fact in facts(redacted(world).log) if isinstance(fact, KeyPut)]
    assert not before & set(after)
    other = Redaction(LOG_ID, b"o" * 32)
    puts = [one for one in records_of(world.log, 0) if isinstance(decode_record(*one).fact, KeyPut)]
    fact: Any = decode_record(0, other.record(*puts[0])).fact
    assert fact.value_digest not in after


def test_a_pass_settles_on_the_redacted_keys_exactly_where_it_settled_before() -> None:
    world = busy_log()
    world.say(PassSettled("file", ("dynamo",), 2, 3, 12345, 99))  # on other keys than are held

    def settled(reader: LogReader) -> list[bool]:
        fold, found = Fold(), []
        for offset, data in records_of(reader, 0):
            if isinstance(fold.apply(offset, data, []), PassSettled):
                found.append(fold.state.registry.keyspaces.passes["dynamo"].settled)
        return found

    assert settled(world.log) == settled(redacted(world).log) == [True, False]


def test_publishers_at_one_address_are_still_at_one() -> None:
    world = busy_log(picks=1)
    put_channel(world, 20, "tcp://10.0.0.1:1000")
    put_channel(world, 21, "tcp://10.0.0.2:1000")
    put_channel(world, 22, "tcp://10.0.0.1:1000")
    fold = Fold()
    for offset, data in records_of(redacted(world).log, 0):
        fold.apply(offset, data, [])
    at = {one.key.publisher_id: one.address for one in fold.state.registry.fleet.publishers}
    assert at[20] == at[22] != at[21]
    assert at[9].startswith("tcp://address-")


def test_settings_keep_numbers_switches_and_quantities() -> None:
    world = busy_log(picks=1)
    texts = [fact.settings for fact in facts(redacted(world).log) if type(fact).__name__ == "ConfigAdopted"]
    document = json.loads(texts[-1])
    assert document["log"] == {"retention": {"age": "7d"}, "raw": {"enabled": True}}
    assert document["backends"] == [{"name": GONE, "url": GONE}]


def test_notes_of_ticks_and_texts_of_errors_go() -> None:
    redaction = Redaction(LOG_ID, KEY)
    world = RecordedLog()
    world.say(ClockTicked(5, 3, (("load", 7),), 4, 9))
    world.say(RecordCondemned(0, "KeyError: 10.1.2.3"))
    tick, condemned = (
        decode_record(0, redaction.record(offset, data)).fact
        for offset, data in [*records_of(world.log, 0)][-2:]
    )
    assert tick == ClockTicked(5, -1, (), 0, 0)
    assert condemned == RecordCondemned(0, GONE)


def test_bytes_that_are_no_record_are_replaced_by_others_that_are_none() -> None:
    made = Redaction(LOG_ID, KEY).record(4, b"\x01\x00\x95secret of 10.1.2.3 and more")
    with pytest.raises(RecordRefused):
        decode_record(4, made)
    assert int.from_bytes(made[-8:], "little") == xxhash.xxh3_64_intdigest(made[:-8])
    assert b"10.1.2.3" not in made


def test_a_record_of_a_newer_schema_stops_a_redaction() -> None:
    body = b"\x09\x00\x95"
    with pytest.raises(CaptureRefused, match="offset 4: its schema is newer"):
        Redaction(LOG_ID, KEY).record(4, body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little"))


def test_the_base_is_a_checkpoint_of_the_redacted_log() -> None:
    world = busy_log()
    fold = Fold()
    for offset, data in records_of(world.log, 0, 30):
        fold.apply(offset, data, [])
    made = [*Redaction(LOG_ID, KEY).base(checkpoint_records(fold, world.log.log_id))]
    opened: Any = decode_record(0, made[0]).fact
    assert (opened.log_id, opened.offset) == (LOG_ID, 29)
    again = fold_from_checkpoint(made)
    assert again.state.registry.fleet.workers.keys() == fold.state.registry.fleet.workers.keys()
    assert again.state.ledger.digest == fold.state.ledger.digest
