"""A discovery task on a real store, and patient questions to what it logged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ingest.discovery.pass_effects import Phase, StateChanged
from ingest.discovery.runner import DiscoveryRunner
from ingest.discovery.settings import DiscoverySettings, EtcdConnection, SourceKind
from ingest.discovery.sources import source_of
from projections.events.discovery import KeyDeleted, KeyPut, KeysDropped, PassEnded, PassSettled
from projections.registry.keyspace import Keyspaces
from tests.live.peers import EtcdServer

PATIENCE_S = 30.0


def etcd_settings(*endpoints: str, namespace: str = "prod", **connection: Any) -> DiscoverySettings:
    """Short waits, so that tests of reconnects are quick."""
    return DiscoverySettings(
        SourceKind.ETCD,
        (namespace,),
        etcd=EtcdConnection(tuple(endpoints), **connection),
        backoff_initial_us=100_000,
        backoff_max_us=1_000_000,
    )


def instance(name: object, namespace: str = "prod") -> str:
    return f"v1/instances/{namespace}/backend/generate/{name}"


class EtcdStore:
    """The writing side of `tests.source_suite` on a real server."""

    def __init__(self, server: EtcdServer) -> None:
        self._server = server

    async def put(self, key: str, value: bytes) -> None:
        await asyncio.to_thread(self._server.put, key, value)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._server.delete, key)


class LiveWatch:
    """Use as `async with LiveWatch(settings) as watch`."""

    def __init__(self, settings: DiscoverySettings, make_source: Callable[..., Any] = source_of) -> None:
        self.facts: list[Any] = []
        self.refused: list[Any] = []
        self.states: list[StateChanged] = []
        self.notices: list[Any] = []
        self._changed = asyncio.Event()
        self.runner = DiscoveryRunner(
            settings,
            self._append,
            {},
            self.refused.append,
            self._state,
            on_notice=self._notice,
            make_source=make_source,
        )

    async def __aenter__(self) -> LiveWatch:
        self._task = asyncio.ensure_future(self.runner.run())
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.runner.stop()
        await asyncio.wait_for(self._task, PATIENCE_S)

    def _append(self, fact: Any) -> None:
        self.facts.append(fact)
        self._changed.set()

    def _state(self, state: StateChanged) -> None:
        self.states.append(state)
        self._changed.set()

    def _notice(self, notice: Any) -> None:
        self.notices.append(notice)
        self._changed.set()

    @property
    def connected(self) -> bool:
        return bool(self.states) and self.states[-1].phase is Phase.WATCHING

    def of(self, kind: type) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def ends(self) -> list[str]:
        return [fact.reason for fact in self.of(PassEnded)]

    def held(self) -> set[tuple[int, str]]:
        held: set[tuple[int, str]] = set()
        for fact in self.facts:
            if isinstance(fact, KeyPut):
                held.add((fact.keyspace, fact.key))
            elif isinstance(fact, KeyDeleted):
                held.discard((fact.keyspace, fact.key))
            elif isinstance(fact, KeysDropped):
                held.clear()
        return held

    def workers(self) -> set[str]:
        """The last segment of every held instance key."""
        return {key.rpartition("/")[2] for keyspace, key in self.held() if keyspace == 1}

    def values(self) -> dict[str, bytes]:
        return {fact.key.rpartition("/")[2]: fact.value for fact in self.of(KeyPut) if fact.keyspace == 1}

    async def until(self, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Wait for the condition; fails with what was seen."""
        try:
            async with asyncio.timeout(patience_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            tail = "\n".join(map(repr, self.facts[-8:]))
            shown = [(state.phase.name, state.detail) for state in self.states[-6:]]
            raise AssertionError(
                f"not reached; workers {self.workers()}, states {shown}, facts\n{tail}"
            ) from None

    async def settled(self, times: int = 1) -> None:
        await self.until(lambda: len(self.of(PassSettled)) >= times and self.connected)

    def agrees_with_a_fold(self) -> bool:
        """Whether a fold of all facts holds exactly what every settled pass said."""
        fold = Keyspaces()
        agreed = True
        for fact in self.facts:
            name = type(fact).__name__
            if name == "PassBegan":
                fold.begin_pass(fact)
            elif isinstance(fact, KeyPut):
                fold.put(fact, 1, [])
            elif isinstance(fact, KeyDeleted):
                fold.delete(fact)
            elif isinstance(fact, KeysDropped):
                fold.drop(fact.namespaces)
            elif isinstance(fact, PassSettled):
                agreed = fold.settle_pass(fact) and agreed
            elif isinstance(fact, PassEnded):
                fold.end_pass(fact.namespaces)
        return agreed


def slower(settings: DiscoverySettings, backoff_us: int) -> DiscoverySettings:
    return replace(settings, backoff_initial_us=backoff_us, backoff_max_us=backoff_us)
