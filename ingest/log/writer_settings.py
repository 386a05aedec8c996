"""What a log's writer is told and what it tells: its settings, its clocks, figures of a commit."""

from __future__ import annotations

import time
from typing import NamedTuple

from projections.bounds import MIB

UPKEEP_S = 10.0


def boot_us() -> int:
    """Monotonic time that goes on while the machine sleeps, microseconds."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def wall_us() -> int:
    """Wall clock, microseconds since 1970."""
    return time.time_ns() // 1000


class CommitNote(NamedTuple):
    """Figures of one commit, for metrics."""

    records: int
    size_bytes: int
    duration_us: int


class WriterSettings(NamedTuple):
    """Group commit: `log.fsync` of the configuration. upkeep_s: pause between rounds of upkeep.

    reads_apart: reads of the store wait for a network, and are made in any thread.
    """

    every_us: int = 2_000
    every_bytes: int = MIB
    upkeep_s: float = UPKEEP_S
    reads_apart: bool = False
