"""The discovery task against a scripted source, on virtual time (TST-02)."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ingest.discovery.held_keys import HeldKey
from ingest.discovery.pass_effects import Phase, StateChanged
from ingest.discovery.restart import RestartReason
from ingest.discovery.runner import CLOSE_S_MAX, DiscoveryRunner
from ingest.discovery.settings import DiscoverySettings, EtcdConnection, FileStore, SourceKind
from ingest.discovery.source import EndReason, SourceFailed
from projections.events.discovery import (
    KeyDeleted,
    KeyPut,
    KeysDropped,
    Keyspace,
    PassBegan,
    PassEnded,
    PassSettled,
)
from projections.notices import DiscoveryKind
from projections.registry import observed
from projections.registry.observed import RESTART_REASONS
from tests.ingest.discovery.scripted_source import MemoryStore, ScriptedSource

pytestmark = pytest.mark.looptime

SETTINGS = DiscoverySettings(SourceKind.ETCD, ("prod",), etcd=EtcdConnection(("http://127.0.0.1:1",)))
RECORDINGS = Path(__file__).parents[2] / "recordings"


def instance(name: object, namespace: str = "prod") -> str:
    return f"v1/instances/{namespace}/backend/generate/{name}"


class Watching:
    """A runner in its task, and everything it said."""

    def __init__(
        self,
        source: ScriptedSource,
        settings: DiscoverySettings = SETTINGS,
        held: Mapping[HeldKey, bytes] | None = None,
        is_shedding: Callable[[], bool] = lambda: False,
    ) -> None:
        self.source = source
        self.facts: list[Any] = []
        self.at: list[float] = []
        self.refused: list[Any] = []
        self.states: list[StateChanged] = []
        self.notices: list[Any] = []
        self._more = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.runner = DiscoveryRunner(
            settings,
            self._append,
            held or {},
            self.refused.append,
            self.states.append,
            lambda: int(loop.time() * 1e6),
            self.notices.append,
            lambda settings: self.source,
            is_shedding=is_shedding,
        )
        self.task = asyncio.ensure_future(self.runner.run())

    def _append(self, fact: Any) -> None:
        self.facts.append(fact)
        self.at.append(asyncio.get_running_loop().time())
        self._more.set()

    def of(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def held(self) -> set[tuple[int, str]]:
        """Keyspace and key of what a fold of the facts holds."""
        held: set[tuple[int, str]] = set()
        for fact in self.facts:
            if isinstance(fact, KeyPut):
                held.add((fact.keyspace, fact.key))
            elif isinstance(fact, KeyDeleted):
                held.discard((fact.keyspace, fact.key))
        return held

    def keys(self) -> set[str]:
        return {key for _, key in self.held()}

    async def settled(self, times: int = 1) -> None:
        while len(self.of(PassSettled)) < times:
            self._more.clear()
            await self._more.wait()

    async def stop(self) -> None:
        self.runner.stop()
        await self.task


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def source(store: MemoryStore) -> ScriptedSource:
    return ScriptedSource(store)


@pytest.fixture
async def watching(source: ScriptedSource) -> AsyncIterator[Watching]:
    one = Watching(source)
    yield one
    if not one.task.done():
        await one.stop()


@pytest.mark.req("TST-02", "ETCD-02", "ETCD-06", "ETCD-07")
async def test_writes_before_between_and_after_reading_are_each_logged_once(
    store: MemoryStore, source: ScriptedSource
) -> None:
    store.write(instance(1), b"before")
    source.before_watch.append(lambda: store.write(instance(2), b"between"))
    watching = Watching(source)
    await watching.settled()
    store.write(instance(3), b"after")
    store.write(instance(1), None)
    await asyncio.sleep(1)
    assert [(type(f), f.key[-1]) for f in watching.facts if isinstance(f, KeyPut | KeyDeleted)] == [
        (KeyPut, "1"),
        (KeyPut, "2"),
        (KeyPut, "3"),
        (KeyDeleted, "1"),
    ]
    assert set(source.watched_from[0].values()) == {3}, "one later than the listed revision"
    await watching.stop()


@pytest.mark.req("TST-02", "ETCD-08", "ETCD-09")
@pytest.mark.field("B-007", "B-119")
async def test_deletes_lost_to_compaction_are_found_by_the_next_pass(
    store: MemoryStore, source: ScriptedSource
) -> None:
    for worker in range(4):
        store.write(instance(worker), b"{}")
    watching = Watching(source)
    await watching.settled()
    source.break_watch.set()
    await asyncio.sleep(0.1)
    store.write(instance(2), None)
    store.write(instance(9), b"{}")
    store.compact()
    await watching.settled(2)
    assert watching.keys() == {f"backend/generate/{n}" for n in (0, 1, 3, 9)}
    assert [fact.reason for fact in watching.of(PassEnded)] == ["stream"]
    kinds = [type(fact) for fact in watching.facts[watching.facts.index(watching.of(PassBegan)[1]) :]]
    assert kinds == [PassBegan, KeyDeleted, KeyPut, PassSettled], "unchanged keys are not logged again"
    await watching.stop()


@pytest.mark.req("ETCD-08")
@pytest.mark.field("B-123")
async def test_compaction_between_reading_and_watching_reads_again(
    store: MemoryStore, source: ScriptedSource
) -> None:
    def lose_it() -> None:
        store.write(instance(5), b"{}")
        store.compact()
        source.before_watch.clear()

    source.before_watch.append(lose_it)
    watching = Watching(source)
    await watching.settled()
    assert [fact.reason for fact in watching.of(PassEnded)] == ["compacted"]
    assert watching.keys() == {"backend/generate/5"}
    await watching.stop()


@pytest.mark.req("ETCD-10", "ETCD-15")
@pytest.mark.field("B-006")
async def test_store_that_is_down_is_tried_with_growing_waits_and_not_connected(
    source: ScriptedSource,
) -> None:
    source.faults["dial"] = [SourceFailed(EndReason.UNREACHABLE) for _ in range(9)]
    watching = Watching(source)
    await watching.settled()
    began = [at for at, fact in zip(watching.at, watching.facts, strict=True) if isinstance(fact, PassBegan)]
    waits = [round(later - earlier, 2) for earlier, later in pairwise(began)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert [state.connected for state in watching.states].count(True) == 1
    assert watching.states[-1].connected
    await watching.stop()
    assert not watching.states[-1].connected


@pytest.mark.req("ETCD-11")
async def test_store_that_answers_reads_but_closes_watches_keeps_the_waits_growing(
    source: ScriptedSource,
) -> None:
    source.faults["watch"] = [SourceFailed(EndReason.CANCELLED) for _ in range(5)]
    watching = Watching(source)
    await watching.settled()
    assert round(watching.at[-1], 1) == 0.5 + 1 + 2 + 4 + 8
    await asyncio.sleep(29.9)
    source.break_watch.set()
    await watching.settled(2)
    source.faults["watch"] = []
    assert round(watching.at[-1] - watching.at[-3]) == 16, "30 s of watching had not gone by"
    await asyncio.sleep(30)
    source.break_watch.set()
    await watching.settled(3)
    assert round(watching.at[-1] - watching.at[-3], 1) == 0.5
    await watching.stop()


@pytest.mark.req("ETCD-12")
@pytest.mark.field("B-007")
@pytest.mark.parametrize("step", ["dial", "names", "values"])
async def test_hang_before_watching_ends_after_thirty_seconds(source: ScriptedSource, step: str) -> None:
    source.faults[step] = [3_600.0]
    watching = Watching(source)
    await watching.settled()
    (ended,) = watching.of(PassEnded)
    assert ended.reason == "seed_timeout"
    assert round(watching.at[watching.facts.index(ended)], 2) == 30
    assert source.open_sessions == 1, "the hung session was closed"
    await watching.stop()
    assert source.open_sessions == 0


@pytest.mark.req("ETCD-12")
async def test_watch_that_is_idle_for_ten_minutes_stays(source: ScriptedSource, watching: Watching) -> None:
    await watching.settled()
    await asyncio.sleep(600)
    assert watching.runner.state.connected
    assert watching.of(PassEnded) == []


@pytest.mark.req("ETCD-03")
async def test_sources_alone_denied_still_gives_workers_and_channels(
    store: MemoryStore, source: ScriptedSource
) -> None:
    source.denied = {Keyspace.SOURCES}
    store.write(instance(1), b"{}")
    store.write("v1/event_channels/namespace/prod/topic/kv_metrics/1", b"{}")
    store.write("v1/event_sources/namespace/prod/topic/kv-events/1", b"{}")
    watching = Watching(source)
    await watching.settled()
    assert {fact.keyspace for fact in watching.of(KeyPut)} == {1, 3}
    assert watching.of(PassSettled)[0].unwatched == (4,)
    assert [notice.what for notice in watching.notices] == ["event sources may not be read"]
    await watching.stop()


@pytest.mark.req("MEM-08", "ETCD-16")
@pytest.mark.field("B-129")
async def test_fault_inside_a_source_ends_the_pass_and_not_the_task(
    source: ScriptedSource, store: MemoryStore
) -> None:
    steps = ("dial", "names", "values", "watch")
    source.faults = {step: [ZeroDivisionError("odd"), asyncio.CancelledError()] for step in steps}
    watching = Watching(source)
    await watching.settled()
    assert [fact.reason for fact in watching.of(PassEnded)] == ["error", "stream"] * 4
    await watching.stop()


async def test_restored_store_with_smaller_revisions_is_followed(
    store: MemoryStore, source: ScriptedSource
) -> None:
    store.revision = 1_000
    store.write(instance(1), b"new")
    store.write(instance(2), b"new")
    watching = Watching(source)
    await watching.settled()
    source.break_watch.set()
    await asyncio.sleep(0.1)
    store.restore(7, {instance(1): b"old"})
    await watching.settled(2)
    store.write(instance(3), b"{}")
    await asyncio.sleep(1)
    assert watching.keys() == {"backend/generate/1", "backend/generate/3"}
    assert [fact.revision for fact in watching.of(KeyPut)] == [1001, 1002, 7, 8]
    await watching.stop()


# other settings


@pytest.mark.req("REL-04", "ETCD-14")
async def test_other_endpoints_empty_the_registry_and_fill_it_from_the_new_store(
    source: ScriptedSource, store: MemoryStore, watching: Watching
) -> None:
    store.write(instance(1), b"{}")
    await watching.settled()
    watching.source = ScriptedSource(MemoryStore())
    watching.source.store.write(instance(2), b"{}")
    watching.runner.replace(replace(SETTINGS, etcd=EtcdConnection(("http://127.0.0.1:2",))))
    await watching.settled(2)
    at = watching.facts.index(watching.of(KeysDropped)[0])
    assert watching.facts[at - 1 : at + 2] == [
        PassEnded("etcd", ("prod",), 1, "replaced"),
        KeysDropped((), "connection"),
        PassBegan("etcd", ("prod",), 2, "connection"),
    ]
    assert [fact.key[-1] for fact in watching.facts[at:] if isinstance(fact, KeyPut)] == ["2"]
    assert source.open_sessions == 0


@pytest.mark.req("REL-06", "ETCD-13")
async def test_other_backoff_keeps_every_key(store: MemoryStore, source: ScriptedSource) -> None:
    store.write(instance(1), b"{}")
    watching = Watching(source)
    await watching.settled()
    source.faults["dial"] = [SourceFailed(EndReason.UNREACHABLE)] * 2
    watching.runner.replace(replace(SETTINGS, backoff_initial_us=7_000_000))
    await watching.settled(2)
    assert watching.of(KeysDropped) == watching.of(KeyDeleted) == []
    assert len(watching.of(KeyPut)) == 1
    assert [fact.reason for fact in watching.of(PassBegan)] == ["start", "backoff", "ended", "ended"]
    assert round(watching.at[-1], 1) == 7 + 14, "the new waits are in use"
    await watching.stop()


@pytest.mark.req("REL-07")
async def test_removed_namespace_is_dropped_and_kept_ones_are_not_touched(
    store: MemoryStore, source: ScriptedSource
) -> None:
    for name in ("a", "b", "c"):
        store.write(instance(1, name), b"{}")
    many = replace(SETTINGS, namespaces=("a", "b"))
    watching = Watching(source, many)
    await watching.settled()
    watching.runner.replace(replace(many, namespaces=("b", "c")))
    await watching.settled(2)
    assert watching.of(KeysDropped) == [KeysDropped(("a",), "namespaces")]
    assert [fact.namespace for fact in watching.of(KeyPut)] == ["a", "b", "c"]
    assert watching.of(KeyDeleted) == []
    assert watching.of(PassSettled)[-1].keys == 2
    await watching.stop()


@pytest.mark.req("REL-04", "REL-05")
async def test_disabling_empties_the_registry_without_a_restart_and_enabling_fills_it(
    store: MemoryStore, source: ScriptedSource, watching: Watching
) -> None:
    store.write(instance(1), b"{}")
    await watching.settled()
    watching.runner.replace(replace(SETTINGS, enabled=False))
    await asyncio.sleep(100)
    assert watching.facts[-1] == KeysDropped((), "enabled")
    assert len(watching.of(PassBegan)) == 1, "disabling counts no restart"
    assert [(n.what, n.detail) for n in watching.notices] == [("discovery was stopped", "enabled")]
    assert watching.runner.state == StateChanged(Phase.IDLE, "disabled")
    assert source.open_sessions == 0
    watching.runner.replace(SETTINGS)
    await watching.settled(2)
    assert [fact.reason for fact in watching.of(PassBegan)] == ["start", "enabled"]
    assert len(watching.of(KeyPut)) == 2


async def test_start_while_disabled_drops_what_an_earlier_process_held(source: ScriptedSource) -> None:
    watching = Watching(source, replace(SETTINGS, enabled=False), {(1, "prod", "a"): bytes(32)})
    await asyncio.sleep(1)
    assert watching.facts == [KeysDropped((), "enabled")]
    await watching.stop()


@pytest.mark.req("REL-08")
async def test_other_source_empties_the_registry(watching: Watching) -> None:
    await watching.settled()
    watching.runner.replace(DiscoverySettings(SourceKind.FILE, ("prod",), file=FileStore("/store")))
    await watching.settled(2)
    assert watching.of(KeysDropped) == [KeysDropped((), "source")]
    assert watching.of(PassBegan)[-1].source == "file"


@pytest.mark.req("REL-11")
async def test_replacing_before_the_first_event_is_applied(source: ScriptedSource) -> None:
    watching = Watching(source)
    watching.runner.replace(replace(SETTINGS, namespaces=("other",)))
    await watching.settled()
    assert watching.of(PassSettled)[0].namespaces == ("other",)
    assert watching.of(PassBegan)[-1].namespaces == ("other",)
    await watching.stop()


@pytest.mark.req("REL-04")
async def test_every_reason_is_one_that_the_fold_counts_as_a_restart(watching: Watching) -> None:
    assert {str(reason) for reason in RestartReason} <= RESTART_REASONS
    await watching.settled()
    watching.runner.replace(replace(SETTINGS, namespaces=("prod", "test")))
    await watching.settled(2)
    counted = [observed.pass_began(fact) for fact in watching.of(PassBegan)]
    assert [getattr(notice, "kind", None) for notice in counted] == [None, DiscoveryKind.RESTART]


async def test_equal_settings_do_nothing(watching: Watching) -> None:
    await watching.settled()
    before = list(watching.facts)
    watching.runner.replace(replace(SETTINGS))
    await asyncio.sleep(10)
    assert watching.facts == before


@pytest.mark.req("REL-12")
async def test_session_that_will_not_close_is_abandoned_after_its_grace(source: ScriptedSource) -> None:
    source.close_hangs_s = 3_600
    watching = Watching(source)
    await watching.settled()
    began = asyncio.get_running_loop().time()
    await watching.stop()
    assert round(asyncio.get_running_loop().time() - began, 1) == CLOSE_S_MAX
    assert watching.facts[-1] == PassEnded("etcd", ("prod",), 1, "stopped")
    assert [n.what for n in watching.notices] == ["discovery session did not close in time"]


@pytest.mark.req("REL-12")
async def test_cancelled_task_closes_its_session_and_ends_its_pass(source: ScriptedSource) -> None:
    watching = Watching(source)
    await watching.settled()
    watching.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching.task
    assert source.open_sessions == 0
    assert watching.facts[-1] == PassEnded("etcd", ("prod",), 1, "stopped")


async def test_repeated_pass_logs_again_what_the_fold_lost(
    store: MemoryStore, source: ScriptedSource
) -> None:
    store.write(instance(1), b"{}")
    store.write(instance(2), b"{}")
    watching = Watching(source)
    await watching.settled()
    first = watching.of(KeyPut)[0]
    watching.runner.repeat_pass({(1, "prod", first.key): first.value_digest})
    await watching.settled(2)
    assert [fact.key[-1] for fact in watching.of(KeyPut)] == ["1", "2", "2"]
    await watching.stop()


async def test_log_that_sheds_is_given_time_and_one_that_always_sheds_is_not_waited_for(
    store: MemoryStore, source: ScriptedSource
) -> None:
    store.write(instance(1), b"{}")
    loop = asyncio.get_running_loop()
    watching = Watching(source, is_shedding=lambda: loop.time() < 0.5)
    await watching.settled()
    assert 0.5 <= watching.at[-1] < 1
    await watching.stop()
    began = loop.time()
    watching = Watching(ScriptedSource(store), is_shedding=lambda: True)
    await watching.settled()
    assert loop.time() - began < 20
    await watching.stop()


# B-010: namespaces that are almost the configured one


@pytest.mark.field("B-010")
async def test_empty_namespace_with_siblings_is_warned_about_by_name(
    store: MemoryStore, source: ScriptedSource
) -> None:
    store.write(instance(1, "prod-7b13b437"), b"{}")
    watching = Watching(source)
    await watching.settled()
    await asyncio.sleep(100)
    (notice,) = watching.notices
    assert (notice.detail, notice.level) == ("prod: prod-7b13b437", "warning")
    store.write(instance(1, "prod-8c"), b"{}")
    await asyncio.sleep(31)
    assert watching.notices[-1].detail == "prod: prod-7b13b437, prod-8c"
    store.write(instance(1), b"{}")
    await asyncio.sleep(31)
    assert len(watching.notices) == 2
    store.write(instance(1), None)
    await asyncio.sleep(31)
    assert len(watching.notices) == 3, "it may be said again once there was an instance"
    await watching.stop()


@pytest.mark.field("B-129")
async def test_failing_look_for_siblings_does_not_disturb_the_watch(
    store: MemoryStore, source: ScriptedSource
) -> None:
    source.faults["siblings"] = [ZeroDivisionError(), SourceFailed(EndReason.STREAM), 3_600.0]
    watching = Watching(source)
    await watching.settled()
    await asyncio.sleep(95)
    assert source.calls["siblings"] == 4
    store.write(instance(1), b"{}")
    await asyncio.sleep(3)
    assert watching.keys() == {"backend/generate/1"}
    assert watching.of(PassEnded) == []
    await watching.stop()


# recordings of real fleets


@pytest.mark.parametrize(
    "recording",
    [
        "etcd-watch-1.4.2-agg-dp2",
        "etcd-watch-1.4.2-agg-lossy",
        "etcd-watch-1.4.2-disagg",
        "etcd-watch-1.5.0-disagg",
        "etcd-watch-1.6.1-agg",
    ],
)
async def test_recorded_watch_of_a_real_fleet_is_held_key_for_key(
    store: MemoryStore, source: ScriptedSource, recording: str
) -> None:
    with gzip.open(RECORDINGS / f"{recording}.jsonl.gz", "rt") as lines:
        events = [row for row in map(json.loads, lines) if "key" in row]
    watching = Watching(source, replace(SETTINGS, namespaces=("dynamo",)))
    await watching.settled()
    for event in events:
        store.write(event["key"], event["value"].encode() if event["type"] == "put" else None)
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)
    puts, deletes = watching.of(KeyPut), watching.of(KeyDeleted)
    assert len(puts) == sum(event["type"] == "put" for event in events) > 0
    assert len(deletes) == sum(event["type"] == "delete" for event in events) > 0
    assert watching.refused == []
    assert len(watching.held()) == len(store.keys)
    assert {fact.value.decode() for fact in puts} == {e["value"] for e in events if e["type"] == "put"}
    await watching.stop()
