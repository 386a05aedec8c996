"""Gauges: what the fold and its surroundings hold at the moment of the scrape, and nothing else."""

import itertools

import pytest

from app.observe import Observer
from app.observe_state import OTHER_NAMESPACE, BackendState, LogFigures, StateText, backend_states
from app.tail import StopReason
from projections.events.discovery import Keyspace, PassEnded
from projections.events.signals import (
    Family,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from router.dispatch.breaker import Breaker, BreakerState
from router.dispatch.shim_pools import Health, Replica
from router.prompt.self_check import CHECKS_MIN, MODELS_MAX, MatchState, SelfCheck
from router.settings import BackendSettings, BreakerSettings
from tests.app.observed import Process, Series, adopted, labels_of, scraped, value
from tests.projections.fleet_script import NS, instance_key
from tests.projections.log_story import pick

GAUGES = (
    "continuum_dynamo_worker_active_decode_blocks",
    "continuum_dynamo_worker_active_prefill_tokens",
    "continuum_dynamo_worker_kv_used_blocks",
)


def looked_at(process: Process) -> Series:
    observer = Observer()
    observer.source = process
    return scraped(observer)


def a_fleet(*numbers: int) -> Process:
    """Aggregated workers whose publisher, number 77, has just connected."""
    process = Process()
    process.script.pass_began()
    for number in numbers:
        process.script.worker(number, runtime={"data_parallel_size": 2})
    process.script.pass_settled()
    process.script.subscribed(77)
    return process


def say_sample(
    process: Process, worker: int, rank: int, values: tuple[int | None, int | None, int | None]
) -> None:
    sequence = len(process.script.records)  # grows by one with each sample in a row
    process.script.say(SampleReceived(NS, 77, 1, sequence, sequence, worker, rank, *values, 0))


# Samples -------------------------------------------------------------------------------


@pytest.mark.req("MET-05")
def test_each_sampled_rank_has_its_reported_values_under_hex_worker_and_decimal_rank() -> None:
    process = a_fleet(0xABC)
    say_sample(process, 0xABC, 0, (1, 2, 3))
    say_sample(process, 0xABC, 1, (4, 5, 6))
    series = looked_at(process)
    for place, name in enumerate(GAUGES):
        for rank in range(2):
            found = value(series, name, namespace=NS, worker="abc", dp_rank=str(rank))
            assert found == 3 * rank + place + 1


@pytest.mark.req("MET-05")
def test_a_nil_field_has_no_series() -> None:
    process = a_fleet(7)
    say_sample(process, 7, 0, (None, None, 0))
    series = looked_at(process)
    assert labels_of(series, GAUGES[0]) == labels_of(series, GAUGES[1]) == []
    assert value(series, GAUGES[2], namespace=NS, worker="7", dp_rank="0") == 0


@pytest.mark.req("MET-05", "STORE-15")
@pytest.mark.field("B-056")
def test_a_departed_worker_has_no_series_at_the_very_next_scrape() -> None:
    process = a_fleet(7, 8)
    for worker in (7, 8):
        say_sample(process, worker, 0, (1, 2, 3))
    observer = Observer()
    observer.source = process
    assert {labels["worker"] for labels in labels_of(scraped(observer), GAUGES[0])} == {"7", "8"}
    process.script.delete(Keyspace.INSTANCES, instance_key(7))
    for name in GAUGES:
        assert {labels["worker"] for labels in labels_of(scraped(observer), name)} == {"8"}


def test_a_worker_that_leaves_in_the_middle_of_a_scrape_is_skipped() -> None:
    process = a_fleet(7, 8)
    for worker in (7, 8):
        say_sample(process, worker, 0, (1, 2, 3))
    parts = StateText(process).parts()
    head = "".join(itertools.takewhile(lambda part: GAUGES[0] not in part, parts))
    process.script.delete(Keyspace.INSTANCES, instance_key(7))
    process.script.delete(Keyspace.INSTANCES, instance_key(8))
    rest = "".join(parts)
    assert "picklog_ready" in head
    assert "worker=" not in rest


@pytest.mark.req("MET-05", "MET-12")
@pytest.mark.field("B-145")
def test_only_configured_namespaces_are_labels() -> None:
    process = Process("known")
    for namespace in ("known", "stray"):
        process.script.worker(7, namespace=namespace)
        process.script.say(SampleReceived(namespace, 77, 1, 1, 1, 7, 0, 1, 2, 3, 0))
    series = looked_at(process)
    assert {labels["namespace"] for labels in labels_of(series, GAUGES[0])} == {"known"}
    found = {labels["namespace"] for labels in labels_of(series, "continuum_dynamo_workers")}
    assert found == {"known", OTHER_NAMESPACE}


def test_odd_names_of_namespaces_and_backends_are_escaped() -> None:
    odd = 'a"b\\c\nd'
    process = Process(odd)
    process.states = [BackendState(odd, Health.READY, BreakerState.CLOSED, 1)]
    series = looked_at(process)
    assert value(series, "picklog_backend_in_flight", backend=odd) == 1
    assert value(series, "continuum_dynamo_workers", namespace=odd, role="decode") == 0


# The fleet -----------------------------------------------------------------------------


@pytest.mark.req("MET-02")
def test_connected_is_1_while_every_configured_namespace_is_read_and_watched() -> None:
    process = Process(NS, "second")
    name = "continuum_dynamo_discovery_connected"
    assert value(looked_at(process), name) == 0
    process.script.pass_began(namespaces=(NS,))
    process.script.pass_settled(namespaces=(NS,))
    assert value(looked_at(process), name) == 0, "the second namespace is not read yet"
    process.script.pass_began(2, namespaces=(NS, "second"))
    process.script.pass_settled(2, namespaces=(NS, "second"))
    assert value(looked_at(process), name) == 1
    process.script.say(PassEnded("etcd", (NS, "second"), 2, "connection"))
    assert value(looked_at(process), name) == 0


@pytest.mark.req("MET-02", "RED-23")
def test_connected_is_0_once_discovery_is_switched_off() -> None:
    process = Process()
    process.script.pass_began()
    process.script.pass_settled()
    assert value(looked_at(process), "continuum_dynamo_discovery_connected") == 1
    process.script.say(adopted(version=2, enabled=False))
    assert value(looked_at(process), "continuum_dynamo_discovery_connected") == 0


@pytest.mark.req("MET-03")
def test_workers_are_counted_by_namespace_and_role_from_0_on() -> None:
    process = Process()
    process.script.pass_began()
    for number, role in enumerate(("prefill", "decode", "decode", "aggregated"), 1):
        process.script.worker(number, role if role != "aggregated" else "backend", worker_type=role)
    series = looked_at(process)
    counts = {
        labels["role"]: value(series, "continuum_dynamo_workers", **labels)
        for labels in labels_of(series, "continuum_dynamo_workers")
    }
    assert counts == {"prefill": 1, "decode": 2, "aggregated": 1, "encode": 0, "unknown": 0}
    assert value(series, "picklog_fleet_generation") == process.script.fold.state.registry.generation > 0


def test_publishers_are_counted_by_topic() -> None:
    process = Process()
    process.script.publisher(1)
    process.script.publisher(2)
    process.script.publisher(3, topic="kv-events")
    series = looked_at(process)
    assert value(series, "picklog_publishers", topic="kv_metrics") == 2
    assert value(series, "picklog_publishers", topic="kv-events") == 1


@pytest.mark.req("MET-06")
def test_subscriptions_are_counted_by_state_and_transport_from_0_on() -> None:
    process = Process()
    states = (SubscriptionState.CONNECTED, SubscriptionState.CONNECTED, SubscriptionState.BACKOFF)
    for number, state in enumerate(states):
        process.script.say(
            SubscriptionChanged(Family.LOAD, NS, number, "b", state, 1, Transport.DIRECT, "connected")
        )
    series = looked_at(process)
    for family, expected in (("load", (2, 1)), ("kv", (0, 0))):
        name = f"continuum_dynamo_{family}_subscriptions"
        found = labels_of(series, name)
        assert {labels["state"] for labels in found} == {"pending", "connecting", "connected", "backoff"}
        assert {labels["transport"] for labels in found} == {"direct", "broker"}
        assert len(found) == 8
        assert value(series, name, state="connected", transport="direct") == expected[0]
        assert value(series, name, state="backoff", transport="direct") == expected[1]


def test_sizes_of_projections_are_told() -> None:
    process = a_fleet(7, 8)
    say_sample(process, 7, 0, (1, 2, 3))
    process.script.publisher(77)
    process.script.say(pick(1, 7, process.script.time))
    series = looked_at(process)
    sizes = {
        labels["projection"]: value(series, "picklog_projection_entries", **labels)
        for labels in labels_of(series, "picklog_projection_entries")
    }
    assert sizes == {
        "kv_nodes": 0,
        "kv_ownerships": 0,
        "keys_instances": 2,
        "keys_cards": 2,
        "keys_channels": 1,
        "keys_sources": 0,
        "workers": 2,
        "publishers": 1,
        "samples": 1,
        "ledger_lines": 1,
        "subscriptions": 1,
        "writers": 2,
        "replicas": 1,
    }
    assert value(series, "picklog_cards_bytes") > 0
    assert value(series, "picklog_config_version") == 1


# The reader and the log ----------------------------------------------------------------


def test_the_log_s_range_lag_and_horizon_are_told() -> None:
    process = Process()
    mark = process.script.fold.mark.offset
    process.figures = LogFigures(
        first_offset=1,
        end_offset=mark + 6,
        stored_bytes=1000,
        ceiling_bytes=5000,
        horizon_us=3_600_000_000,
        room="reserve",
        pending_bytes=10,
        pending_picks=2,
        shed=(("raw", 4), ("sample", 5)),
        overlay=3,
        spool_bytes=4096,
        spool_records=6,
    )
    series = looked_at(process)
    assert value(series, "picklog_log_first_offset") == 1
    assert value(series, "picklog_log_end_offset") == mark + 6
    assert value(series, "picklog_fold_offset") == mark
    assert value(series, "picklog_log_lag_records") == 5
    assert value(series, "log_horizon_seconds") == 3600
    assert value(series, "picklog_log_bytes") == 1000
    assert value(series, "picklog_log_bytes_max") == 5000
    assert value(series, "picklog_log_room", room="reserve") == 1
    assert value(series, "picklog_log_room", room="plenty") == 0
    assert value(series, "picklog_shed_total", importance="sample") == 5
    assert value(series, "picklog_append_pending_bytes") == 10
    assert value(series, "picklog_append_pending_picks") == 2
    assert value(series, "picklog_own_unfolded") == 3
    assert value(series, "picklog_spool_bytes") == 4096
    assert value(series, "picklog_spool_records") == 6


def test_a_reader_that_does_not_know_the_log_s_sizes_leaves_them_out() -> None:
    series = looked_at(Process())
    for name in ("log_horizon_seconds", "picklog_log_bytes", "picklog_log_room", "picklog_shed_total"):
        assert labels_of(series, name) == []


def test_readiness_lag_and_what_stopped_the_fold_are_told() -> None:
    process = Process()
    series = looked_at(process)
    assert value(series, "picklog_ready") == 1
    assert value(series, "picklog_log_away") == 0
    assert value(series, "picklog_log_lag_seconds") == 0
    assert value(series, "picklog_fold_stopped", reason="poison") == 0
    process.ready = False
    process.now = 10_000_000
    process.tail.stopped = StopReason.POISON
    series = looked_at(process)
    assert value(series, "picklog_ready") == 0
    assert value(series, "picklog_log_away") == 1
    assert value(series, "picklog_fold_stopped", reason="poison") == 1
    assert value(series, "picklog_fold_stopped", reason="disagreed") == 0


def test_the_drift_of_log_time_from_the_wall_is_told() -> None:
    process = Process()
    process.wall = process.tail.log_time(0) + 2_500_000
    assert value(looked_at(process), "picklog_clock_drift_seconds") == pytest.approx(2.5)


def test_the_age_of_the_newest_checkpoint_is_log_time_and_absent_before_the_first() -> None:
    process = Process()
    assert labels_of(looked_at(process), "picklog_checkpoint_age_seconds") == []
    process.checkpointed_at = process.script.fold.state.intake.stamp - 90_000_000
    assert value(looked_at(process), "picklog_checkpoint_age_seconds") == 90


# Backends ------------------------------------------------------------------------------


def test_backends_are_told_by_configured_name_with_health_breaker_and_requests() -> None:
    series = looked_at(Process())
    assert value(series, "picklog_backend_in_flight", backend="shim-a") == 3
    assert value(series, "picklog_backend_health", backend="shim-a", state="ready") == 1
    assert value(series, "picklog_backend_health", backend="shim-a", state="down") == 0
    assert value(series, "picklog_backend_health", backend="shim-b", state="down") == 1
    assert value(series, "picklog_breaker_state", backend="shim-b", state="open") == 1
    assert value(series, "picklog_breaker_state", backend="shim-b", state="closed") == 0


def test_states_of_backends_are_read_from_the_pool_table() -> None:
    breaker = Breaker(BreakerSettings(failure_threshold=1))
    replica = Replica(BackendSettings("a", "http://127.0.0.1:1"), breaker, probed=True)
    assert backend_states([replica], 0) == [BackendState("a", Health.UNKNOWN, BreakerState.CLOSED, 0)]
    breaker.failed(5)
    replica.in_flight = 2
    assert backend_states([replica], 6) == [BackendState("a", Health.UNKNOWN, BreakerState.OPEN, 2)]


def test_the_least_match_ratio_is_told_and_how_many_models_are_not_trusted() -> None:
    process = Process()
    series = looked_at(process)
    assert value(series, "picklog_kv_match_ratio") == 1.0
    process.matches = [
        MatchState("a", 20, 10, 9, 0.9, True),
        MatchState("b", 20, 10, 2, 0.2, False),
        MatchState("c", 3, 10, 0, None, True),
    ]
    series = looked_at(process)
    assert value(series, "picklog_kv_match_ratio") == 0.2
    assert value(series, "picklog_kv_models_mismatched") == 1
    assert value(series, "picklog_kv_model_match_ratio", model="a") == 0.9
    assert value(series, "picklog_kv_model_match_ratio", model="b") == 0.2
    assert labels_of(series, "picklog_kv_model_match_ratio") == [{"model": "a"}, {"model": "b"}]
    assert value(series, "picklog_projection_entries", projection="kv_nodes") == 0


def test_odd_names_of_models_are_escaped_and_as_many_as_are_checked_have_a_series() -> None:
    process = Process()
    odd = 'a"} 1\\\n\udcff'
    process.matches = [MatchState(odd, 20, 10, 9, 0.9, True)]
    [labels] = labels_of(looked_at(process), "picklog_kv_model_match_ratio")
    assert labels == {"model": 'a"} 1\\\n?'}
    check = SelfCheck(0.5)
    for number in range(CHECKS_MIN * (MODELS_MAX + 1)):
        check.note(f"m{number // CHECKS_MIN}", 2, 1)
    process.matches = check.states()
    assert len(labels_of(looked_at(process), "picklog_kv_model_match_ratio")) == MODELS_MAX
