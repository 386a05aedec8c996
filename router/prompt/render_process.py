"""One render process as its router sees it: a socket, one job at a time, a deadline for each.

Nothing here waits: a job's bytes are written as far as the socket takes them, the rest and the
answer come by the loop's readiness callbacks, and the answer is a future. A job that is past
its deadline, an answer that is no frame or above its ceiling, and a process that ends all look
alike: the process is killed, and the future says why. A caller that goes away leaves the job to
end by itself, since a killed process costs more than a finished one.

The process is started in a thread, as starting one may take a while, and ends with its router:
when that is gone its socket reads as closed, and its own timers end a job that does not look.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from projections.bounds import RENDER_FRAME_BYTES_MAX
from router.prompt.render_wire import LENGTH_BYTES, Frame, FrameBroken, Kind, frame_of, length_of, prefix_of

WORKER: Final = "router.prompt.render_worker"
REPOSITORY: Final = Path(__file__).resolve().parents[2]
READ_BYTES: Final = 256 * 1024
_BUFFER_BYTES: Final = 512 * 1024  # of the socket: a usual prompt goes in one write
_REAP_S: Final = 0.02
_PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH", "TZ", "LANG", "LC_ALL", "SYSTEMROOT")


class ProcessDied(Exception):
    """The process ended or was ended; the text says why."""


def start_process(memory_bytes: int, niceness: int = 0) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A new process and our end of its socket. Blocks for some milliseconds. Raises OSError."""
    ours, theirs = socket.socketpair()
    try:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        number = theirs.fileno()
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                f"from {WORKER} import main; main({number}, {memory_bytes}, {niceness})",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(number,),
            env=_environment(),
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    return process, ours


def _environment() -> dict[str, str]:
    """Little of ours: no secret, one thread, no hub, and the zone that dates are written in."""
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RAYON_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "MALLOC_ARENA_MAX": "1",
    }


class RenderProcess:
    """A running process. on_free: called with it when a job is answered; on_gone: when it died.

    All calls are made on its event loop. held: keys of what is loaded in it, as far as known.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        wire: socket.socket,
        on_free: Callable[[RenderProcess], None],
        on_gone: Callable[[RenderProcess], None],
    ) -> None:
        self.held: set[str] = set()
        self.is_alive = True
        self._process = process
        self._wire = wire
        self._on_free = on_free
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Frame] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unsent: list[memoryview] = []
        self._got = bytearray()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._reply_bytes_max = 0
        self._loop.add_reader(wire, self._read)

    @property
    def pid(self) -> int:
        """Of the process, also when it has ended."""
        return self._process.pid

    @property
    def is_busy(self) -> bool:
        """Whether a job is under way."""
        return self._answer is not None

    def ask(self, kind: Kind, head: bytes, body: Sequence[bytes], deadline_s: float) -> asyncio.Future[Frame]:
        """Start a job, which is the only one. The future fails with ProcessDied.

        deadline_s: from now. Whoever asks must have got this process for themselves.
        """
        assert self._answer is None
        self._answer = answer = self._loop.create_future()
        self._reply_bytes_max = RENDER_FRAME_BYTES_MAX
        self._timer = self._loop.call_later(max(0.0, deadline_s), self.end, "out of time")
        size = sum(map(len, body))
        parts: Sequence[bytes] = (prefix_of(kind, head, size), *body)
        if size <= READ_BYTES:  # one write for the usual job
            parts = (b"".join(parts),)
        self._unsent = [memoryview(part) for part in parts if part]
        if not self.is_alive:
            self._fail("it had ended")
        else:
            self._write()
        return answer

    def end(self, why: str) -> None:
        """Kill it. A job that is under way fails for this reason."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._loop.remove_reader(self._wire)
        self._loop.remove_writer(self._wire)
        self._wire.close()
        self._process.kill()
        self._reap()
        self._on_gone(self)
        self._fail(why)

    # bytes

    def _write(self) -> None:
        """Write what the socket takes, and come back for the rest."""
        try:
            while self._unsent:
                part = self._unsent[0]
                sent = self._wire.send(part[:READ_BYTES])
                if sent == len(part):
                    del self._unsent[0]
                else:
                    self._unsent[0] = part[sent:]
                    if len(part) > READ_BYTES:  # others have their turn between pieces of a file
                        break
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.end("its socket is closed")
            return
        if self._unsent:
            self._loop.add_writer(self._wire, self._write)
        else:
            self._loop.remove_writer(self._wire)

    def _read(self) -> None:
        try:
            count = self._wire.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if not count:
            self.end(f"it ended{self._status()}")
            return
        if self._answer is None:
            self.end("it spoke without being asked")
            return
        try:
            self._take(self._buffer[:count])
        except FrameBroken as problem:
            self.end(str(problem))

    def _take(self, data: memoryview) -> None:
        """Hand the answer over once it is whole. data: what came last; a usual answer comes at once."""
        got = data
        if self._got:
            self._got += data
            got = memoryview(self._got)
        wanted = LENGTH_BYTES + (length_of(got, self._reply_bytes_max) if len(got) >= LENGTH_BYTES else 1)
        if len(got) < wanted:
            self._got = self._got or bytearray(data)
            return
        if len(got) > wanted:
            raise FrameBroken("more than one answer")
        frame = frame_of(got[LENGTH_BYTES:])
        self._got = bytearray()
        answer, self._answer = self._answer, None
        if self._timer is not None:
            self._timer.cancel()
        if answer is not None and not answer.done():
            answer.set_result(frame)
        self._on_free(self)

    def _fail(self, why: str) -> None:
        answer, self._answer = self._answer, None
        if self._timer is not None:
            self._timer.cancel()
        if answer is not None and not answer.done():
            answer.set_exception(ProcessDied(why))

    # its end

    def _status(self) -> str:
        status = self._process.poll()
        return f" with status {status}" if status is not None else ""

    def _reap(self) -> None:
        """Take its status away, so that it does not stay as a zombie."""
        if self._process.poll() is None and not self._loop.is_closed():
            self._loop.call_later(_REAP_S, self._reap)

    @property
    def is_reaped(self) -> bool:
        """Whether it has ended and its status was taken."""
        return self._process.returncode is not None

    async def ended(self) -> None:
        """Wait until the killed process is gone."""
        await asyncio.to_thread(self._process.wait)
