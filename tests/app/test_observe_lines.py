"""Notices as lines: the right level, a stable sentence, a bounded rate."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from app.observe_lines import BURST, PUBLISHERS_MAX, SENTENCES_MAX, NoticeLines
from projections.notices import (
    BlocksOrphaned,
    ClearCause,
    DiscoveryKind,
    DiscoveryNotice,
    FleetPublished,
    FrameResult,
    IntakeNotice,
    IntakeResult,
    KvEventResult,
    KvNotice,
    MixedRoles,
    Notice,
    RankCleared,
    SampleNotice,
    StatusNotice,
    WorkersDeparted,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def told(*notices: Notice, lines: NoticeLines | None = None) -> list[dict[str, Any]]:
    lines = lines or NoticeLines(Clock())
    with capture_logs() as captured:
        for notice in notices:
            lines.tell(notice)
    return [dict(entry) for entry in captured]


DUPLICATE = DiscoveryNotice(
    DiscoveryKind.DUPLICATE,
    "dynamo",
    "two records claim one instance",
    identity="dynamo/7",
    keys=("a/generate/7", "b/generate/7"),
    records=2,
)


def test_a_discovery_notice_is_its_phrase_with_kind_identity_and_keys() -> None:
    assert told(DUPLICATE) == [
        {
            "log_level": "warning",
            "event": "two records claim one instance",
            "kind": "duplicate",
            "namespace": "dynamo",
            "identity": "dynamo/7",
            "keys": ("a/generate/7", "b/generate/7"),
            "records": 2,
        }
    ]


@pytest.mark.parametrize("level", ["debug", "info", "warning"])
def test_a_notice_says_its_own_level(level: str) -> None:
    assert told(StatusNotice("replica gone", "a b", level))[0]["log_level"] == level
    assert told(DUPLICATE._replace(level=level))[0]["log_level"] == level


def test_a_level_that_is_none_is_info() -> None:
    assert told(StatusNotice("odd", "", "exception"))[0]["log_level"] == "info"


@pytest.mark.parametrize(
    ("result", "level"),
    [
        (FrameResult.MALFORMED, "warning"),
        (FrameResult.IDENTITY_MISMATCH, "warning"),
        (FrameResult.OVERSIZED, "warning"),
        (FrameResult.GAP, "info"),
        (FrameResult.DUPLICATE, "debug"),
    ],
)
def test_the_first_refusal_of_a_publisher_is_told_and_later_ones_are_for_debugging(
    result: FrameResult, level: str
) -> None:
    notice = SampleNotice(result, "dynamo", 0xAB, 3)
    found = told(notice, notice, notice._replace(publisher_id=0xAC))
    assert [entry["log_level"] for entry in found] == [level, "debug", level]
    assert (found[0]["publisher"], found[0]["frames"]) == ("ab", 3)


@pytest.mark.parametrize("result", list(IntakeResult))
def test_every_record_without_effect_has_a_sentence_with_its_offset(result: IntakeResult) -> None:
    [entry] = told(IntakeNotice(result, 1234, "kind 9"))
    assert (entry["offset"], entry["detail"]) == (1234, "kind 9")


@pytest.mark.parametrize("result", list(FrameResult))
def test_every_result_of_a_frame_has_a_sentence(result: FrameResult) -> None:
    assert told(SampleNotice(result, "dynamo", 1))[0]["event"]


def test_many_departed_workers_are_counted_and_some_are_named() -> None:
    [entry] = told(WorkersDeparted(tuple(("dynamo", number) for number in range(1000))))
    assert entry["number"] == 1000
    assert entry["workers"][:2] == ["dynamo/0", "dynamo/1"]
    assert len(entry["workers"]) == 8


def test_a_changed_fleet_is_told_by_its_generation() -> None:
    assert told(FleetPublished(12))[0] == {
        "log_level": "info",
        "event": "the fleet changed",
        "generation": 12,
    }


def test_each_mixed_model_is_a_warning_with_the_three_counts() -> None:
    found = told(MixedRoles((("dynamo", "m", 1, 2, 3), ("dynamo", "n", 4, 5, 6)), 7))
    assert [entry["model"] for entry in found] == ["m", "n"]
    assert found[0]["log_level"] == "warning"
    assert (found[0]["prefill"], found[0]["decode"], found[0]["aggregated"], found[0]["further"]) == (
        1,
        2,
        3,
        7,
    )


def test_a_storm_of_one_sentence_is_thinned_and_says_how_much_was_left_out() -> None:
    clock = Clock()
    lines = NoticeLines(clock)
    assert len(told(*[DUPLICATE] * (BURST + 100), lines=lines)) == BURST
    clock.now_s += 1.0
    first, second = told(*[DUPLICATE] * 10, lines=lines)
    assert first["left_out"] == 100
    assert "left_out" not in second


def test_a_storm_leaves_other_sentences_alone() -> None:
    lines = NoticeLines(Clock())
    told(*[DUPLICATE] * (BURST + 1), lines=lines)
    assert len(told(FleetPublished(1), lines=lines)) == 1


def test_debug_lines_are_never_left_out() -> None:
    assert len(told(*[DUPLICATE._replace(level="debug")] * (2 * BURST))) == 2 * BURST


def test_what_is_remembered_is_bounded() -> None:
    lines = NoticeLines(Clock())
    with capture_logs():
        for number in range(PUBLISHERS_MAX + SENTENCES_MAX):
            lines.tell(SampleNotice(FrameResult.MALFORMED, "dynamo", number))
            lines.tell(StatusNotice(f"sentence {number}"))
    assert len(lines._told) == PUBLISHERS_MAX
    assert len(lines._rates) == SENTENCES_MAX


def test_a_process_that_stood_still_is_told_in_milliseconds() -> None:
    lines = NoticeLines(Clock())
    with capture_logs() as captured:
        lines.stood_still(2_500_000)
    assert captured == [{"log_level": "warning", "event": "this process stood still", "milliseconds": 2500}]


@pytest.mark.parametrize("result", list(KvEventResult))
def test_every_result_of_a_block_event_has_a_sentence(result: KvEventResult) -> None:
    found = told(*[KvNotice(result, "dynamo", 0xAB, 3)] * 2)
    assert found[0]["event"] and (found[0]["publisher"], found[0]["events"]) == ("ab", 3)
    assert found[1]["log_level"] == "debug", "told once a publisher"


def test_a_rank_with_orphans_has_no_line_beside_that_of_its_publisher() -> None:
    assert told(BlocksOrphaned("dynamo", 26, 1)) == []


@pytest.mark.parametrize(
    ("cause", "level"),
    [(ClearCause.GAP, "info"), (ClearCause.AGED, "info"), (ClearCause.DEPARTED, "debug")],
)
def test_a_cleared_rank_is_told_with_its_blocks_and_cause(cause: ClearCause, level: str) -> None:
    [entry] = told(RankCleared(cause, "dynamo", 26, 1, 512))
    assert (entry["log_level"], entry["cause"], entry["blocks"]) == (level, cause.label, 512)
    assert (entry["worker"], entry["dp_rank"]) == ("dynamo/26", 1)
