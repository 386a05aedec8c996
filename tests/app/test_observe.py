"""Counters: each event counts where it should, and no text from outside becomes a series."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from app.audit_figures import Failure
from app.checkpoint_store import CheckpointFolder
from app.follower import Follower
from app.follower_door import FollowerRegistry, FollowerState
from app.follower_figures import ShadowResult, Verdict
from app.follower_standing import ChildMetrics
from app.observe import FOLDED_STEP_MAX, Observer, ReloadResult
from app.observe_kv import SELECTION_RESULTS
from app.observe_state import LogFigures
from app.stream_worker import Peer
from projections.events.picks import Chosen, Phase, PickReason
from projections.events.ports import MemoryLog
from projections.notices import (
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
    SampleNotice,
    StatusNotice,
    WorkersDeparted,
)
from router.ingress.errors import ErrorCode
from router.metrics import ErrorPhase, Route, RouterMetrics, RoutingPath
from router.prompt.artifact_set import ArtifactResult
from tests.app.observed import Process, labels_of, scraped, series_of, value
from tests.app.stream_site import worker_text
from tests.projections.log_story import pick
from tests.sources import REPOSITORY


def discovery(kind: DiscoveryKind, **more: Any) -> DiscoveryNotice:
    return DiscoveryNotice(kind, "dynamo", "something odd", **more)


# Counting ------------------------------------------------------------------------------


@pytest.mark.req("MET-01")
def test_every_kind_of_discovery_event_is_counted_from_0_on() -> None:
    observer = Observer()
    before = scraped(observer)
    name = "continuum_dynamo_discovery_events_total"
    assert {labels["kind"] for labels in labels_of(before, name)} == {kind.label for kind in DiscoveryKind}
    assert {"duplicate", "restart", "refused", "mismatch", "malformed", "unsupported"} <= {
        kind.label for kind in DiscoveryKind
    }
    for times, kind in enumerate(DiscoveryKind, 1):
        observer.on_notices([discovery(kind, times=times)])
    after = scraped(observer)
    for times, kind in enumerate(DiscoveryKind, 1):
        assert value(before, name, kind=kind.label) == 0
        assert value(after, name, kind=kind.label) == times


@pytest.mark.req("MET-04")
def test_every_result_of_a_frame_is_counted_from_0_on() -> None:
    observer = Observer()
    name = "continuum_dynamo_load_events_total"
    assert {labels["result"] for labels in labels_of(scraped(observer), name)} == {
        "applied",
        "duplicate",
        "malformed",
        "unknown_version",
        "topic_mismatch",
        "oversized",
        "identity_mismatch",
        "over_capacity",
        "transport_refused",
        "gap",
        "unsupported",
    }
    observer.on_notices([SampleNotice(result, "dynamo", 7, times=int(result)) for result in FrameResult] * 2)
    after = scraped(observer)
    for result in FrameResult:
        assert value(after, name, result=result.label) == 2 * int(result)


@pytest.mark.req("MET-08")
def test_block_events_are_counted_and_everyday_ones_write_no_line() -> None:
    observer = Observer()
    with capture_logs() as lines:
        observer.on_notices(
            [
                KvNotice(KvEventResult.APPLIED, "dynamo", 7, 100),
                KvNotice(KvEventResult.GAP, "dynamo", 7),
                KvNotice(KvEventResult.GAP, "dynamo", 7, -1),
            ]
        )
    series = scraped(observer)
    assert len(labels_of(series, "continuum_dynamo_kv_events_total")) == len(KvEventResult)
    assert value(series, "continuum_dynamo_kv_events_total", result="applied") == 100
    assert value(series, "continuum_dynamo_kv_events_total", result="gap") == 1
    assert [line["log_level"] for line in lines] == ["info", "debug"]


def test_records_without_effect_departures_and_changes_are_counted() -> None:
    observer = Observer()
    observer.on_notices(
        [
            IntakeNotice(IntakeResult.FOREIGN_OWNER, 5),
            WorkersDeparted((("dynamo", 1), ("dynamo", 2))),
            FleetPublished(3),
            StatusNotice("settings adopted"),
            MixedRoles((), 0),
        ]
    )
    after = scraped(observer)
    assert value(after, "picklog_records_without_effect_total", result="foreign_owner") == 1
    assert value(after, "picklog_workers_departed_total") == 2
    assert value(after, "picklog_fleet_changes_total") == 1


def test_of_new_fleets_in_one_slice_all_are_counted_and_the_last_is_told() -> None:
    observer = Observer()
    with capture_logs() as captured:
        observer.on_notices([FleetPublished(number) for number in range(1, 27)])
    assert [entry["generation"] for entry in captured] == [26]
    assert value(scraped(observer), "picklog_fleet_changes_total") == 26


def test_what_ingest_leaves_out_is_counted_without_reaching_the_fold() -> None:
    observer = Observer()
    observer.discovery_refused(discovery(DiscoveryKind.MALFORMED, times=3))
    observer.noticed(StatusNotice("event sources may not be read"))
    after = scraped(observer)
    assert value(after, "continuum_dynamo_discovery_events_total", kind="malformed") == 3


def test_old_news_is_counted_and_not_told() -> None:
    observer = Observer()
    observer.is_quiet = True
    with capture_logs() as captured:
        observer.on_notices([discovery(DiscoveryKind.DUPLICATE)])
        assert captured == []
        observer.is_quiet = False
        observer.on_notices([discovery(DiscoveryKind.DUPLICATE)])
    assert [entry["event"] for entry in captured] == ["something odd"]
    assert value(scraped(observer), "continuum_dynamo_discovery_events_total", kind="duplicate") == 2


def test_applied_samples_write_no_line() -> None:
    with capture_logs() as captured:
        Observer().on_notices([SampleNotice(FrameResult.APPLIED, "dynamo", 7)] * 100)
    assert captured == []


# The router ----------------------------------------------------------------------------


def picked(observer: Observer, decode: PickReason, prefill: PickReason, age_us: int | None = 250_000) -> None:
    fact = pick(1, 7, 0)
    outcome = fact.outcome
    none = decode is PickReason.NO_CANDIDATE
    chosen = None if none else Chosen(7, 0, False, 10, 1)
    outcome = outcome._replace(
        decode=outcome.decode._replace(reason=int(decode), chosen=chosen),
        prefill=outcome.prefill._replace(reason=int(prefill)),
    )
    observer.picked(fact._replace(outcome=outcome), 120, age_us)


@pytest.mark.req("MET-07", "PICK-11")
def test_each_pick_counts_once_a_role_under_its_reason() -> None:
    observer = Observer()
    for _ in range(3):
        picked(observer, PickReason.LOAD, PickReason.ROUND_ROBIN_STALE)
    after = scraped(observer)
    name = "continuum_dynamo_selection_total"
    assert value(after, name, role="decode", reason="load") == 3
    assert value(after, name, role="prefill", reason="round_robin_stale") == 3
    assert sum(after[key] for key in after if key[0] == name) == 6


@pytest.mark.req("MET-07", "PICK-11")
def test_the_reasons_of_the_metric_are_five_and_no_candidate_is_not_among_them() -> None:
    observer = Observer()
    picked(observer, PickReason.NO_CANDIDATE, PickReason.NO_CANDIDATE)
    found = labels_of(scraped(observer), "continuum_dynamo_selection_total")
    assert {labels["reason"] for labels in found} == {
        "load",
        "round_robin_stale",
        "no_prefill_pool",
        "kv_aware",
        "conditional_bypass",
    }
    assert {labels["role"] for labels in found} == {Phase.PREFILL.label, Phase.DECODE.label}


def test_latency_and_age_of_inputs_are_observed_for_picks_that_chose() -> None:
    observer = Observer()
    picked(observer, PickReason.LOAD, PickReason.NO_PREFILL_POOL)
    picked(observer, PickReason.ROUND_ROBIN_STALE, PickReason.NO_PREFILL_POOL, age_us=None)
    picked(observer, PickReason.NO_CANDIDATE, PickReason.NO_CANDIDATE, age_us=None)
    after = scraped(observer)
    assert value(after, "picklog_pick_seconds_count") == 3
    assert value(after, "picklog_pick_seconds_bucket", le="0.00015") == 3
    assert value(after, "picklog_pick_seconds_bucket", le="0.0001") == 0
    assert value(after, "picklog_pick_input_age_seconds_count") == 1
    assert value(after, "picklog_pick_input_age_seconds_bucket", le="0.25") == 1
    assert value(after, "picklog_picks_without_sample_total") == 1


@pytest.mark.req("MET-11")
def test_paths_and_errors_of_pinned_requests_are_counted_from_0_on() -> None:
    observer = Observer()
    before = scraped(observer)
    paths = {labels["routing_path"] for labels in labels_of(before, "disaggregated_requests_total")}
    assert paths == {"prefill_then_decode", "unified", "fallback"}
    phases = {labels["phase"] for labels in labels_of(before, "disaggregated_errors_total")}
    assert phases == {"orchestration", "prefill", "decode"}
    observer.routed(RoutingPath.FALLBACK)
    observer.failed(ErrorPhase.DECODE)
    after = scraped(observer)
    assert value(after, "disaggregated_requests_total", routing_path="fallback") == 1
    assert value(after, "disaggregated_errors_total", phase="decode") == 1


@pytest.mark.field("B-112")
def test_answers_are_counted_by_route_status_class_and_code() -> None:
    observer = Observer()
    observer.answered(Route.CHAT, 200, None, 2_000_000)
    observer.answered(Route.CHAT, 503, ErrorCode.NO_WORKER, 1_000)
    after = scraped(observer)
    assert value(after, "picklog_answers_total", route="/v1/chat/completions", status="2xx") == 1
    assert value(after, "picklog_answers_total", route="/v1/chat/completions", status="5xx") == 1
    assert value(after, "picklog_errors_total", code="no_worker") == 1
    assert value(after, "picklog_answer_seconds_sum", route="/v1/chat/completions") == pytest.approx(2.001)


def test_retries_unusable_frontends_and_unlogged_picks_are_counted() -> None:
    observer = Observer()
    metrics: RouterMetrics = observer
    metrics.retried()
    metrics.replica_unusable()
    metrics.pick_unlogged()
    after = scraped(observer)
    assert value(after, "picklog_retries_total") == 1
    assert value(after, "picklog_frontend_unusable_total") == 1
    assert value(after, "picks_unlogged_total") == 1


# The log -------------------------------------------------------------------------------


def test_appends_are_timed_and_lost_ones_counted() -> None:
    observer = Observer()
    observer.appended(1_500)
    observer.append_lost()
    after = scraped(observer)
    assert value(after, "picklog_append_seconds_bucket", le="0.002") == 1
    assert value(after, "picklog_append_seconds_bucket", le="0.001") == 0
    assert value(after, "picklog_appends_lost_total") == 1


def test_folded_records_are_counted_by_offsets_without_jumps_and_restarts() -> None:
    observer = Observer()
    for offset in (100, 150, 150, 200):
        observer.folded(offset)
    assert value(scraped(observer), "picklog_folded_records_total") == 100
    observer.folded(1 << 20)
    assert value(scraped(observer), "picklog_folded_records_total") == 100 + FOLDED_STEP_MAX
    observer.fold_restarted("disagreed")
    observer.folded(50)
    observer.folded(60)
    assert value(scraped(observer), "picklog_folded_records_total") == 110 + FOLDED_STEP_MAX


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("condemned", "condemned"),
        ("disagreed", "disagreed"),
        ("overtaken", "overtaken"),
        ("moon phase", "other"),
    ],
)
def test_folds_that_start_anew_are_counted_by_cause(reason: str, label: str) -> None:
    observer = Observer()
    observer.fold_restarted(reason)
    after = scraped(observer)
    assert value(after, "picklog_fold_restarts_total", reason=label) == 1
    assert len(labels_of(after, "picklog_fold_restarts_total")) == 4


def test_stalls_and_reloads_are_counted() -> None:
    observer = Observer()
    with capture_logs() as captured:
        observer.stood_still(1_200_000)
    observer.config_read(ReloadResult.REFUSED)
    after = scraped(observer)
    assert value(after, "picklog_stalls_total") == 1
    assert value(after, "picklog_config_reloads_total", result="refused") == 1
    assert captured[0]["milliseconds"] == 1200


# Closed label sets ---------------------------------------------------------------------

anything = st.text(max_size=40)
numbers = st.integers(0, (1 << 64) - 1)
notices: st.SearchStrategy[Notice] = st.one_of(
    st.builds(
        DiscoveryNotice,
        st.sampled_from(DiscoveryKind),
        anything,
        anything,
        anything,
        st.lists(anything, max_size=3).map(tuple),
        st.integers(1, 5),
        st.sampled_from(["debug", "info", "warning"]),
    ),
    st.builds(SampleNotice, st.sampled_from(FrameResult), anything, numbers),
    st.builds(IntakeNotice, st.sampled_from(IntakeResult), numbers, anything),
    st.builds(StatusNotice, anything, anything, anything),
    st.builds(FleetPublished, numbers),
    st.builds(WorkersDeparted, st.lists(st.tuples(anything, numbers), max_size=3).map(tuple)),
    st.builds(
        MixedRoles,
        st.lists(st.tuples(anything, anything, numbers, numbers, numbers), max_size=2).map(tuple),
        numbers,
    ),
)


@pytest.mark.req("MET-12")
@pytest.mark.field("B-145")
@settings(max_examples=40)
@given(
    st.lists(notices, max_size=10),
    anything,
    st.integers(-5, 100_000),
    st.sampled_from(list(Route)),
)
def test_no_text_of_fleet_or_client_makes_a_series(
    told: list[Notice], name: str, status: int, route: Route
) -> None:
    observer = Observer()
    before = set(series_of(generate_latest(observer.registry)))
    fact = pick(1, 7, 0, namespace=name)
    question = fact.question._replace(model=name, served_model=name, request_id=name)
    with capture_logs():
        observer.on_notices(told)
        observer.picked(fact._replace(question=question), 5, 7)
        observer.answered(route, status, ErrorCode.NO_SHIM, 5)
        observer.fold_restarted(name)
    assert set(series_of(generate_latest(observer.registry))) == before


@pytest.mark.req("MET-13")
def test_no_address_stands_in_any_metric() -> None:
    observer = Observer()
    process = Process()
    observer.source = process
    with capture_logs():
        process.script.pass_began()
        for number in (1, 2):
            process.script.worker(number, runtime={"disaggregated_endpoint": {"bootstrap_host": "10.0.0.9"}})
            process.script.publisher(70 + number)
            process.script.subscribed(70 + number)
            process.script.sample(number, 1, publisher_id=70 + number)
        process.script.pass_settled()
        observer.on_notices(process.script.all_notices)
    text = asyncio.run(observer.text()).decode()
    assert 'worker="1"' in text
    assert not re.search(r"\d+\.\d+\.\d+\.\d+|tcp:|:4000|:5000|10\.0\.0", text)


# Scrapes -------------------------------------------------------------------------------


def test_the_text_has_the_process_and_its_version() -> None:
    after = scraped(Observer())
    assert value(after, "process_resident_memory_bytes") > 0
    assert "process_cpu_seconds_total" in {name for name, _ in after}
    assert len(labels_of(after, "picklog_build_info")) == 1


def test_counters_have_no_created_twins() -> None:
    assert [name for name, _ in scraped(Observer()) if name.endswith("_created")] == []


def test_two_observers_do_not_meet() -> None:
    one, other = Observer(), Observer()
    one.retried()
    assert value(scraped(other), "picklog_retries_total") == 0


async def test_scrapes_at_the_same_time_share_one() -> None:
    observer = Observer()
    process = Process()
    observer.source = process
    asked = 0

    def counted() -> bool:
        nonlocal asked
        asked += 1
        return True

    process.is_ready = counted  # type: ignore[method-assign]
    texts = await asyncio.gather(*[observer.text() for _ in range(10)])
    assert asked == 1
    assert len(set(texts)) == 1
    await observer.text()
    assert asked == 2


async def test_a_scraper_that_leaves_does_not_take_the_scrape_of_others_along() -> None:
    observer = Observer()
    observer.source = Process()
    leaving = asyncio.create_task(observer.text())
    staying = asyncio.create_task(observer.text())
    await asyncio.sleep(0)
    leaving.cancel()
    assert b"picklog_ready" in await staying
    with pytest.raises(asyncio.CancelledError):
        await leaving


async def test_a_scrape_that_fails_is_told_to_whoever_waits_and_the_next_one_works() -> None:
    observer = Observer()
    process = Process()
    observer.source = process
    good = process.states
    process.states = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        await observer.text()
    process.states = good
    assert b"picklog_ready" in await observer.text()


async def test_a_large_fleet_is_scraped_without_holding_up_the_loop() -> None:
    """2,000 workers of two ranks: bounded text, and many turns of the loop in between."""
    observer = Observer()
    process = Process()
    observer.source = process
    process.script.pass_began()
    process.script.subscribed(77)
    for number in range(2_000):
        process.script.worker(number, runtime={"data_parallel_size": 2})
        for rank in range(2):
            process.script.sample(number, 2 * number + rank, dp_rank=rank)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    began = time.process_time()
    text = await observer.text()
    spent_s = time.process_time() - began
    other.cancel()
    ranks = labels_of(series_of(text), "continuum_dynamo_worker_kv_used_blocks")
    assert len(ranks) == 4_000
    assert turns >= 20
    assert spent_s < 5.0, "0.05 s on an idle machine"


@pytest.mark.req("SHIM-25")
async def test_phases_have_no_histogram_since_only_the_frontend_sees_them() -> None:
    observer = Observer()
    observer.routed(RoutingPath.PAIR)
    observer.failed(ErrorPhase.DECODE)
    text = (await observer.text()).decode()
    families = {family.name for family in text_string_to_metric_families(text)}
    assert {name for name in families if name.startswith("disaggregated_")} == {
        "disaggregated_requests",
        "disaggregated_errors",
    }


async def test_the_page_of_metrics_names_every_family_and_no_other(tmp_path: Path) -> None:
    observer = Observer()
    process = Process()
    observer.source = process
    process.figures = LogFigures(0, 1, 2, 3, 4, "plenty", 5, 6, (("raw", 7),), 8, 9, 10, 11, 12, True)
    process.checkpointed_at = 0
    ChildMetrics(observer.registry)  # as the main process has them
    alone = FollowerRegistry(
        FollowerState(Follower(MemoryLog(), CheckpointFolder(tmp_path)), MemoryLog(), lambda: None)
    )
    texts = [(await observer.text()).decode(), generate_latest(alone.registry).decode(), await worker_text()]
    families = [family for text in texts for family in text_string_to_metric_families(text)]
    exported = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    exported.add("picklog_siblings_silent")  # told by whoever answers for a group
    page = (REPOSITORY / "docs" / "metrics.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)} == exported


def test_the_page_of_metrics_names_every_word_of_closed_labels() -> None:
    page = (REPOSITORY / "docs" / "metrics.md").read_text()
    words = [
        *[kind.label for kind in (*DiscoveryKind, *FrameResult, *IntakeResult, *KvEventResult)],
        *[result.label for result in SELECTION_RESULTS],
        *[result.value for result in ArtifactResult],
        *[path.value for path in (*RoutingPath, *ErrorPhase, *Route, *ReloadResult)],
        *[verdict.value for verdict in (*Verdict, *ShadowResult)],
        *[word.value for word in (*Failure, *Peer)],
    ]
    assert [word for word in words if f"`{word}`" not in page] == []
