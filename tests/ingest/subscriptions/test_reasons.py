"""Reasons are words for labels, and none of them makes an end keep samples by accident."""

from __future__ import annotations

import re

import pytest

from ingest.subscriptions.reasons import Reason
from projections.load.store import KEEPS_SAMPLES


def test_reasons_are_plain_words() -> None:
    assert [reason for reason in Reason if not re.fullmatch(r"[a-z_]{1,32}", reason.value)] == []


@pytest.mark.req("STORE-13")
def test_no_end_that_we_tell_keeps_samples() -> None:
    assert KEEPS_SAMPLES not in [reason.value for reason in Reason]
