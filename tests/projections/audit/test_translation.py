"""What the rows of the audit say of facts, and what is made to fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.audit.rows import CANDIDATE_COLUMNS, EndRow, PickRow
from projections.audit.translation import (
    TEXT_CHARACTERS_MAX,
    WHOLE_MAX,
    audit_message,
    candidate_rows,
    config_row,
    end_row,
    pick_row,
    replica_row,
    shadow_row,
    text,
    verification_row,
    whole,
)
from projections.events.control import ConfigAdopted, PickSettings, ReplicaStarted
from projections.events.picks import (
    Chosen,
    DispatchEnded,
    EndStatus,
    ExcludedReason,
    Fault,
    KvResult,
    PickReason,
    Verdict,
)
from router.picker.rows import CandidateRow
from tests.projections.log_story import pick

HUGE = (1 << 64) - 1


def row(instance: int, **fields: object) -> CandidateRow:
    plain = CandidateRow("ns", instance, 0, 0.5, None, 3, 10, 1, 7, Verdict.FRESH, ExcludedReason.NONE)
    return plain._replace(**fields)  # type: ignore[arg-type]


def test_a_pick_is_told_with_its_ids_as_text() -> None:
    fact = pick(5, HUGE, 1_000_000, namespace="ns")
    found = pick_row(42, fact, "load_based", 16)
    assert found == PickRow(
        fact.pick_id.hex(), "r5", 1, 1_000_000, fact.replica.hex(), 0, 42, -1, 1, "load_based", "tiny", "ns",
        str(HUGE), 0, "load", None, None, "no_prefill_pool", None, None, 100, 16, None, 1, False,
    )  # fmt: skip


def test_a_pick_of_nobody_names_nobody() -> None:
    found = pick_row(42, pick(5, None, 0), None, None)
    assert (found.namespace, found.decode_worker, found.decode_dp_rank, found.picker) == (None,) * 4


def test_a_reason_of_a_newer_release_is_told_by_its_number() -> None:
    fact = pick(1, 3, 0)
    outcome = fact.outcome._replace(decode=fact.outcome.decode._replace(reason=99))
    assert pick_row(1, fact._replace(outcome=outcome), None, None).decode_reason == "99"


def test_candidates_are_numbered_and_the_winner_is_marked() -> None:
    fact = pick(1, 7, 0, namespace="ns")
    left_out = row(9, cost=None, verdict=Verdict.EXCLUDED, excluded=ExcludedReason.SUSPECT)
    found = candidate_rows(42, fact, "decode", fact.outcome.decode, [row(7), row(8, cost=0.75), left_out], 2)
    assert len(found) == 2
    named = [dict(zip(CANDIDATE_COLUMNS, values, strict=True)) for values in found]
    assert [(of["position"], of["worker"], of["chosen"]) for of in named] == [(0, "7", True), (1, "8", False)]
    everybody = candidate_rows(42, fact, "decode", fact.outcome.decode, [row(7), row(8), left_out], None)
    last = dict(zip(CANDIDATE_COLUMNS, everybody[2], strict=True))
    assert (last["verdict"], last["excluded_reason"], last["cost"]) == ("excluded", "suspect", None)


def test_a_candidate_tells_what_the_prefix_term_saw_and_nothing_where_it_took_no_part() -> None:
    fact = pick(1, 7, 0, namespace="ns")
    seen = row(7, overlap_blocks=5, host_blocks=2, disk_blocks=HUGE, predicted_blocks=1, credit=6.5)
    outcome = fact.outcome.decode
    told, plain = candidate_rows(42, fact, "decode", outcome, [seen, row(8, host_blocks=3)], None)
    names = ("host_blocks", "disk_blocks", "predicted_blocks", "credit")
    assert CANDIDATE_COLUMNS[-4:] == names
    assert told[-4:] == (2, (1 << 63) - 1, 1, 6.5)
    assert plain[-4:] == (None, None, None, None)


def test_an_end_without_an_answer_has_no_status_code_and_no_backend() -> None:
    fact = DispatchEnded(b"p" * 16, b"r" * 16, 1, 9, EndStatus.FAILED, Fault.FAULT, 0, "", None, 5)
    assert end_row(3, fact) == EndRow(
        (b"p" * 16).hex(), 9, "failed", "fault", None, None, None, 5, None, None, None, 0, 3
    )


def test_settings_and_replicas_are_told_at_the_log_time_given() -> None:
    settings = PickSettings("load_based", "etcd", ("ns",), (), 3_000_000)
    config = config_row(4, 77, ConfigAdopted(2, "file", b"\x01\x02", "{}", settings, False))
    assert (config.adopted_at, config.digest, config.enabled, config.picker) == (
        77,
        "0102",
        False,
        "load_based",
    )
    replica = replica_row(5, 78, ReplicaStarted(b"r" * 16, "host:1", "serve", "0", "3", (1, 4), 62, ()))
    assert (replica.started_at, replica.flags, replica.label) == (78, "1,4", "host:1")


def test_a_shadow_moves_a_pick_only_if_it_chooses_other_ranks() -> None:
    fact = pick(1, 7, 0, namespace="ns")
    same = shadow_row(3, fact, "d1", "load_based", fact.outcome)
    assert (same.moved, same.decode_worker, same.unverifiable) == (False, "7", None)
    decode = fact.outcome.decode._replace(chosen=Chosen(8, 0, False, 1, 1), reason=PickReason.LOAD)
    assert shadow_row(3, fact, "d1", "x", fact.outcome._replace(decode=decode)).moved is True
    not_asked = shadow_row(3, fact, "d1", None, None, "lag")
    assert (not_asked.moved, not_asked.unverifiable, not_asked.decode_worker) == (None, "lag", None)


def test_a_verification_names_what_differs() -> None:
    found = verification_row(3, pick(1, 7, 0), 9, "different", "decode.cost", "0.1.0")
    assert (found.verdict, found.first_difference, found.logic) == ("different", "decode.cost", "0.1.0")


def test_a_message_is_the_row_by_name_under_its_picks_id() -> None:
    found = pick_row(42, pick(5, 7, 1), None, None)
    key, value = audit_message("picks", found, PickRow._fields)
    assert key == found.pick_id
    assert value["table"] == "picks"
    assert value["log_offset"] == 42


@pytest.mark.parametrize(
    ("number", "expected"), [(5, 5), (HUGE, WHOLE_MAX), (-HUGE, -WHOLE_MAX), (WHOLE_MAX, WHOLE_MAX)]
)
def test_a_number_beyond_63_bits_becomes_the_largest_that_fits(number: int, expected: int) -> None:
    assert whole(number) == expected


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_becomes_one_that_a_database_takes(value: str) -> None:
    made = text(value)
    assert "\0" not in made
    assert len(made.encode()) <= 4 * TEXT_CHARACTERS_MAX
    if len(value) <= TEXT_CHARACTERS_MAX and "\0" not in value and value.isascii():
        assert made == value


def test_text_made_longer_by_escapes_is_cut_again() -> None:
    assert len(text("\0" * TEXT_CHARACTERS_MAX)) == TEXT_CHARACTERS_MAX
    assert text("a\0\ud800") == "a\\u0000\\ud800"


@pytest.mark.req("KVP-13")
def test_what_the_prefix_term_was_worth_is_told() -> None:
    fact = pick(5, 7, 1, namespace="ns")
    question = fact.question._replace(prompt_result=int(KvResult.READY), isl_tokens=170)
    outcome = fact.outcome._replace(kv_result=int(KvResult.OVERLAP), overlap_blocks=4, block_size=64)
    found = pick_row(1, fact._replace(question=question, outcome=outcome), None, 16)
    assert (found.kv_result, found.isl_tokens, found.overlap_blocks, found.block_size) == (
        "overlap",
        170,
        4,
        64,
    )
    shadow = shadow_row(1, fact, "d", "load_based", outcome)
    assert (shadow.kv_result, shadow.overlap_blocks) == ("overlap", 4)


@pytest.mark.req("KVP-13")
@pytest.mark.field("B-058")
def test_pick_without_the_term_says_why_and_has_no_overlap() -> None:
    fact = pick(5, 7, 1, namespace="ns")
    question = fact.question._replace(prompt_result=int(KvResult.ARTIFACT_UNPINNED))
    outcome = fact.outcome._replace(kv_result=int(KvResult.ARTIFACT_UNPINNED))
    found = pick_row(1, fact._replace(question=question, outcome=outcome), None, 16)
    assert (found.kv_result, found.isl_tokens, found.overlap_blocks, found.block_size) == (
        "artifact_unpinned",
        None,
        None,
        16,
    )
    newer = pick_row(1, fact._replace(outcome=outcome._replace(kv_result=99)), None, 16)
    assert newer.kv_result == "99"
