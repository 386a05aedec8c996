"""Counters and histograms of the event loop's thread, for what happens at every request.

The library's own take a lock for each addition and walk over their buckets. Here a count is
one addition and an observation a bisection and two; the text is made at the scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Count:
    """One series of a counter."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0

    def inc(self, times: int = 1) -> None:
        """So many more; never negative."""
        self.total += times


class QuickCounter(Collector):
    """A counter with a series for each combination of label values given, or one without labels."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        values: Iterable[tuple[str, ...]] = ((),),
    ) -> None:
        self.series = {value: Count() for value in values}
        self._name, self._text, self._labels = name, text, labels
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See Collector."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for value, count in self.series.items():
            family.add_metric(value, count.total)
        yield family


class Observations:
    """What was observed of one series. bounds: upper ends of the buckets, ascending."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """One more value; its bucket is the first whose bound it does not exceed."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class QuickHistogram(Collector):
    """One metric, with a series for each value of its label, or a single one without a label."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        text: str,
        bounds: tuple[float, ...],
        label: str | None = None,
        values: Sequence[str] = ("",),
    ) -> None:
        self.series = {value: Observations(bounds) for value in values}
        self._name, self._text = name, text
        self._labels = () if label is None else (label,)
        self._edges = [*map(floatToGoString, bounds), "+Inf"]
        registry.register(self)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """See Collector."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for value, seen in self.series.items():
            labels = (value,) if self._labels else ()
            edges = [*zip(self._edges, accumulate(seen.counts), strict=True)]
            family.add_metric(labels, edges, sum_value=seen.total)
        yield family
