"""A log whose samples and block events are decoded anew from raw frames, for `replay whatif --redecode`.

A record stays as it is where its frame is not kept, as those of engines never are, and keeps its
offset, time and writer in any case. A frame that is refused now takes its record with it: a refusal
stands in its place. Records are made anew in memory; the log itself is only read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingest.log.raw_frames import FrameFinder, Lost
from ingest.wire.publisher_frames import Refused, decode_sample_message
from ingest.wire.router_events import decode_kv_message
from ingest.wire.zmtp_frames import decode_message
from projections.events.codec import RecordRefused, decode_record, encode_record
from projections.events.envelope import Record
from projections.events.kinds import KIND_OF_FACT
from projections.events.ports import CheckpointInfo, CheckpointStore, LogReader, RecordBatch
from projections.events.signals import Family, FrameRefused, KvBatchReceived, SampleReceived
from projections.notices import FrameResult
from replay.log_walk import kind_byte

_KINDS = frozenset((KIND_OF_FACT[SampleReceived], KIND_OF_FACT[KvBatchReceived]))

_NO_MESSAGE = Refused(FrameResult.MALFORMED, None)


class Redecoded:
    """What came of the samples and batches that were read, each counted once.

    same, changed: decoded anew. refused: nothing any more. not_kept: their frames are gone,
    damaged: no longer what was kept; both stay as they are.
    """

    def __init__(self) -> None:
        self.same = self.changed = self.refused = self.not_kept = self.damaged = 0

    def document(self) -> dict[str, int]:
        """As JSON members."""
        return dict(vars(self))


class RedecodedLog:
    """A LogReader over another one."""

    def __init__(self, reader: LogReader, frames: FrameFinder) -> None:
        self._reader = reader
        self._frames = frames
        self.counts = Redecoded()
        self._counted = -1

    @property
    def log_id(self) -> bytes:
        """See LogReader."""
        return self._reader.log_id

    def first_offset(self) -> int:
        """See LogReader."""
        return self._reader.first_offset()

    def end_offset(self) -> int:
        """See LogReader."""
        return self._reader.end_offset()

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        """See LogReader."""
        return [
            RecordBatch(
                batch.first_offset,
                [
                    self._anew(offset, data) if kind_byte(data) in _KINDS else data
                    for offset, data in enumerate(batch.records, batch.first_offset)
                ],
            )
            for batch in self._reader.read(start, bytes_max)
        ]

    async def wait(self, offset: int, timeout_s: float) -> None:
        """See LogReader."""
        await self._reader.wait(offset, timeout_s)

    def _anew(self, offset: int, data: bytes) -> bytes:
        try:
            record = decode_record(offset, data)
        except RecordRefused:
            return data
        said = record.fact
        assert isinstance(said, SampleReceived | KvBatchReceived)
        frame = Lost.GONE if said.raw_digest is None else self._frames.get(offset, said.raw_digest)
        if isinstance(frame, Lost):
            self._count(offset, "not_kept" if frame is Lost.GONE else "damaged")
            return data
        fact = decoded_anew(said, frame)
        if fact == said:
            self._count(offset, "same")
            return data
        self._count(offset, "refused" if isinstance(fact, FrameRefused) else "changed")
        return _in_place_of(record, fact)

    def _count(self, offset: int, name: str) -> None:
        """A scout and a fold read the same records one after the other; the first one counts."""
        if offset > self._counted:
            self._counted = offset
            setattr(self.counts, name, getattr(self.counts, name) + 1)


def decoded_anew(
    said: SampleReceived | KvBatchReceived, frame: bytes
) -> SampleReceived | KvBatchReceived | FrameRefused:
    """What the frame of a recorded sample or batch says to today's decoder."""
    frames = decode_message(frame)
    if isinstance(said, SampleReceived):
        sample = decode_sample_message(frames, said.publisher_id) if frames is not None else _NO_MESSAGE
        if isinstance(sample, Refused):
            return _refused(said, Family.LOAD, sample)
        return said._replace(
            sequence=sample.sequence,
            worker_id=sample.worker_id,
            dp_rank=sample.dp_rank,
            active_decode_blocks=sample.active_decode_blocks,
            active_prefill_tokens=sample.active_prefill_tokens,
            kv_used_blocks=sample.kv_used_blocks,
            published_at_ms=sample.published_at_ms,
        )
    batch = decode_kv_message(frames, said.publisher_id) if frames is not None else _NO_MESSAGE
    if isinstance(batch, Refused):
        return _refused(said, Family.KV, batch)
    return said._replace(
        sequence=batch.sequence,
        heads=batch.heads,
        hashes=batch.hashes,
        published_at_ms=batch.published_at_ms,
    )


def _refused(said: SampleReceived | KvBatchReceived, family: Family, found: Refused) -> FrameRefused:
    return FrameRefused(int(family), said.namespace, said.publisher_id, said.connection, int(found.result), 1)


def _in_place_of(record: Record, fact: tuple[object, ...]) -> bytes:
    return encode_record(record.time, record.writer, record.epoch, record.sequence, fact)


class CheckpointsBefore:
    """Those checkpoints of a store whose state is older than that of `offset`, for reading alone."""

    def __init__(self, checkpoints: CheckpointStore, offset: int) -> None:
        self._checkpoints = checkpoints
        self._offset = offset

    def list(self) -> Sequence[CheckpointInfo]:
        """See CheckpointStore."""
        return [info for info in self._checkpoints.list() if info.offset < self._offset]

    def read(self, info: CheckpointInfo) -> Iterator[bytes]:
        """See CheckpointStore."""
        return self._checkpoints.read(info)

    def write(
        self, log_id: bytes, offset: int, check: int, time: int, records: Iterator[bytes]
    ) -> CheckpointInfo:
        """Refused: of a log that is decoded anew, states are not those of the log."""
        raise OSError("a log that is read this way keeps no checkpoints")
