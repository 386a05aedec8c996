"""What prefix-aware picks were worth, and whether it was true, as counters."""

import pytest

from app.observe import Observer
from app.observe_kv import SELECTION_RESULTS
from projections.events.picks import KvResult, PickReason
from router.prompt.artifact_set import ArtifactResult
from tests.app.observed import scraped, value
from tests.projections.log_story import pick


def counted(observer: Observer, name: str) -> dict[str, float]:
    """Values of a family with one label, by its value."""
    return {labels[0][1]: number for (found, labels), number in scraped(observer).items() if found == name}


@pytest.mark.req("MET-08", "KVP-13")
def test_each_pick_counts_under_what_its_term_was_worth() -> None:
    observer = Observer()
    made = pick(1, 1, 5)
    for result in KvResult:
        observer.picked(made._replace(outcome=made.outcome._replace(kv_result=int(result))), 10, None)
    found = counted(observer, "continuum_dynamo_kv_selection_total")
    assert found == {result.label: 1.0 for result in SELECTION_RESULTS}
    assert {"unsupported", "mismatched", "off", "ready"}.isdisjoint(found)


@pytest.mark.req("CDG-06")
def test_a_bypass_counts_as_a_result_and_as_the_reason_of_the_prefill_that_did_not_come() -> None:
    observer = Observer()
    made = pick(1, 1, 5)
    prefill = made.outcome.prefill._replace(reason=int(PickReason.CONDITIONAL_BYPASS), chosen=None)
    outcome = made.outcome._replace(kv_result=int(KvResult.BYPASS), prefill=prefill)
    observer.picked(made._replace(outcome=outcome), 10, None)
    found = scraped(observer)
    assert value(found, "continuum_dynamo_kv_selection_total", result="bypass") == 1
    name = "continuum_dynamo_selection_total"
    assert value(found, name, role="prefill", reason="conditional_bypass") == 1
    assert value(found, name, role="decode", reason="load") == 1


@pytest.mark.req("MET-08", "ART-10")
def test_artifacts_are_counted_from_0_on() -> None:
    observer = Observer()
    observer.artifact(ArtifactResult.UNPINNED)
    found = counted(observer, "continuum_dynamo_kv_artifacts_total")
    assert found == {result.value: float(result is ArtifactResult.UNPINNED) for result in ArtifactResult}


def test_predictions_are_compared_with_events_and_with_answers() -> None:
    observer = Observer()
    observer.prediction_checked(10, 7)
    observer.prediction_checked(5, 5)
    observer.cached_compared(160, 144)
    observer.cached_compared(0, -3)
    assert counted(observer, "picklog_kv_checked_blocks_total") == {"confirmed": 12.0, "missing": 3.0}
    assert counted(observer, "picklog_cached_tokens_total") == {"pick": 160.0, "answer": 144.0}
