"""Children of a process, and what is common to all: loop and signals.

A child is started again when it ends, with a growing pause, and ends with its parent: it
is told its parent's pid and watches it (`follower.end_with_parent`), so not even a kill
leaves it behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

log = structlog.get_logger("picklog.process")

PAUSE_S_MIN = 0.5
PAUSE_S_MAX = 30.0
HEALTHY_S = 60.0
TERMINATE_S_MAX = 5.0
PARENT_VARIABLE = "PICKLOG_PARENT_PID"
LINE_BYTES_MAX = 64 << 10


def run_to_end(main: Coroutine[Any, Any, int]) -> int:
    """Run a process's main coroutine on uvloop where it is installed; its exit status."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def stop_signals() -> tuple[signal.Signals, ...]:
    """What tells a process to end: SIGTERM, SIGINT, and the end of its terminal.

    SIGHUP is left alone where whoever started the process has it ignored, as `nohup` does.
    """
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT) if is_ignored else (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def on_stop_signals(stop: Callable[[], None]) -> None:
    """Call `stop` for each of `stop_signals`, each time one comes."""
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stop)


class Child:
    """A `picklog` command that is kept running.

    arguments: those behind `picklog`. on_line: told each line that it prints, at most
    LINE_BYTES_MAX of it; without one its output is this process's. on_end: told each end that
    nobody asked for: how often it was started so far, its status, seconds that it lived.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        on_line: Callable[[bytes], None] | None = None,
        on_end: Callable[[int, int, float], None] | None = None,
    ) -> None:
        self.name = name
        self.starts = 0
        self._arguments = arguments
        self._on_line = on_line
        self._on_end = on_end
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the running process, None while there is none."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def start(self) -> None:
        """Begin to keep it running."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self, grace_s: float = TERMINATE_S_MAX) -> None:
        """End it: SIGTERM, and SIGKILL after `grace_s`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def hurry(self) -> None:
        """SIGTERM once more: who waits for requests in flight waits no longer."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()

    async def _keep(self) -> None:
        pause = PAUSE_S_MIN
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            self.starts += 1
            try:
                self._process = await self._begun()
            except OSError as problem:  # no more processes, memory or descriptors: maybe later
                log.error("a child process cannot be started", child=self.name, cause=str(problem))
            else:
                await self._listen(self._process)
                status = await self._process.wait()
                log.error("a child process ended and is started again", child=self.name, status=status)
                lived_s = loop.time() - began
                if self._on_end is not None:
                    self._on_end(self.starts, status, lived_s)
                if lived_s > HEALTHY_S:
                    pause = PAUSE_S_MIN
            await asyncio.sleep(pause)
            pause = min(PAUSE_S_MAX, pause * 2)

    async def _begun(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "app",
            *self._arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if self._on_line is not None else None,
            limit=LINE_BYTES_MAX,
            env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
            start_new_session=True,  # a Ctrl-C at the terminal is the parent's to pass on
        )

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Hand lines over until the child's output ends."""
        if self._on_line is None or process.stdout is None:
            return
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than a line may be: what was read of it is dropped
                continue
            if not line:
                return
            self._on_line(line)
