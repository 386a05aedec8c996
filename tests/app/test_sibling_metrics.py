"""Figures of a group: each series once for each process, whoever was asked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from app import sibling_metrics
from app.doors import SOCKET_FOLDER
from app.sibling_metrics import group_metrics, merged

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
COUNTER = b"""# HELP picks_total Picks.
# TYPE picks_total counter
picks_total 3.0
# HELP load Load {of} "it".
# TYPE load gauge
load{model="a b",x="1"} 2.5
load{} 7
"""
HISTOGRAM = b"""# HELP seconds Time.
# TYPE seconds histogram
seconds_bucket{le="1.0"} 1.0
seconds_bucket{le="+Inf"} 2.0
seconds_count 2.0
seconds_sum 1.5
"""


def samples(exposition: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """As Prometheus reads it; fails where a series is there twice."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    names = []
    for family in text_string_to_metric_families(exposition.decode()):
        names.append(family.name)
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    assert len(names) == len(set(names)), names
    return found


def test_series_of_all_processes_are_told_apart_and_families_come_once() -> None:
    found = samples(merged({"router-1": COUNTER, "router-2": COUNTER + HISTOGRAM}))
    assert found["picks_total", (("process", "router-1"),)] == 3.0
    assert found["picks_total", (("process", "router-2"),)] == 3.0
    assert found["load", (("model", "a b"), ("process", "router-1"), ("x", "1"))] == 2.5
    assert found["load", (("process", "router-2"),)] == 7
    assert found["seconds_bucket", (("le", "+Inf"), ("process", "router-2"))] == 2.0
    assert len(found) == 3 + 7


def test_nothing_is_nothing() -> None:
    assert samples(merged({"one": b"", "two": b"\n"})) == {}


@asynccontextmanager
async def sibling(name: str, handler: Handler) -> AsyncIterator[None]:
    """A process of the group that listens in the present folder."""
    application = web.Application()
    application.router.add_get("/metrics", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, f"{SOCKET_FOLDER}/{name}.sock").start()
    try:
        yield
    finally:
        await runner.cleanup()


def telling(text: bytes, status: int = 200) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=text, status=status)

    return answer


def silent(found: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> float:
    return found["picklog_siblings_silent", ()]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / SOCKET_FOLDER).mkdir()


async def test_who_is_asked_answers_for_its_siblings() -> None:
    async with sibling("router-1", telling(b"never asked")), sibling("router-2", telling(COUNTER)):
        found = samples(await group_metrics("router-1", COUNTER, Path()))
    assert {dict(labels).get("process") for _, labels in found} == {"router-1", "router-2", None}
    assert silent(found) == 0


async def test_a_long_answer_in_many_pieces_is_taken_whole() -> None:
    lines = b"# TYPE big gauge\n" + b"".join(b'big{n="%d"} 1\n' % n for n in range(30_000))

    async def slowly(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse()
        await reply.prepare(request)
        for start in range(0, len(lines), 100_000):
            await reply.write(lines[start : start + 100_000])
            await asyncio.sleep(0.005)
        await reply.write_eof()
        return reply

    async with sibling("other", slowly):
        found = samples(await group_metrics("own", b"", Path()))
    assert silent(found) == 0
    assert len(found) == 30_001


async def test_a_sibling_that_does_not_tell_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sibling_metrics, "PATIENCE_S", 0.1)
    monkeypatch.setattr(sibling_metrics, "BODY_BYTES_MAX", 1_000)

    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    os.mknod(f"{SOCKET_FOLDER}/dead.sock")
    async with (
        sibling("frozen", never),
        sibling("sick", telling(COUNTER, 500)),
        sibling("huge", telling(b"x 1\n" * 1_000)),
        sibling("well", telling(COUNTER)),
    ):
        found = samples(await group_metrics("own", COUNTER, Path()))
    assert silent(found) == 4
    assert {dict(labels).get("process") for _, labels in found} == {"own", "well", None}
