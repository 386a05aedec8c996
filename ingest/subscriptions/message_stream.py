"""What becomes of the messages of one publisher: the port between a subscriber and its family.

A subscriber connects, waits and tells states; a stream reads messages and tells facts of them.
Each family of topics has its own kind of stream: `sample_stream`, `event_stream`, `engine_stream`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ingest.subscriptions.reasons import Reason
from ingest.wire.zmtp_frames import Message
from ingest.wire.zmtp_limits import ZmtpLimits
from projections.events.signals import Family
from projections.identity import PublisherKey
from projections.notices import FrameResult, Notice

Fact = tuple[Any, ...]


class StreamHost(Protocol):
    """What a stream may ask of its subscriber."""

    @property
    def key(self) -> PublisherKey:
        """The publisher."""

    @property
    def connection(self) -> int:
        """Number of the connection, from 1."""

    @property
    def peer(self) -> str | None:
        """Address that the connection was made to, None where there is none or nobody knows."""

    def append(self, fact: Fact) -> None:
        """A fact for the log."""

    @property
    def keeps_raw(self) -> bool:
        """Whether `keep_raw` keeps anything."""

    def keep_raw(self, frames: Message) -> int | None:
        """Keep the frames of a fact that is appended next; their digest, None where nothing is kept."""

    def is_shedding(self) -> bool:
        """Whether the log takes none of these facts now."""

    def count(self, result: FrameResult, times: int = 1) -> None:
        """Frames or events that were not taken."""

    def notice(self, notice: Notice) -> None:
        """What people should read."""

    def hold(self) -> None:
        """Read nothing more from the connection until `release`."""

    def release(self) -> None:
        """Read on."""

    def renew(self, reason: Reason, *, is_end: bool = False) -> None:
        """The peer is another one from here on: number the connection anew and say so.

        is_end: say before that the old one has ended for good, so that what it told is forgotten.
        """


class MessageStream(Protocol):
    """Reads messages. Called on the event loop."""

    def begin(self) -> None:
        """A connection stands, nothing of an earlier one counts; `host.connection` is its number."""

    def renumbered(self) -> None:
        """The connection has another number from here on, `host.connection`; no message was missed."""

    def receive(self, messages: list[Message]) -> None:
        """Whole messages, oldest first."""

    def finish(self) -> None:
        """The connection has ended: tell what waits where that is still worth something, then `forget`."""

    def forget(self) -> None:
        """Drop what waits, and wait for nothing more."""


class StreamPlan(NamedTuple):
    """How one publisher is listened to. topic: what is subscribed, a beginning of frame 0."""

    family: Family
    topic: bytes
    limits: ZmtpLimits
    make: Callable[[StreamHost], MessageStream]
