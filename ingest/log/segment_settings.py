"""How a segment log keeps its files."""

from __future__ import annotations

from dataclasses import dataclass

from projections.bounds import MIB, RESERVE_BYTES, SECOND_US


@dataclass(frozen=True, slots=True)
class SegmentSettings:
    """Sizes in bytes, times in microseconds of log time.

    segment_bytes:    a segment is sealed before it grows beyond this.
    segment_age_us:   and when its records span this much.
    allocate_bytes:   room is taken ahead, and zeroed, in such steps.
    reserve_bytes:    kept for critical records when the disk is full.
    retention_age_us: sealed segments whose newest record is older may go.
    retention_bytes:  the oldest go while all segments take more; None: `retention_share`.
    retention_share:  per cent of the file system.
    compress_level:   zstd level for sealed segments, 0 keeps them plain.
    durable:          False leaves out every fdatasync: for benchmarks and throw-away logs.
    """

    segment_bytes: int = 256 * MIB
    segment_age_us: int = 3600 * SECOND_US
    allocate_bytes: int = 4 * MIB
    reserve_bytes: int = RESERVE_BYTES
    retention_age_us: int = 7 * 24 * 3600 * SECOND_US
    retention_bytes: int | None = None
    retention_share: int = 25
    compress_level: int = 3
    durable: bool = True
