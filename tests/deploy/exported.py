"""What `/metrics` of a whole process holds: names, label names and the words of closed labels."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from app.follower_door import FollowerRegistry
from app.follower_standing import ChildMetrics
from app.observe import Observer
from app.observe_state import LogFigures
from projections.events.signals import SampleReceived
from router.prompt.self_check import MatchState
from tests.app.observed import Process
from tests.app.stream_site import worker_text
from tests.app.test_follower_door import standing
from tests.projections.fleet_script import NS

OPEN_LABELS = frozenset({"backend", "namespace", "model", "worker", "dp_rank", "version", "python", "le"})
"""Labels whose values a test process cannot tell."""
SCRAPED = {"instance", "job", "process"}
"""What Prometheus adds to each series, by prometheus.yml; `process` also the answer of a group."""
OWN = {"up": set[str](), "ALERTS": {"alertname", "alertstate"}}
"""Series that Prometheus makes."""


@dataclass(slots=True)
class Exported:
    """Series name -> label name -> values that were seen."""

    series: dict[str, dict[str, set[str]]] = field(default_factory=dict)

    def faults(self, name: str, matchers: list[list[str]]) -> list[str]:
        """What a selector asks for that is not exported."""
        if name in OWN:
            return []
        if name not in self.series:
            return [f"{name} is not exported"]
        labels = self.series[name]
        found = []
        for label, operator, value in matchers:
            if label in labels:
                if label not in OPEN_LABELS:
                    words = value.split("|") if "~" in operator else [value]
                    found += [
                        f"{name}: {label} is never {word}"
                        for word in words
                        if word not in labels[label] and not (label == "route" and word == "/v1/.*")
                    ]
            elif label not in SCRAPED:
                found.append(f"{name} has no label {label}")
        return found

    def labels(self) -> set[str]:
        return SCRAPED.union(*self.series.values())


def exported(*texts: str) -> Exported:
    """From the texts of scrapes."""
    found = Exported()
    for family in (family for text in texts for family in text_string_to_metric_families(text)):
        for sample in family.samples:
            labels = found.series.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


async def everything() -> Exported:
    """What all kinds of processes export: one that serves, with all it may have, follower, stream worker."""
    observer, process = Observer(), Process()
    observer.source = process
    process.script.worker(7)
    process.script.say(SampleReceived(NS, 77, 1, 1, 1, 7, 0, 1, 2, 3, 0))
    shed = (("raw", 7), ("sample", 0))
    process.figures = LogFigures(0, 1, 2, 3, 4, "plenty", 5, 6, shed, 8, spool_bytes=9, spool_records=10)
    process.checkpointed_at = 0
    process.matches = [MatchState("org/model", 64, 640, 600, 0.9375, True)]
    ChildMetrics(observer.registry)
    _, _, state, _ = standing()
    alone = generate_latest(FollowerRegistry(state).registry).decode()
    return exported((await observer.text()).decode(), alone, await worker_text())
