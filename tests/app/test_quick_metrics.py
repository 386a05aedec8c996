"""Counters and histograms without locks read like the library's own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from app.quick_metrics import QuickCounter, QuickHistogram

BOUNDS = (0.001, 0.5, 2.0)


def test_a_histogram_is_written_as_the_library_writes_its_own() -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    quick = QuickHistogram(ours, "wait_seconds", "How long.", BOUNDS, "route", ["a", "b"])
    usual = Histogram("wait_seconds", "How long.", ("route",), registry=theirs, buckets=BOUNDS)
    usual.labels("a"), usual.labels("b")
    for value in (0.0, 0.001, 0.0011, 0.5, 3.0):
        quick.series["a"].observe(value)
        usual.labels("a").observe(value)
    assert generate_latest(ours) == generate_latest(theirs)


def test_a_counter_is_written_as_the_library_writes_its_own() -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    quick = QuickCounter(ours, "things_total", "How many.", ("kind", "way"), [("x", "in"), ("y", "out")])
    usual = Counter("things_total", "How many.", ("kind", "way"), registry=theirs)
    usual.labels("x", "in"), usual.labels("y", "out")
    quick.series["x", "in"].inc()
    quick.series["x", "in"].inc(4)
    usual.labels("x", "in").inc(5)
    assert generate_latest(ours) == generate_latest(theirs)


def test_without_labels_there_is_one_series_from_the_start() -> None:
    registry = CollectorRegistry()
    QuickCounter(registry, "things_total", "How many.")
    QuickHistogram(registry, "wait_seconds", "How long.", BOUNDS)
    text = generate_latest(registry).decode()
    assert "\nthings_total 0.0\n" in text
    assert '\nwait_seconds_bucket{le="+Inf"} 0.0\n' in text and "\nwait_seconds_sum 0.0\n" in text
