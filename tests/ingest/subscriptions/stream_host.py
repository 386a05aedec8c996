"""A subscriber that is none: everything that a stream asks of it is written down."""

from __future__ import annotations

from typing import Any

from ingest.subscriptions.message_stream import MessageStream
from ingest.subscriptions.reasons import Reason
from ingest.wire.zmtp_frames import Message
from projections.events.signals import KvBatchReceived, SampleReceived
from projections.identity import PublisherKey
from projections.notices import FrameResult, Notice
from tests.ingest.wire.kv_messages import PUBLISHER, Told, told


class FakeHost:
    """See StreamHost. is_shedding_now: what the log says. held: whether reading is held.

    ends: connections that were said to have ended for good.
    """

    def __init__(self, publisher_id: int = PUBLISHER, keeps_raw: bool = False) -> None:
        self.key = PublisherKey("prod", publisher_id)
        self.connection = 1
        self.keeps_raw = keeps_raw
        self.facts: list[Any] = []
        self.kept: list[Message] = []
        self.counts: dict[FrameResult, int] = {}
        self.notices: list[Notice] = []
        self.renewals: list[Reason] = []
        self.ends: list[int] = []
        self.peer: str | None = "10.0.0.7"
        self.is_shedding_now = False
        self.is_held = False

    def append(self, fact: Any) -> None:
        self.facts.append(fact)

    def keep_raw(self, frames: Message) -> int | None:
        if not self.keeps_raw:
            return None
        self.kept.append(frames)
        return 1000 + len(self.kept)

    def is_shedding(self) -> bool:
        return self.is_shedding_now

    def count(self, result: FrameResult, times: int = 1) -> None:
        self.counts[result] = self.counts.get(result, 0) + times

    def notice(self, notice: Notice) -> None:
        self.notices.append(notice)

    def hold(self) -> None:
        assert not self.is_held
        self.is_held = True

    def release(self) -> None:
        assert self.is_held
        self.is_held = False

    def renew(self, reason: Reason, *, is_end: bool = False) -> None:
        if is_end:
            self.ends.append(self.connection)
        self.connection += 1
        self.renewals.append(reason)

    def connect(self, stream: MessageStream) -> None:
        """Another connection stands, with nothing held."""
        self.connection += 1
        self.is_held = False
        stream.begin()

    @property
    def samples(self) -> list[SampleReceived]:
        return [fact for fact in self.facts if isinstance(fact, SampleReceived)]

    @property
    def batches(self) -> list[KvBatchReceived]:
        return [fact for fact in self.facts if isinstance(fact, KvBatchReceived)]

    @property
    def covered(self) -> list[tuple[int, int]]:
        return [(fact.covers_from, fact.sequence) for fact in self.batches]

    @property
    def events(self) -> list[Told]:
        return [one for fact in self.batches for one in told(fact.heads, fact.hashes)]
