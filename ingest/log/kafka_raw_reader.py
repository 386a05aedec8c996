"""Raw frames of a log on Kafka: the reading side, for a walk over a log.

Frames stand in the topic in the order of their records. So the topic is read in stretches, once from its
beginning on, as far as it is asked: of each stretch its first and last offset and its place are remembered
(32 bytes for about a MiB of the topic), and the frames of the newest few are held. A stretch that was let go
is read again, over a connection of its own: a scout reads ahead of a fold.

What an owner sent twice is passed over, and so is what one sent behind frames of later records, as an
owner may that was frozen while another one took over: such frames count as not kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Iterable
from typing import NamedTuple

from ingest.log.kafka_admin import describe_topic
from ingest.log.kafka_keyed import Found, KeyedSpans
from ingest.log.kafka_loop import KafkaLoop
from ingest.log.kafka_raw_topic import read_header
from ingest.log.kafka_settings import PARTITION, KafkaPlace
from ingest.log.raw_frames import Lost, raw_digest
from projections.bounds import KV_FRAME_BYTES_MAX

STRETCHES_HELD = 3  # where a fold, its scout, and the reading of the topic stand


class _Stretch(NamedTuple):
    """Frames of one answer, by ascending offsets of their records."""

    offsets: array[int]
    frames: list[bytes]

    @classmethod
    def of(cls, found: Iterable[Found], log_id: bytes, behind: int) -> _Stretch:
        """behind: the highest offset before. What is none of the log's is left out."""
        stretch = cls(array("Q"), [])
        for _, _, frame, headers in found:
            place = read_header(headers)
            if place is None or place.log_id != log_id or place.offset <= behind:
                continue
            if frame is None or len(frame) > KV_FRAME_BYTES_MAX:
                continue
            behind = place.offset
            stretch.offsets.append(behind)
            stretch.frames.append(frame)
        return stretch


class KafkaKeptFrames:
    """FrameFinder of what a topic held at opening. Use `open`, and `close` afterwards. For one thread."""

    def __init__(self, loop: KafkaLoop, place: KafkaPlace, log_id: bytes) -> None:
        self._loop = loop
        self._place = place
        self._log_id = log_id
        self._ahead: KeyedSpans | None = None  # reads on
        self._back: KeyedSpans | None = None  # reads again, connected at need
        self._rest: AsyncIterator[list[Found]] | None = None
        self._firsts = array("Q")
        self._lasts = array("Q")
        self._begins = array("Q")  # the topic's offsets
        self._stops = array("Q")
        self._held: dict[int, _Stretch] = {}

    @classmethod
    def open(cls, place: KafkaPlace, log_id: bytes) -> KafkaKeptFrames:
        """A missing topic holds no frames. Raises TopicRefused, KafkaUnreachable."""
        kept = cls(KafkaLoop(), place, log_id)
        try:
            kept._loop.run(kept._open())
            return kept
        except BaseException:
            kept.close()
            raise

    def first_offset(self) -> int | None:
        """See FrameFinder. Raises KafkaUnreachable."""
        if not self._firsts:
            self._read_on()
        return self._firsts[0] if self._firsts else None

    def get(self, offset: int, digest: int) -> bytes | Lost:
        """See FrameFinder. Raises KafkaUnreachable. What retention has taken meanwhile is gone."""
        while (not self._lasts or self._lasts[-1] < offset) and self._read_on():
            pass
        number = bisect_right(self._firsts, offset) - 1
        if number < 0 or self._lasts[number] < offset:
            return Lost.GONE
        stretch = self._stretch(number)
        at = bisect_left(stretch.offsets, offset)
        if at == len(stretch.offsets) or stretch.offsets[at] != offset:
            return Lost.GONE
        frame = stretch.frames[at]
        return frame if raw_digest(frame) == digest else Lost.DAMAGED

    def close(self) -> None:
        """Leave the cluster."""
        try:
            for spans in (self._ahead, self._back):
                if spans is not None:
                    self._loop.run(spans.close())
        finally:
            self._loop.close()

    def _read_on(self) -> bool:
        """One more stretch with frames of the log; False at the end."""
        while True:
            found = self._loop.run(self._next_answer())
            if not found:
                return False
            behind = self._lasts[-1] if self._lasts else -1
            stretch = _Stretch.of(found, self._log_id, behind)
            if stretch.offsets:
                self._firsts.append(stretch.offsets[0])
                self._lasts.append(stretch.offsets[-1])
                self._begins.append(found[0].offset)
                self._stops.append(found[-1].offset + 1)
                self._hold(len(self._firsts) - 1, stretch)
                return True

    def _stretch(self, number: int) -> _Stretch:
        stretch = self._held.pop(number, None)
        if stretch is None:
            found = self._loop.run(self._again(self._begins[number], self._stops[number]))
            behind = self._lasts[number - 1] if number else -1
            stretch = _Stretch.of(found, self._log_id, behind)
        self._hold(number, stretch)
        return stretch

    def _hold(self, number: int, stretch: _Stretch) -> None:
        self._held[number] = stretch
        while len(self._held) > STRETCHES_HELD:
            del self._held[next(iter(self._held))]

    # In the client's thread ----------------------------------------------------------

    async def _open(self) -> None:
        if await describe_topic(self._place) is None:
            return
        self._ahead = await KeyedSpans.open(self._place, 1)
        ((begin, end),) = await self._ahead.ends()
        self._rest = self._ahead.read(PARTITION, begin, end)

    async def _next_answer(self) -> list[Found]:
        """The next messages of the topic, [] once its end at opening is reached."""
        return await anext(self._rest, []) if self._rest is not None else []

    async def _again(self, begin: int, stop: int) -> list[Found]:
        if self._back is None:
            self._back = await KeyedSpans.open(self._place, 1)
        return [found async for some in self._back.read(PARTITION, begin, stop) for found in some]
