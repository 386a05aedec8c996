"""Verify tells equal, different and unverifiable apart, and names the first field that differs."""

import pytest

import replay.verify as verify_module
from projections.events.codec import decode_record, encode_record
from projections.events.picks import Outcome, PickMade
from projections.events.ports import MemoryLog
from replay.engine import Unverifiable, records_of
from replay.verify import verify
from router.picker.pick import pick
from tests.replay.recorded_log import RecordedLog


def busy_log(picks: int = 12) -> RecordedLog:
    world = RecordedLog()
    replica = world.replica()
    for number in range(picks):
        world.pass_time(50_000)
        world.sample(1 + number % 3, 3 * number)
        if number % 2:
            replica.read()
        fact = replica.ask(f"r{number}", tokens=40 * number + 1)
        if number % 3 == 0:
            replica.end(fact)
    return world


@pytest.mark.req("EVS-06", "PICK-14")
def test_every_pick_of_a_log_is_repeated_byte_for_byte() -> None:
    report = verify(busy_log().log, None)
    assert (report.picks, report.equal, report.different, report.unverifiable) == (12, 12, 0, 0)
    assert report.first_difference is None


def test_an_empty_range_has_no_picks_and_no_difference() -> None:
    world = busy_log()
    report = verify(world.log, None, start=world.log.end_offset())
    assert (report.picks, report.different) == (0, 0)


def rewritten(world: RecordedLog, change) -> MemoryLog:  # type: ignore[no-untyped-def]
    """The same log with each pick changed, as a tampering hand or another code would have it."""
    log = MemoryLog(world.log.log_id)
    for offset, data in records_of(world.log, 0):
        record = decode_record(offset, data)
        fact = change(record.fact) if isinstance(record.fact, PickMade) else record.fact
        log.commit([encode_record(record.time, record.writer, record.epoch, record.sequence, fact)])
    return log


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda o: o._replace(rotation_decode=o.rotation_decode + 1), "outcome.rotation_decode"),
        (
            lambda o: o._replace(decode=o.decode._replace(chosen=o.decode.chosen._replace(instance_id=77))),
            "outcome.decode.chosen.instance_id",
        ),
        (lambda o: o._replace(namespace="elsewhere"), "outcome.namespace"),
        (lambda o: o._replace(rows_digest=bytes(16)), "outcome.rows_digest"),
        (lambda o: o._replace(prefill=o.prefill._replace(reason=1)), "outcome.prefill.reason"),
    ],
)
def test_a_changed_field_of_an_outcome_is_named(change, field: str) -> None:  # type: ignore[no-untyped-def]
    world = busy_log()
    log = rewritten(world, lambda fact: fact._replace(outcome=change(fact.outcome)))
    report = verify(log, None)
    assert (report.different, report.equal) == (12, 0)
    assert report.first_difference is not None
    assert report.first_difference.field == field
    assert report.first_difference.offset == min(
        offset for offset, data in records_of(log, 0) if data[3] == 20 or data[5] == 20
    )


def test_a_changed_cost_in_a_kept_row_is_named_by_position_and_column() -> None:
    world = busy_log()

    def raised(fact: PickMade) -> PickMade:
        rows = bytearray(fact.outcome.decode.rows)
        rows[-1] ^= 1
        decode = fact.outcome.decode._replace(rows=bytes(rows))
        return fact._replace(outcome=fact.outcome._replace(decode=decode))

    report = verify(rewritten(world, raised), None)
    assert report.different == 12
    assert report.first_difference is not None
    assert report.first_difference.field.startswith("outcome.decode.rows")


def test_a_changed_question_makes_a_difference_or_none_but_never_an_error() -> None:
    world = busy_log()
    log = rewritten(world, lambda f: f._replace(question=f.question._replace(estimated_tokens=1 << 40)))
    assert verify(log, None).different == 12


def test_a_picker_that_raises_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Outcome:
        raise ZeroDivisionError("a deliberately broken picker")

    monkeypatch.setattr(verify_module, "pick", broken)
    report = verify(busy_log().log, None)
    assert report.different == 12
    assert report.first_difference is not None
    assert "ZeroDivisionError" in report.first_difference.repeated


def test_a_deliberately_changed_picker_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pick

    def other(view, question, settings, flags):  # type: ignore[no-untyped-def]
        return real(view, question._replace(rotation_decode=question.rotation_decode + 1), settings, flags)

    monkeypatch.setattr(verify_module, "pick", other)
    assert verify(busy_log().log, None).different > 0


def test_unverifiable_picks_are_counted_by_reason() -> None:
    world = RecordedLog()
    replica = world.replica()
    replica.ask("r0", suspect=True)
    replica.ask("r1")
    report = verify(world.log, None)
    assert (report.picks, report.equal, report.unverifiable) == (2, 1, 1)
    assert report.reasons == {Unverifiable.SUSPECT: 1}
