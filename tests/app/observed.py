"""A process to be looked at: a scripted fold, a tail on it, and made-up surroundings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from app.observe import Observer
from app.observe_state import BackendState, LogFigures
from app.tail import Tail
from projections.events.control import ConfigAdopted, PickSettings
from router.dispatch.breaker import BreakerState
from router.dispatch.shim_pools import Health
from router.prompt.self_check import MatchState
from tests.projections.fleet_script import NS, Script

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
REPLICA = b"r" * 16


def adopted(*namespaces: str, version: int = 1, enabled: bool = True, source: str = "etcd") -> ConfigAdopted:
    pick = PickSettings("load_based", source, namespaces or (NS,), (), 3_000_000)
    return ConfigAdopted(version, "start", version.to_bytes(16, "big"), "{}", pick, enabled)


class Process:
    """A `StateSource` around a script. Attributes are the test's to change."""

    def __init__(self, *namespaces: str) -> None:
        self.script = Script()
        self.script.say(adopted(*namespaces))
        self.tail = Tail(self.script.fold, REPLICA, 0)
        self.figures = LogFigures(0, self.script.fold.mark.offset + 1)
        self.states: list[BackendState] = [
            BackendState("shim-a", Health.READY, BreakerState.CLOSED, 3),
            BackendState("shim-b", Health.DOWN, BreakerState.OPEN, 0),
        ]
        self.ready = True
        self.checkpointed_at: int | None = None
        self.matches: list[MatchState] = []
        self.now = 0
        self.wall = 0

    def now_us(self) -> int:
        return self.now

    def wall_us(self) -> int:
        return self.wall

    def is_ready(self) -> bool:
        return self.ready

    def backends(self) -> Sequence[BackendState]:
        return self.states

    def log_figures(self) -> LogFigures:
        return self.figures

    def checkpoint_time(self) -> int | None:
        return self.checkpointed_at

    def match_states(self) -> Sequence[MatchState]:
        return self.matches


def series_of(text: bytes) -> Series:
    """Every sample line of a text by name and sorted labels; the text must parse."""
    found: Series = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} stands twice"
            found[key] = sample.value
    return found


def scraped(observer: Observer) -> Series:
    return series_of(asyncio.run(observer.text()))


def value(series: Series, name: str, **labels: str) -> float:
    return series[name, tuple(sorted(labels.items()))]


def labels_of(series: Series, name: str) -> list[dict[str, str]]:
    """The label sets of all series of a name."""
    return [dict(labels) for found, labels in series if found == name]
