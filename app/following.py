"""How an offline command follows a log: whatever becomes visible, in order, until it is told to end.

One mechanism for `log cat`, `replay verify`, `replay whatif` and `replay feed`. A data directory is
read as it lies there, with an owner or without one; owners come and go, segments roll and are
compressed. A topic is read ahead in the client's thread, so that a signal is obeyed while brokers do
not answer; that is told once, and reading goes on when they do.

What ends it by itself is FollowingEnded: retention let go of what was not read yet, or another log
stands there now.
"""

from __future__ import annotations

import asyncio
import select
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

import typer

from app.cli_errors import EXIT_USAGE, fail
from app.config_units import Duration
from app.log_places import OpenLog
from app.processes import stop_signals
from ingest.log.kafka_settings import TopicReplaced
from ingest.log.segment_files import log_folder, stored_segments
from ingest.log.segment_store import StoredSegment
from projections.bounds import SECOND_US
from projections.events.ports import LogError, LogReader, OffsetGone, RecordBatch

if TYPE_CHECKING:
    from ingest.log.kafka_reader import KafkaReader

READ_BYTES = 1 << 20
WAIT_S = 0.25
LOOK_S = 1.0  # between looks at the files of a log that tells nothing new

FollowOption = Annotated[bool, typer.Option("--follow", help="Go on with what is appended, until Ctrl-C.")]
ForOption = Annotated[
    str | None, typer.Option("--for", metavar="DURATION", help="With --follow: end after 30s, 5m, ...")
]


class FollowingEnded(LogError):
    """The log cannot be followed any further; says why, and how to go on."""


class Following:
    """See the module's text. For one event loop; close it before the log.

    reader: what is read, and what tells both ends. data: the log's directory, if it has one.
    """

    def __init__(
        self, reader: LogReader, data: Path | None = None, close: Callable[[], None] | None = None
    ) -> None:
        self.reader = reader
        self._data = data
        self._close = close
        self._stopping = asyncio.Event()
        self._looked_at = float("-inf")

    @classmethod
    def of(cls, opened: OpenLog) -> Following:
        """Follow an open log. Ends the command with status 2 for one that never grows."""
        if not opened.may_grow:
            fail(EXIT_USAGE, f"{opened.name} is a capture, which never grows", "leave --follow out")
        if opened.data is not None:
            return cls(opened.reader, opened.data)
        from ingest.log.kafka_tail import KafkaTail  # here: segments need no client of Kafka

        tail = KafkaTail(cast("KafkaReader", opened.reader))
        return cls(tail, close=tail.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._close is not None:
            self._close()

    def is_stopped(self) -> bool:
        """Whether it was told to end."""
        return self._stopping.is_set()

    async def stopped(self) -> None:
        """Return once it was told to end."""
        await self._stopping.wait()

    def stop(self) -> None:
        """End the wait that is under way, and every later one."""
        self._stopping.set()

    @contextmanager
    def until_told(self, for_s: float | None = None) -> Iterator[None]:
        """`stop_signals` or `for_s` seconds stop it. A second signal ends the process as ever."""
        loop = asyncio.get_running_loop()
        numbers = stop_signals()

        def told() -> None:
            for number in numbers:
                loop.remove_signal_handler(number)
            self.stop()

        for number in numbers:
            loop.add_signal_handler(number, told)
        timer = loop.call_later(for_s, self.stop) if for_s is not None else None
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            for number in numbers:
                loop.remove_signal_handler(number)

    async def more(self, position: int) -> list[RecordBatch]:
        """Batches from `position` on; [] where none came for a moment, or when it was stopped.

        Raises FollowingEnded, LogCorrupt.
        """
        try:
            batches = self.reader.read(position, READ_BYTES)
            if not batches:
                self._look()
                await self.wait(self.reader.wait(position, WAIT_S))
            return batches
        except OffsetGone as gone:
            raise FollowingEnded(
                f"retention let go of offset {gone.offset} before it was read, the oldest kept is"
                f" {gone.first_offset}: follow again, and read faster or keep more"
            ) from gone
        except TopicReplaced as problem:
            raise FollowingEnded(f"{problem}: follow again, from the new log's begin") from problem

    async def wait(self, what: Awaitable[Any]) -> None:
        """Wait for something, or for the order to stop. Raises what it raises."""
        wanted = asyncio.ensure_future(what)
        order = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({wanted, order}, return_when=asyncio.FIRST_COMPLETED)
            if wanted.done():
                wanted.result()
        finally:
            for task in (wanted, order):
                task.cancel()
            await asyncio.gather(wanted, order, return_exceptions=True)

    def _look(self) -> None:
        """Now and then, whether the directory still holds the log that is read."""
        now = asyncio.get_running_loop().time()
        if self._data is None or now < self._looked_at + LOOK_S:
            return
        self._looked_at = now
        firsts = stored_segments(log_folder(self._data))
        if not firsts:
            raise FollowingEnded(f"{self._data}: the log is gone: restore it, or name another one")
        with suppress(FileNotFoundError):  # retention was quicker
            segment = StoredSegment(log_folder(self._data), firsts[0])
            log_id = segment.header.log_id
            segment.close()
            if log_id != self.reader.log_id:
                raise FollowingEnded(f"{self._data}: another log stands there now: follow again")


def seconds_of(text: str | None, follows: bool) -> float | None:
    """A span of time as `--for` takes it. Ends the command with status 2 for any other text, or alone."""
    if text is None:
        return None
    try:
        seconds = Duration.read(text).us / SECOND_US
    except ValueError as problem:
        fail(EXIT_USAGE, f"--for {text}: {problem}")
    if not follows:
        fail(EXIT_USAGE, "--for says how long a log is followed", "add --follow")
    return seconds


def end_if_unread() -> None:
    """End as any filter does once nobody reads standard output any more, also when nothing is to be said."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        is_unread = any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))
    except (OSError, ValueError):  # no file at all
        return
    if is_unread:
        signal.raise_signal(signal.SIGPIPE)
