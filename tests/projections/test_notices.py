"""Label sets and numbers of notices are closed: some are part of the log's format."""

from __future__ import annotations

import typing

import pytest

from projections.notices import (
    ClearCause,
    DiscoveryKind,
    FrameResult,
    IntakeResult,
    KvEventResult,
    Notice,
)


def test_results_of_frames_keep_their_numbers() -> None:
    """A FrameRefused record carries one: append, never renumber."""
    assert {result.label: int(result) for result in FrameResult} == {
        "applied": 1,
        "duplicate": 2,
        "malformed": 3,
        "unknown_version": 4,
        "topic_mismatch": 5,
        "oversized": 6,
        "identity_mismatch": 7,
        "over_capacity": 8,
        "transport_refused": 9,
        "gap": 10,
        "unsupported": 11,
    }


@pytest.mark.req("MET-08")
def test_every_result_of_a_frame_that_is_refused_is_one_of_block_events_too() -> None:
    labels = {result.label for result in KvEventResult}
    assert {result.label for result in FrameResult} - labels == {"duplicate"}, "those are replays"
    assert {"applied", "replay", "gap", "orphan", "other_tier", "aged", "displaced"} <= labels


def test_causes_of_cleared_ranks_are_words() -> None:
    assert [cause.label for cause in ClearCause] == [
        "engine",
        "gap",
        "new_publisher",
        "binding",
        "aged",
        "ended",
        "departed",
        "switched_off",
    ]


@pytest.mark.req("MET-01")
def test_discovery_kinds_have_the_labels_of_the_specification() -> None:
    labels = {kind.label for kind in DiscoveryKind}
    assert {"duplicate", "restart", "refused", "mismatch", "malformed", "unsupported"} <= labels
    assert all(label == label.lower() and label.isidentifier() for label in labels)


def test_labels_of_intake_are_words() -> None:
    assert [result.label for result in IntakeResult] == [
        "duplicate_record",
        "foreign_owner",
        "unknown_kind",
        "refused_bytes",
        "condemned",
        "over_capacity",
    ]


def test_notices_are_values_that_compare() -> None:
    """Two folds are compared by what they tell: every notice is a named tuple."""
    for kind in typing.get_args(Notice):
        assert issubclass(kind, tuple) and hasattr(kind, "_fields")
