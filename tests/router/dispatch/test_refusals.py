"""Every row of the table of answers, and every status in between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.events.picks import EndStatus, Fault
from router.dispatch.refusals import REFUSAL_TEXT, ROWS, Finding, Next, Trouble, judge
from router.ingress.errors import ErrorCode
from router.metrics import ErrorPhase

GENERIC = b'{"message":"Failed to generate completions","type":"Internal Server Error","code":500}'
NAMED = (
    b'{"message":"nvext.decode_worker_id=7 does not identify a known worker","type":"Bad Request","code":400}'
)
INVALID = b'{"message":"Invalid request","type":"Bad Request","code":400}'
OK, REFUSED, FAILED, EXPIRED = EndStatus.OK, EndStatus.REFUSED, EndStatus.FAILED, EndStatus.EXPIRED
DECODE = ErrorPhase.DECODE

CASES = [
    # finding, next, end, fault, falls back, code, phase
    (
        Finding(Trouble.NOT_CONNECTED),
        Next.NEXT_REPLICA, FAILED, Fault.NONE, True, ErrorCode.DECODE_FAILED, DECODE,
    ),
    (Finding(Trouble.UNSENT), Next.NEXT_REPLICA, FAILED, Fault.NONE, True, ErrorCode.DECODE_FAILED, DECODE),
    (Finding(Trouble.LOST), Next.GIVE_UP, FAILED, Fault.FAULT, True, ErrorCode.DECODE_FAILED, DECODE),
    (Finding(Trouble.SILENT), Next.GIVE_UP, EXPIRED, Fault.NONE, False, ErrorCode.UPSTREAM_TIMEOUT, DECODE),
    (Finding(Trouble.NONE, 200), Next.RELAY, OK, Fault.NONE, False, None, None),
    (Finding(Trouble.NONE, 200, REFUSAL_TEXT), Next.RELAY, OK, Fault.NONE, False, None, None),
    *[
        (
            Finding(Trouble.NONE, status, b'{"message":"' + REFUSAL_TEXT + b' (SGLang path)"}'),
            Next.GIVE_UP, REFUSED, Fault.NONE, False,
            ErrorCode.PREFILL_DECODE_UNAVAILABLE, ErrorPhase.ORCHESTRATION,
        )
        for status in (400, 500, 503)
    ],
    *[
        (
            Finding(Trouble.NONE, status),
            Next.GIVE_UP, REFUSED, Fault.BACKPRESSURE, True, ErrorCode.RATE_LIMITED, DECODE,
        )
        for status in (529, 429, 408)
    ],
    *[
        (
            Finding(Trouble.NONE, status, GENERIC),
            Next.GIVE_UP, FAILED, Fault.FAULT, True, ErrorCode.DECODE_FAILED, DECODE,
        )
        for status in (500, 503)
    ],
    (
        Finding(Trouble.NONE, 400, INVALID, worker_left=True),
        Next.GIVE_UP, REFUSED, Fault.NONE, True, ErrorCode.NO_WORKER, DECODE,
    ),
    (Finding(Trouble.NONE, 400, NAMED), Next.GIVE_UP, REFUSED, Fault.NONE, True, ErrorCode.NO_WORKER, DECODE),
    (Finding(Trouble.NONE, 400, INVALID), Next.RELAY, REFUSED, Fault.NONE, False, None, None),
    (Finding(Trouble.NONE, 422), Next.RELAY, REFUSED, Fault.NONE, False, None, None),
    (Finding(Trouble.NONE, 404), Next.NEXT_REPLICA, REFUSED, Fault.NONE, True, ErrorCode.NO_SHIM, DECODE),
    (Finding(Trouble.NONE, 404, model_served=False), Next.RELAY, REFUSED, Fault.NONE, False, None, None),
    (Finding(Trouble.NONE, 502), Next.GIVE_UP, FAILED, Fault.NONE, True, ErrorCode.DECODE_FAILED, DECODE),
    (Finding(Trouble.NONE, 302), Next.GIVE_UP, FAILED, Fault.NONE, True, ErrorCode.DECODE_FAILED, DECODE),
]  # fmt: skip


@pytest.mark.req("SHIM-20", "SHIM-21", "SHIM-22", "SHIM-24", "SHIM-29", "DYN-14")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].trouble.name}-{case[0].status}")
def test_row_of_each_answer(
    case: tuple[Finding, Next, EndStatus, Fault, bool, ErrorCode | None, ErrorPhase | None],
) -> None:
    finding, *wanted = case
    row = judge(finding)
    assert [row.next, row.end, row.fault, row.falls_back, row.code, row.phase] == wanted


def test_cases_above_reach_every_row() -> None:
    assert {judge(case[0]).name for case in CASES} == {row.name for row in ROWS}


@given(
    trouble=st.sampled_from(Trouble),
    status=st.integers(0, 999),
    body=st.binary(max_size=60),
    worker_left=st.booleans(),
    model_served=st.booleans(),
)
def test_every_finding_has_a_row_that_is_whole(
    trouble: Trouble, status: int, body: bytes, worker_left: bool, model_served: bool
) -> None:
    row = judge(Finding(trouble, status, body, worker_left, model_served))
    assert (row.code is None) == (row.next is Next.RELAY)
    assert (row.phase is None) == (row.next is Next.RELAY)
    if row.fault is Fault.FAULT:
        assert trouble is Trouble.LOST or status in (500, 503)
