"""When a decode worker prefills by itself."""

from __future__ import annotations

from typing import Any

import pytest

from projections.events.control import ConditionalSettings
from projections.events.picks import ExcludedReason, Verdict
from projections.registry.fleet import Role
from router.picker.conditional import may_bypass
from router.picker.rows import CandidateRow
from tests.router.picker.builders import a_worker

ROW = CandidateRow("dynamo", 1, 0, 1.0, 0, 0, 0, 0, 0, Verdict.FRESH, ExcludedReason.NONE, credit=0.0)


def asked(
    isl: int = 3_000,
    overlap: int = 150,
    policy: str = "isl_bounding",
    size: int | None = 16,
    total: int | None = 1_000,
    batch: int | None = 8_192,
    prefill: dict[str, Any] | None = None,
    decode: dict[str, Any] | None = None,
    **fields: Any,
) -> bool:
    values: dict[str, Any] = {
        "eff_isl_tokens": 2_048,
        "eff_isl_ratio": 0.7,
        "prefill_busy": None,
        "decode_busy": None,
    }
    settings = ConditionalSettings(policy, **(values | fields))
    return may_bypass(
        settings,
        isl,
        (ROW._replace(**(prefill or {})), a_worker(1, Role.PREFILL, max_num_batched_tokens=batch)),
        (
            ROW._replace(**({"overlap_blocks": overlap} | (decode or {}))),
            a_worker(2, block_size=size, total_kv_blocks=total),
        ),
    )


@pytest.mark.req("CDG-02", "DYN-21")
@pytest.mark.parametrize(
    ("isl", "overlap", "expected"),
    [
        (3_000, 150, True),  # 600 net new of 3,000
        (1_000, 0, False),  # all of a short prompt is new
        (10_000, 498, True),  # 2,032
        (10_240, 512, False),  # 2,048 is not below 2,048
        (1_000, 19, True),  # 696 of 1,000
        (1_120, 21, False),  # 784 of 1,120 is 0.7, which is not below it
        (160, 10, True),
        (165, 10, True),
        (0, 0, True),  # nothing to compute
    ],
)
def test_few_new_tokens_that_are_a_small_share(isl: int, overlap: int, expected: bool) -> None:
    assert asked(isl, overlap) is expected


@pytest.mark.req("CDG-03")
@pytest.mark.parametrize(
    ("policy", "active", "unanswered", "overlap", "expected"),
    [
        ("prefill_load", 4_096, 0, 150, False),  # exactly half is not above it
        ("prefill_load", 4_097, 0, 150, True),
        ("prefill_load", 4_000, 97, 150, True),
        ("prefill_load", 4_097, 0, 0, True),
        ("isl_or_load", 0, 0, 150, True),
        ("isl_or_load", 4_097, 0, 0, True),
        ("isl_or_load", 4_096, 0, 0, False),
        ("isl_bounding", 8_000, 0, 0, False),
        ("anything", 8_000, 0, 150, False),
    ],
)
def test_busy_prefill_rank(policy: str, active: int, unanswered: int, overlap: int, expected: bool) -> None:
    prefill = {"active_prefill_tokens": active, "unanswered_tokens": unanswered}
    assert asked(policy=policy, overlap=overlap, prefill=prefill, prefill_busy=0.5) is expected


@pytest.mark.req("CDG-03")
@pytest.mark.parametrize(
    ("verdict", "batch", "busy"),
    [(Verdict.SILENT, 8_192, 0.5), (Verdict.FRESH, None, 0.5), (Verdict.FRESH, 8_192, None)],
)
def test_prefill_rank_of_unknown_backlog_is_not_busy(
    verdict: Verdict, batch: int | None, busy: float | None
) -> None:
    prefill = {"active_prefill_tokens": 9_000, "verdict": verdict}
    assert asked(policy="prefill_load", batch=batch, prefill=prefill, prefill_busy=busy) is False


@pytest.mark.req("CDG-04")
@pytest.mark.parametrize(
    ("blocks", "unanswered", "expected"), [(862, 0, True), (863, 0, False), (800, 62, True), (800, 63, False)]
)
def test_projected_blocks_stay_within_the_share(blocks: int, unanswered: int, expected: bool) -> None:
    """3,000 tokens are 188 blocks, of which 150 are held: 38 are added."""
    decode = {"active_decode_blocks": blocks, "unanswered_blocks": unanswered}
    assert asked(decode=decode, decode_busy=0.9) is expected


@pytest.mark.req("CDG-05")
@pytest.mark.parametrize(
    ("decode", "total", "expected"),
    [
        ({"active_decode_blocks": None, "verdict": Verdict.QUIET}, 1_000, False),
        ({"active_decode_blocks": None}, 1_000, False),
        ({"active_decode_blocks": 5, "verdict": Verdict.SILENT}, 1_000, False),
        ({"active_decode_blocks": 0, "verdict": Verdict.QUIET}, 1_000, True),
        ({"active_decode_blocks": 5}, None, False),
        ({"active_decode_blocks": 5}, 0, False),
        ({"active_decode_blocks": 5}, 1_000, True),
    ],
)
def test_unknown_room_vetoes(decode: dict[str, Any], total: int | None, expected: bool) -> None:
    assert asked(decode=decode, total=total, decode_busy=0.9) is expected
    assert asked(decode=decode, total=total) is True
