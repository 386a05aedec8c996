"""Render processes of one kind: started when needed, lent to one job at a time, replaced when they die.

What a job needs loaded (a template, a tokenizer) has a key. A free process that has it goes
first, then any; a process that lost it is given it again. A key whose jobs end a process three
times in a row, with none answered between, rests for a while: a bomb would otherwise keep all
processes dying. Being loaded is no answer: what loads well may yet end each job.

Nothing here blocks the event loop: processes are started in a thread, and all else is
`render_process`.

Sources: requirement rows RND-03, RND-04, RND-08.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from router.prompt.render_process import ProcessDied, RenderProcess, start_process
from router.prompt.render_wire import Frame, Kind

DEATHS_TO_REST: Final = 3  # in a row
REST_S: Final = 30.0
KEYS_WATCHED_MAX: Final = 256
START_PAUSE_S: Final = 1.0  # after a start that failed


class Unavailable(Exception):
    """No answer to a job: out of time, resting, or its process died. The text says why."""


class JobFailed(Exception):
    """The job was answered with a failure, whose reason is the text."""


class TextTooLarge(Exception):
    """The answer is above its ceiling."""


class Load(NamedTuple):
    """What a job needs loaded: a frame that brings it. key: by which it is known afterwards."""

    key: str
    kind: Kind
    head: bytes
    body: tuple[bytes, ...]


class _Deaths:
    __slots__ = ("count", "rests_until")

    def __init__(self) -> None:
        self.count = 0
        self.rests_until = 0.0


class _Waiter(NamedTuple):
    """Somebody who waits for a process. holding: only one that has this key, None for any."""

    future: asyncio.Future[RenderProcess]
    holding: str | None


class RenderPool:
    """At most `limit` processes with `memory_bytes` of address space each, as nice as told.

    All calls are made on one event loop. Times are of that loop's clock.
    """

    def __init__(self, limit: int, memory_bytes: int, niceness: int = 0) -> None:
        self._limit = limit
        self._memory_bytes = memory_bytes
        self._niceness = niceness
        self._processes: list[RenderProcess] = []
        self._free: list[RenderProcess] = []
        self._ending: list[RenderProcess] = []  # killed, and perhaps not gone yet
        self._abandoned: set[int] = set()  # pids of processes whose job nobody waits for
        self._waiters: list[_Waiter] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._may_start_at = 0.0
        self._deaths: OrderedDict[str, _Deaths] = OrderedDict()
        self._is_closed = False
        self.deaths = 0

    @property
    def pids(self) -> list[int]:
        """Of the processes that live."""
        return [process.pid for process in self._processes]

    def holders(self, key: str) -> int:
        """How many processes have it loaded."""
        return sum(key in process.held for process in self._processes)

    def wants_more(self, key: str) -> bool:
        """Whether all that have it are busy and another process is free or can be started."""
        if any(key in process.held for process in self._free):
            return False
        return bool(self._free) or len(self._processes) + len(self._starting) < self._limit

    async def run(self, load: Load, kind: Kind, head: bytes, body: Sequence[bytes], deadline: float) -> Frame:
        """Do a job in a process that has what it needs. deadline: a time of the loop's clock.

        Raises Unavailable, JobFailed, TextTooLarge.
        """
        self._check_rest(load.key)
        process = self._take(load.key, None) or await self._wait(None, deadline)
        try:
            if load.key not in process.held:
                await self._load_into(process, load, deadline)
            frame = await self._ask(process, load.key, kind, head, body, deadline)
            if frame.kind is Kind.UNKNOWN:
                process.held.discard(load.key)
                await self._load_into(process, load, deadline)
                frame = await self._ask(process, load.key, kind, head, body, deadline)
            self._deaths.pop(load.key, None)
            return _answered(frame)
        finally:
            self._give_back(process)

    async def run_held(
        self, key: str, kind: Kind, head: bytes, body: Sequence[bytes], deadline: float
    ) -> Frame | None:
        """Do a job in a process that has the key already; None where none has it (any more).

        Raises Unavailable, JobFailed, TextTooLarge.
        """
        self._check_rest(key)
        if not self.holders(key):
            return None
        process = self._take(key, key) or await self._wait(key, deadline)
        try:
            frame = await self._ask(process, key, kind, head, body, deadline)
            if frame.kind is Kind.UNKNOWN:
                process.held.discard(key)
                return None
            self._deaths.pop(key, None)
            return _answered(frame)
        finally:
            self._give_back(process)

    async def load(self, load: Load, deadline: float) -> Frame:
        """Load into one more process. Raises Unavailable, JobFailed."""
        self._check_rest(load.key)
        process = self._take(None, None) or await self._wait(None, deadline)
        try:
            return await self._load_into(process, load, deadline)
        finally:
            self._give_back(process)

    async def close(self) -> None:
        """End all processes and whoever waits for one."""
        self._is_closed = True
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for process in list(self._processes):
            process.end("the router ends")
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_exception(Unavailable("the router ends"))
        self._waiters.clear()
        for process in self._ending:
            await process.ended()
        self._ending.clear()

    # jobs

    async def _load_into(self, process: RenderProcess, load: Load, deadline: float) -> Frame:
        frame = await self._ask(process, load.key, load.kind, load.head, load.body, deadline)
        answer = _answered(frame)
        process.held.add(load.key)
        return answer

    async def _ask(
        self,
        process: RenderProcess,
        key: str,
        kind: Kind,
        head: bytes,
        body: Sequence[bytes],
        deadline: float,
    ) -> Frame:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise Unavailable("out of time")
        try:
            frame = await process.ask(kind, head, body, left)
        except ProcessDied as problem:
            self._died(key)
            raise Unavailable(str(problem)) from problem
        return frame

    def _died(self, key: str) -> None:
        self.deaths += 1
        deaths = self._deaths.setdefault(key, _Deaths())
        self._deaths.move_to_end(key)
        if len(self._deaths) > KEYS_WATCHED_MAX:
            self._deaths.popitem(last=False)
        deaths.count += 1
        if deaths.count >= DEATHS_TO_REST:
            deaths.rests_until = asyncio.get_running_loop().time() + REST_S

    def _check_rest(self, key: str) -> None:
        deaths = self._deaths.get(key)
        if deaths is not None and deaths.rests_until > asyncio.get_running_loop().time():
            raise Unavailable("it ended its process several times and rests")

    # processes

    def _give_back(self, process: RenderProcess) -> None:
        """The job that it was lent to alone has ended, or is no longer waited for."""
        if process.is_busy:
            self._abandoned.add(process.pid)
        else:
            self._release(process)

    def _take(self, wished: str | None, holding: str | None) -> RenderProcess | None:
        """A free process. wished: a key it had better have; holding: one that it must have."""
        if self._waiters and holding is None:
            return None  # others came first
        for place, process in enumerate(self._free):
            if wished is not None and wished in process.held:
                return self._free.pop(place)
        return self._free.pop() if self._free and holding is None else None

    async def _wait(self, holding: str | None, deadline: float) -> RenderProcess:
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise Unavailable("the router ends")
        waiter = _Waiter(loop.create_future(), holding)
        self._waiters.append(waiter)
        self._start_more()
        process = None
        try:
            async with asyncio.timeout_at(deadline):
                process = await waiter.future
            return process
        except TimeoutError:
            raise Unavailable("no process became free") from None
        finally:
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)
            if process is None:
                self._return_unused(waiter.future)

    def _return_unused(self, handed: asyncio.Future[RenderProcess]) -> None:
        """A process may be handed over in the very turn in which time is up or the job is cancelled."""
        if handed.done() and not handed.cancelled() and handed.exception() is None:
            self._release(handed.result())

    def _release(self, process: RenderProcess) -> None:
        if not process.is_alive:
            return
        for waiter in self._waiters:
            if not waiter.future.done() and (waiter.holding is None or waiter.holding in process.held):
                waiter.future.set_result(process)
                self._waiters.remove(waiter)
                return
        self._free.append(process)

    def _freed(self, process: RenderProcess) -> None:
        """A job was answered; its borrower gives the process back, if still there."""
        if process.pid in self._abandoned:
            self._abandoned.discard(process.pid)
            self._release(process)

    def _gone(self, process: RenderProcess) -> None:
        self._abandoned.discard(process.pid)
        self._processes.remove(process)
        self._ending = [one for one in self._ending if not one.is_reaped]
        self._ending.append(process)
        with contextlib.suppress(ValueError):
            self._free.remove(process)
        for waiter in list(self._waiters):
            if waiter.holding is not None and not self.holders(waiter.holding) and not waiter.future.done():
                waiter.future.set_exception(Unavailable("the process that had it died"))
        self._start_more()

    def _start_more(self) -> None:
        """Start a process for each who waits for any, as far as the limit goes."""
        wanting = sum(waiter.holding is None for waiter in self._waiters)
        loop = asyncio.get_running_loop()
        while (
            not self._is_closed
            and len(self._starting) < wanting
            and len(self._processes) + len(self._starting) < self._limit
            and loop.time() >= self._may_start_at
        ):
            task = loop.create_task(self._start())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _start(self) -> None:
        starting = asyncio.ensure_future(asyncio.to_thread(start_process, self._memory_bytes, self._niceness))
        try:
            process, wire = await asyncio.shield(starting)
        except asyncio.CancelledError:
            process, wire = await starting
            wire.close()
            process.kill()
            await asyncio.to_thread(process.wait)
            raise
        except OSError:
            self._may_start_at = asyncio.get_running_loop().time() + START_PAUSE_S
            return
        started = RenderProcess(process, wire, self._freed, self._gone)
        self._processes.append(started)
        self._release(started)


def _answered(frame: Frame) -> Frame:
    if frame.kind is Kind.FAILED:
        raise JobFailed(frame.head.decode("ascii", "replace"))
    if frame.kind is Kind.TOO_LARGE:
        raise TextTooLarge
    if frame.kind is not Kind.DONE:
        raise JobFailed("it does not keep what it is given")
    return frame
