"""Render processes of one kind: how many, who gets which, and what repeated deaths lead to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest

from projections.bounds import GIB
from router.prompt import render_pool
from router.prompt.render_pool import DEATHS_TO_REST, JobFailed, Load, RenderPool, Unavailable
from router.prompt.render_wire import RENDER_HEAD, Frame, Kind
from tests.router.prompt.prompts_of import is_running, until

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def template(text: str, key: str | None = None, engine: str = "minijinja") -> Load:
    key = key or text[:20]
    head = {"key": key, "engine": engine, "config": None, "template": len(text)}
    return Load(key, Kind.TEMPLATE, orjson.dumps(head), (text.encode(),))


async def render(pool: RenderPool, load: Load, seconds: float = 20.0) -> Frame:
    messages = b'[{"role":"user","content":"x"}]'
    head = RENDER_HEAD.pack(5, len(messages), 0) + load.key.encode()
    deadline = asyncio.get_running_loop().time() + seconds
    return await pool.run(load, Kind.RENDER, head, (messages + b"{}",), deadline)


@asynccontextmanager
async def pool_of(limit: int) -> AsyncIterator[RenderPool]:
    pool = RenderPool(limit, GIB)
    pids: list[int] = []
    try:
        yield pool
        pids = pool.pids
    finally:
        await pool.close()
    assert pool.pids == [] and not [pid for pid in pids if is_running(pid)]


async def test_processes_start_when_they_are_needed_and_stay_within_the_limit() -> None:
    async with pool_of(2) as pool:
        assert pool.pids == [] and pool.wants_more("T")
        frames = await asyncio.gather(*(render(pool, template(f"T{number % 3}")) for number in range(12)))
        assert [frame.body for frame in frames] == [b"T%d" % (number % 3) for number in range(12)]
        assert 1 <= len(pool.pids) <= 2


async def test_a_template_is_loaded_once_into_a_process() -> None:
    async with pool_of(1) as pool:
        load = template("T")
        await render(pool, load)
        assert pool.holders("T") == 1
        without_files = load._replace(body=(b"U",))
        assert (await render(pool, without_files)).body == b"T"


async def test_a_process_that_dies_is_replaced_and_gets_its_template_again() -> None:
    async with pool_of(1) as pool:
        await render(pool, template("T"))
        first = pool.pids[0]
        with pytest.raises(Unavailable):
            await render(pool, template(LOOP, engine="jinja2"))
        assert (await render(pool, template("T"))).body == b"T"
        assert pool.pids != [first] and pool.deaths == 1


async def test_what_does_not_compile_fails_and_keeps_the_process() -> None:
    async with pool_of(1) as pool:
        with pytest.raises(JobFailed):
            await render(pool, template("{% if %}"))
        assert (await render(pool, template("T"))).body == b"T"
        assert pool.deaths == 0


async def test_a_template_that_keeps_ending_processes_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_pool, "REST_S", 1000.0)
    async with pool_of(1) as pool:
        load = template(LOOP, engine="jinja2")
        for _ in range(DEATHS_TO_REST):
            with pytest.raises(Unavailable):
                await render(pool, load)
        with pytest.raises(Unavailable, match="rests"):
            await render(pool, load)
        assert pool.deaths == DEATHS_TO_REST
        assert (await render(pool, template("T"))).body == b"T"


async def test_a_template_that_loads_well_but_ends_each_job_rests_too() -> None:
    async with pool_of(1) as pool:
        load = template("{% if messages[0].content == 'x' %}" + LOOP + "{% endif %}", "M", "jinja2")
        for _ in range(DEATHS_TO_REST):
            with pytest.raises(Unavailable):
                await render(pool, load)
        with pytest.raises(Unavailable, match="rests"):
            await render(pool, load)
        assert pool.deaths == DEATHS_TO_REST


async def test_who_waits_too_long_goes_without() -> None:
    async with pool_of(1) as pool:
        await render(pool, template("T"))
        busy = asyncio.create_task(render(pool, template(LOOP, engine="jinja2")))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="no process became free"):
            await render(pool, template("T"), 0.05)
        with pytest.raises(Unavailable):
            await busy


async def test_waiting_callers_that_are_cancelled_take_no_process_along() -> None:
    async with pool_of(1) as pool:
        await render(pool, template("T"))
        for _ in range(10):
            tasks = [asyncio.create_task(render(pool, template("T"))) for _ in range(6)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert [isinstance(result, Frame) for result in results[1::2]] == [True] * 3
        assert (await render(pool, template("T"))).body == b"T"
        assert len(pool.pids) == 1 and pool.deaths == 0


async def test_a_process_that_is_given_back_as_time_runs_out_is_not_lost() -> None:
    async with pool_of(1) as pool:
        await render(pool, template("T"))
        loop = asyncio.get_running_loop()
        process = pool._take(None, None)
        assert process is not None
        late = asyncio.create_task(render(pool, template("T"), 0.01))
        await asyncio.sleep(0)
        until_then = loop.time() + 0.05
        while loop.time() < until_then:  # one turn of the loop in which both happen
            pass
        loop.call_soon(pool._give_back, process)
        with pytest.raises(Unavailable, match="no process became free"):
            await late
        assert (await render(pool, template("T"), 5)).body == b"T"


async def test_a_job_for_a_holder_waits_for_a_holder() -> None:
    async with pool_of(2) as pool:
        loop = asyncio.get_running_loop()
        head = RENDER_HEAD.pack(5, 2, 0) + b"T"
        assert await pool.run_held("T", Kind.RENDER, head, (b"[]{}",), loop.time() + 5) is None
        await render(pool, template("T"))
        frames = await asyncio.gather(
            *(pool.run_held("T", Kind.RENDER, head, (b"[]{}",), loop.time() + 5) for _ in range(5))
        )
        assert [frame.body for frame in frames if frame is not None] == [b"T"] * 5
        assert len(pool.pids) == 1


async def test_closing_ends_whoever_waits() -> None:
    pool = RenderPool(1, GIB)
    await render(pool, template("T"))
    waiting = [asyncio.create_task(render(pool, template(LOOP, engine="jinja2"))) for _ in range(3)]
    await asyncio.sleep(0.05)
    await pool.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable] * 3
    with pytest.raises(Unavailable):
        await render(pool, template("T"))


async def test_a_start_that_fails_is_told_by_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(memory_bytes: int, niceness: int) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(render_pool, "start_process", broken)
    async with pool_of(1) as pool:
        with pytest.raises(Unavailable):
            await render(pool, template("T"), 0.1)
        monkeypatch.undo()
        monkeypatch.setattr(pool, "_may_start_at", 0.0)
        assert (await render(pool, template("T"))).body == b"T"
    await until(lambda: not pool.pids)
