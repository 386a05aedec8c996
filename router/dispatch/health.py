"""Probing backends: GET of the health path, thresholds, warming up.

`ProbeJudge` is the rule, without clock or I/O: so many successes in a row after being down
mean ready (one is enough for a backend never seen before), so many failures in a row mean
down, and a 503 means warming up for at most `warmup_us_max` (specification, health checks).
`Prober` is its shell: one task a backend, a probe each interval, sooner while warming up or
when a dispatch found a model missing. A probe of /v1/models also tells which models a
backend lists.
"""

from __future__ import annotations

import asyncio
from typing import Final

import orjson
import structlog

from projections.bounds import MIB, MODEL_NAME_CHARACTERS_MAX
from router.dispatch.connection import TOTAL, UpstreamError
from router.dispatch.heads import HeadRefused
from router.dispatch.shim_pools import MODELS_LISTED_MAX, Health, Replica
from router.settings import HealthSettings

PROBE_BODY_BYTES_MAX: Final = 4 * MIB
_WARMING_STATUS: Final = 503
_log = structlog.get_logger("router.health")


class ProbeJudge:
    """Turns probe results into a state."""

    def __init__(self, settings: HealthSettings, health: Health = Health.UNKNOWN) -> None:
        self.settings = settings
        self.health = health
        self._successes = 0
        self._failures = 0
        self._warming_since_us: int | None = None

    def on_probe(self, status: int, now_us: int) -> Health:
        """The state after a probe. status: of the answer, 0 where none came in time."""
        if 200 <= status < 300:
            self._succeeded()
        elif status == _WARMING_STATUS and self._may_warm(now_us):
            self._successes = self._failures = 0
            self.health = Health.WARMING_UP
        else:
            self._failed()
        return self.health

    def wait_us(self) -> int:
        """How long until the next probe."""
        if self.health is Health.WARMING_UP:
            return self.settings.warmup_interval_us
        if self.health in (Health.UNKNOWN, Health.DOWN):
            # a backend that is not in use costs nothing to ask a little more often
            return min(self.settings.interval_us, max(self.settings.warmup_interval_us, 1_000_000))
        return self.settings.interval_us

    def _may_warm(self, now_us: int) -> bool:
        if self._warming_since_us is None:
            self._warming_since_us = now_us
        return now_us - self._warming_since_us < self.settings.warmup_us_max

    def _succeeded(self) -> None:
        self._failures = 0
        self._successes += 1
        self._warming_since_us = None
        if self.health is not Health.DOWN or self._successes >= self.settings.healthy_threshold:
            self.health = Health.READY

    def _failed(self) -> None:
        self._successes = 0
        self._failures += 1
        if self.health is not Health.READY or self._failures >= self.settings.unhealthy_threshold:
            self.health = Health.DOWN


class Prober:
    """Keeps one replica's health up to date until cancelled."""

    def __init__(self, replica: Replica, settings: HealthSettings) -> None:
        self._replica = replica
        self._settings = settings
        self._judge = ProbeJudge(settings, replica.health)
        self._soon = asyncio.Event()

    def probe_soon(self) -> None:
        """Probe again without waiting for the interval."""
        self._soon.set()

    async def run(self) -> None:
        """Probe for ever. Ends by cancellation only."""
        loop = asyncio.get_running_loop()
        self._replica.probe_soon = self.probe_soon
        while True:
            status, models = await self._probe()
            before = self._replica.health
            health = self._judge.on_probe(status, int(loop.time() * 1_000_000))
            self._replica.health = health
            if models is not None:
                self._replica.take_models(models)
            if health is not before:
                _log.info("backend health changed", backend=self._replica.name, health=health.value)
            await self._pause()

    async def _pause(self) -> None:
        wait_us = self._judge.wait_us()
        if self._replica.unusable_models:
            wait_us = min(wait_us, self._settings.warmup_interval_us)
        try:
            async with asyncio.timeout(wait_us / 1_000_000):
                await self._soon.wait()
            # a burst of findings is one probe, and never more than one each warm-up interval
            await asyncio.sleep(self._settings.warmup_interval_us / 1_000_000)
        except TimeoutError:
            pass
        self._soon.clear()

    async def _probe(self) -> tuple[int, list[str] | None]:
        """Status (0 for none) and the listed models, None where the answer tells none."""
        try:
            return await self._ask()
        except (UpstreamError, HeadRefused):
            return 0, None

    async def _ask(self) -> tuple[int, list[str] | None]:
        replica, settings = self._replica, self._settings
        timeout_s = settings.timeout_us / 1_000_000
        due_s = asyncio.get_running_loop().time() + timeout_s
        connection = replica.upstream.take_idle() or await replica.upstream.connect(timeout_s)
        try:
            connection.limit(TOTAL, due_s)
            connection.send(self._request(), b"")
            head = await connection.head()
            body = bytearray()
            while data := await connection.read():
                body += data
                if len(body) > PROBE_BODY_BYTES_MAX:
                    return 0, None
        finally:
            replica.upstream.give_back(connection)
        if not 200 <= head.status < 300 or settings.path != "/v1/models":
            return head.status, None
        return head.status, listed_models(bytes(body))

    def _request(self) -> bytes:
        address = self._replica.upstream.address
        key = self._replica.settings.api_key
        path = (address.prefix + self._settings.path).encode("ascii")
        lines = [b"GET " + path + b" HTTP/1.1", b"host: " + address.authority, b"accept: application/json"]
        if key:
            lines.append(b"authorization: Bearer " + key.encode("utf-8"))
        return b"\r\n".join(lines) + b"\r\n\r\n"


def listed_models(body: bytes) -> list[str] | None:
    """Model ids of a /v1/models answer, None where it is not one. Bounded, never raises."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    rows = document.get("data") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        return None
    ids = (row.get("id") for row in rows[:MODELS_LISTED_MAX] if isinstance(row, dict))
    return [name for name in ids if isinstance(name, str) and 0 < len(name) <= MODEL_NAME_CHARACTERS_MAX]
