"""The closed list of codes, its shape, and its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from router.ingress.errors import ERRORS, ErrorCode, RequestRefused, error_body, error_event

PAGE = Path(__file__).parents[3] / "docs" / "errors.md"


def test_every_code_has_its_row_and_the_openai_shape() -> None:
    assert list(ERRORS) == list(ErrorCode)
    for code, row in ERRORS.items():
        assert 400 <= row.status <= 599
        document = json.loads(error_body(code, param="model"))
        assert document == {
            "error": {"message": row.message, "type": row.type, "code": code.value, "param": "model"}
        }


def test_page_lists_every_code_with_its_status_and_no_other() -> None:
    listed = re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", PAGE.read_text(), re.MULTILINE)
    assert listed == [(code.value, str(ERRORS[code].status)) for code in ErrorCode]


def test_contract_codes_are_there() -> None:
    wanted = {
        "invalid_request": 400,
        "model_not_found": 404,
        "no_worker": 503,
        "all_workers_busy": 503,
        "no_shim": 503,
        "disaggregated_prefill_decode_unavailable": 503,
        "disaggregated_decode_failed": 502,
        "rate_limited": 429,
        "payload_too_large": 413,
        "upstream_timeout": 504,
    }
    assert {code.value: ERRORS[code].status for code in ErrorCode if code.value in wanted} == wanted


@pytest.mark.req("DYN-18")
def test_sentences_name_no_identity() -> None:
    for row in ERRORS.values():
        assert not re.search(r"\d|://|%s|\{", row.message)


def test_refusal_may_say_more_than_its_row() -> None:
    refused = RequestRefused(ErrorCode.INVALID_REQUEST, "why", "model", (("A", "b"),))
    assert (refused.status, refused.headers) == (400, (("A", "b"),))
    assert json.loads(refused.body())["error"]["message"] == "why"


@pytest.mark.req("DYN-18")
@pytest.mark.field("B-098")
def test_error_event_ends_a_stream() -> None:
    event = error_event(ErrorCode.UPSTREAM_FAILED).decode()
    first, second, rest = event.split("\n\n")
    assert json.loads(first.removeprefix("data: "))["error"]["code"] == "upstream_failed"
    assert (second, rest) == ("data: [DONE]", "")
