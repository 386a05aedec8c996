"""A router on a free port before fake frontends: what ingress and dispatch tests stand on.

The view is made of real projections and the pick is the real one. The log is `FakeLog`:
it keeps what was appended, and a test says when and how it answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from aiohttp import ClientResponse, ClientSession, ClientTimeout

from projections.events.control import KvPickSettings, PickSettings
from projections.events.held import SettingsHeld
from projections.events.picks import DispatchEnded, EndStatus, PickMade
from projections.identity import WorkerKey
from projections.load.ledger import Ledger
from projections.load.store import LoadStore
from projections.notices import Notice
from projections.registry.fleet import Fleet, Role, Worker
from projections.view import Overlay, View
from router.ingress.errors import ErrorCode
from router.ingress.http_server import Door, build_application
from router.metrics import ErrorPhase, NoMetrics, Route, RoutingPath
from router.picker.pick import pick
from router.prompt.self_check import MatchState
from router.question import PromptAsked, PromptFacts
from router.service import RouterService
from router.settings import BackendSettings, HealthSettings, PoolSettings, PromptSettings, RouterSettings
from tests.router.fake_frontend import FakeFrontend

REPLICA = b"R" * 16
TEXT = [{"role": "user", "content": "Tell me a tale"}]


def worker(
    instance_id: int,
    role: Role,
    *,
    namespace: str = "dynamo",
    model: str = "tiny-chat",
    dp_size: int = 1,
    declared: bool = False,
) -> Worker:
    """A worker as the registry publishes it."""
    return Worker(
        key=WorkerKey(namespace, instance_id),
        role=role,
        model=model,
        component=role.name.lower(),
        endpoint="generate",
        dp_start_rank=0,
        dp_size=dp_size,
        dp_declared=declared,
        block_size=16,
        total_kv_blocks=1024,
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        context_length=8192,
        disaggregated_endpoint=None,
        has_card=True,
        enable_eagle=False,
        first_seen=1,
        last_updated=1,
    )


def fleet_of(*workers: Worker, generation: int = 1) -> Fleet:
    """A published fleet of these workers."""
    ordered = sorted(workers, key=lambda worker: worker.key)
    return Fleet(generation, {worker.key: worker for worker in ordered}, (), {}, {})


async def until(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Return once something holds that real sockets bring about. Fails after timeout_s."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110  # sockets tell nobody
            await asyncio.sleep(0.002)


class FakeLog:
    """A log as the router sees it.

    mode: "acknowledges" at once, "holds" until `acknowledge`, "sheds" each pick.
    """

    def __init__(self, fleet: Fleet, pick_settings: PickSettings) -> None:
        self.fleet = fleet
        self.mode = "acknowledges"
        self.away = False
        self.version = 1
        self.enabled = True
        self.pick_settings = pick_settings
        self.known_flags: tuple[int, ...] = ()
        self.picks: list[PickMade] = []
        self.ends: list[DispatchEnded] = []
        self.overlay = Overlay()
        self.after_pick: Callable[[], None] | None = None
        self._number = 0
        self._time = 1_000_000
        self._waiting: list[Callable[[bool], None]] = []

    @property
    def replica(self) -> bytes:
        return REPLICA

    def view(self) -> View:
        return View(41, self.fleet, LoadStore(), Ledger(), self.overlay)

    def flags(self) -> tuple[int, ...]:
        return self.known_flags

    def settings(self) -> SettingsHeld:
        return SettingsHeld(
            self.version, "start", b"", "{}", self.pick_settings, self.enabled, offset=0, adopted_at=0
        )

    def log_time(self) -> tuple[int, int]:
        self._time += 1
        return self._time, 700

    def next_own_seq(self) -> int:
        self._number += 1
        return self._number

    def append_pick(self, fact: PickMade, on_done: Callable[[bool], None]) -> None:
        self.picks.append(fact)
        self.overlay.add_pick(fact)
        if self.after_pick is not None:
            self.after_pick()
        if self.mode == "acknowledges":
            asyncio.get_running_loop().call_soon(on_done, True)
        elif self.mode == "sheds":
            on_done(False)
        else:
            self._waiting.append(on_done)

    def append_end(self, fact: DispatchEnded) -> None:
        self.ends.append(fact)
        self.overlay.add_end(fact)

    def is_away(self) -> bool:
        return self.away

    def is_suspect(self) -> bool:
        return False

    def acknowledge(self, durable: bool = True) -> None:
        """Answer everything that was held back."""
        waiting, self._waiting = self._waiting, []
        for on_done in waiting:
            on_done(durable)


class Counts(NoMetrics):
    """Remembers what was reported."""

    def __init__(self) -> None:
        self.paths: list[RoutingPath] = []
        self.phases: list[ErrorPhase] = []
        self.unlogged = 0
        self.retries = 0
        self.unusable = 0
        self.picks = 0
        self.answers: list[tuple[Route, int, ErrorCode | None]] = []
        self.compared: list[tuple[int, int]] = []

    def picked(self, pick: PickMade, pick_us: int, input_age_us: int | None) -> None:
        self.picks += 1

    def routed(self, path: RoutingPath) -> None:
        self.paths.append(path)

    def failed(self, phase: ErrorPhase) -> None:
        self.phases.append(phase)

    def pick_unlogged(self) -> None:
        self.unlogged += 1

    def answered(self, route: Route, status: int, code: ErrorCode | None, duration_us: int) -> None:
        self.answers.append((route, status, code))

    def cached_compared(self, predicted_tokens: int, reported_tokens: int) -> None:
        self.compared.append((predicted_tokens, reported_tokens))

    def retried(self) -> None:
        self.retries += 1

    def replica_unusable(self) -> None:
        self.unusable += 1


class FakePrompts:
    """Reads no prompt: gives `facts`, and remembers what it was asked."""

    def __init__(self, facts: PromptFacts) -> None:
        self.settings = PromptSettings()
        self.facts = facts
        self.asked: list[PromptAsked] = []
        self.ends: list[tuple[PickMade, EndStatus]] = []
        self.fleets: list[Fleet] = []
        self.notices: list[tuple[tuple[Notice, ...], int]] = []
        self.closed = False

    async def read(self, asked: PromptAsked, fleet: Fleet) -> PromptFacts:
        self.asked.append(asked)
        await asyncio.sleep(0)
        return self.facts

    def served(
        self,
        pick: PickMade,
        facts: PromptFacts,
        kv: KvPickSettings,
        status: EndStatus,
        view: Callable[[], View],
    ) -> None:
        assert facts is self.facts
        self.ends.append((pick, status))

    def noticed(self, notices: Sequence[Notice], as_of: int) -> None:
        self.notices.append((tuple(notices), as_of))

    def follow(self, fleet: Fleet) -> None:
        self.fleets.append(fleet)

    def match_states(self) -> list[MatchState]:
        return []

    def reconfigure(self, settings: PromptSettings) -> None:
        self.settings = settings

    async def close(self) -> None:
        self.closed = True


class Rig:
    """A running router and a client for it."""

    def __init__(
        self, log: FakeLog, service: RouterService, counts: Counts, session: ClientSession, port: int
    ) -> None:
        self.log = log
        self.service = service
        self.counts = counts
        self.session = session
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def chat(
        self,
        *,
        stream: bool = False,
        headers: Any = None,
        path: str = "/v1/chat/completions",
        data: bytes | None = None,
        **members: Any,
    ) -> tuple[ClientResponse, bytes]:
        """One chat and its whole answer."""
        document: dict[str, Any] = {"model": "tiny-chat", "stream": stream}
        document["prompt" if path == "/v1/completions" else "messages"] = (
            "Tell me a tale" if path == "/v1/completions" else TEXT
        )
        document.update(members)
        body = json.dumps(document).encode() if data is None else data
        async with self.session.post(self.url + path, data=body, headers=headers) as answer:
            return answer, await answer.read()

    async def ready(self) -> None:
        """Return once every enabled backend was probed."""
        replicas = self.service.frontage.table.replicas.values()
        await until(lambda: not any(r.health.value == "unknown" and r.settings.enabled for r in replicas))

    async def ended(self, count: int = 1) -> DispatchEnded:
        """The newest end, once there are as many."""
        await until(lambda: len(self.log.ends) >= count)
        return self.log.ends[-1]

    def in_flight(self) -> int:
        """Permits taken at all backends."""
        return sum(r.in_flight for r in self.service.frontage.table.replicas.values())


def settings_for(
    pools: dict[str, list[FakeFrontend]], ordinary: list[FakeFrontend] | None = None, **changes: Any
) -> RouterSettings:
    """Settings with one backend `<namespace>-<n>` for each frontend, `plain-<n>` for the others."""
    backends, made = [], []
    for namespace, frontends in pools.items():
        names = tuple(f"{namespace}-{number}" for number in range(len(frontends)))
        made.append(PoolSettings(namespace, names))
        backends += [BackendSettings(n, f.url) for n, f in zip(names, frontends, strict=True)]
    for number, frontend in enumerate(ordinary or []):
        backends.append(BackendSettings(f"plain-{number}", frontend.url))
    base = RouterSettings(
        backends=tuple(backends),
        pools=tuple(made),
        pinning=True,
        health=HealthSettings(interval_us=60_000_000, warmup_interval_us=50_000),
    )
    return replace(base, **changes)


def pick_settings_for(settings: RouterSettings, model_map: dict[str, str] | None = None) -> PickSettings:
    """The part of settings that picks read."""
    names = tuple(sorted(pool.namespace for pool in settings.pools))
    return PickSettings("load_based", "file", names, tuple(sorted((model_map or {}).items())), 3_000_000)


@asynccontextmanager
async def rig(
    fleet: Fleet,
    settings: RouterSettings,
    *,
    model_map: dict[str, str] | None = None,
    prompts: FakePrompts | None = None,
) -> AsyncIterator[Rig]:
    """A router with these settings for the length of a block. prompts: picks are prefix-aware."""
    log = FakeLog(fleet, pick_settings_for(settings, model_map))
    if prompts is not None:
        log.pick_settings = log.pick_settings._replace(kv=KvPickSettings(1.0, 1.0, 0.0))
        settings = replace(settings, prompt=settings.prompt or prompts.settings)
    counts = Counts()
    service = RouterService(
        log, pick, settings, counts, prompts=None if prompts is None else lambda found: prompts
    )
    door = Door(build_application(service, {}), service)
    port = await door.listen_tcp("127.0.0.1", 0)
    await service.start()
    session = ClientSession(timeout=ClientTimeout(total=30), auto_decompress=False)
    try:
        made = Rig(log, service, counts, session, port)
        await made.ready()
        yield made
    finally:
        await session.close()
        await service.close()
        await door.close()
