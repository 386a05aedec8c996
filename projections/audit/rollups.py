"""Roll-ups: what a minute of a model's picks came to, as a function of that minute's rows.

A window is a minute of log time and a model; a pick belongs to the minute in which it was asked,
and its end to the same window, whenever it comes. Nothing is kept between two computations: a
window is computed from all of its rows, so a row that comes late, twice or in another order
changes the outcome exactly as far as it should. `to_offset` is the newest record that contributed.

First bytes are counted in buckets that are the same everywhere, so that windows can be merged: below
SUB_BUCKETS microseconds one bucket each, above that SUB_BUCKETS to every doubling. A percentile is the upper
bound of its bucket, at most 1/SUB_BUCKETS (3.1 %) above the true one.

Sources: decisions 43, 48; issue text of the audit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from projections.audit.translation import WHOLE_MAX, whole
from projections.bounds import SECOND_US
from projections.events.envelope import LANE
from projections.events.picks import EndStatus, PickReason

MINUTE_US = 60 * SECOND_US
SUB_BUCKETS = 32
_SUB_BITS = SUB_BUCKETS.bit_length()  # a number of so many bits has buckets wider than one

COUNTED_REASONS = tuple(
    reason.label
    for reason in (
        PickReason.LOAD,
        PickReason.ROUND_ROBIN_STALE,
        PickReason.KV_AWARE,
        PickReason.CONDITIONAL_BYPASS,
        PickReason.NO_CANDIDATE,
    )
)
COUNTED_STATUSES = tuple(status.label for status in EndStatus)


class RolledPick(NamedTuple):
    """What a window takes of a pick and its end. end_offset: None while it has no end of its own.

    overlap_blocks, block_size: None where nothing was predicted; see `PickRow`.
    """

    log_offset: int
    decode_reason: str
    has_prefill: bool
    estimated_tokens: int
    overlap_blocks: int | None
    block_size: int | None
    end_offset: int | None
    status: str | None
    first_byte_us: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None


class RollupRow(NamedTuple):
    """A row of `rollups`, unique by (lane, minute, model).

    by_*: picks by the reason of their decode phase. predicted_*: picks with a predicted overlap, and its
    tokens. ended: picks with an end; `ok` to `expired`: how. first_bytes: answers with a first byte.
    first_byte_buckets: `bucket:count` in ascending order, separated by spaces.
    """

    minute: int
    model: str
    picks: int
    by_load: int
    by_round_robin_stale: int
    by_kv_aware: int
    by_conditional_bypass: int
    by_no_candidate: int
    by_other: int
    prefilled: int
    estimated_tokens: int
    predicted_picks: int
    predicted_tokens: int
    ended: int
    ok: int
    refused: int
    failed: int
    cancelled: int
    expired: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    first_bytes: int
    first_byte_p50_us: int | None
    first_byte_p90_us: int | None
    first_byte_p99_us: int | None
    first_byte_buckets: str
    lane: int
    to_offset: int


def minute_of(at_us: int) -> int:
    """The beginning of the minute in which a log time lies, microseconds."""
    return at_us - at_us % MINUTE_US


def bucket_of(value: int) -> int:
    """The bucket of a duration in microseconds; 0 for what is negative."""
    if value < SUB_BUCKETS:
        return max(0, value)
    shift = value.bit_length() - _SUB_BITS
    return shift * SUB_BUCKETS + (value >> shift)


def bucket_upper(bucket: int) -> int:
    """The largest duration in a bucket, microseconds."""
    if bucket < SUB_BUCKETS:
        return bucket
    shift, place = bucket // SUB_BUCKETS - 1, bucket % SUB_BUCKETS + SUB_BUCKETS
    return ((place + 1) << shift) - 1


class Histogram:
    """Counts of durations by bucket."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, value: int, times: int = 1) -> None:
        """Count a duration in microseconds."""
        self._count(bucket_of(value), times)

    def merge(self, other: Histogram) -> None:
        """Count what another one has counted."""
        for bucket, times in other.counts.items():
            self._count(bucket, times)

    def percentile(self, percent: int) -> int | None:
        """The upper bound of the bucket in which it lies, microseconds; None of nothing."""
        total = sum(self.counts.values())  # integers
        wanted = max(1, -(-total * percent // 100))
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return min(bucket_upper(bucket), WHOLE_MAX)
        return None

    def text(self) -> str:
        """As a row holds it."""
        return " ".join(f"{bucket}:{self.counts[bucket]}" for bucket in sorted(self.counts))

    @classmethod
    def read(cls, text: str) -> Histogram:
        """The one that a row holds. Raises ValueError for any other text."""
        found = cls()
        for part in text.split():
            bucket, separator, times = part.partition(":")
            if not separator or not bucket.isdecimal() or not times.isdecimal():
                raise ValueError(f"{part!r} is no bucket:count")
            found._count(int(bucket), int(times))
        return found

    def _count(self, bucket: int, times: int) -> None:
        self.counts[bucket] = self.counts.get(bucket, 0) + times


class Window:
    """A minute of a model while its rows are read; each pick once, in any order."""

    def __init__(self, minute: int, model: str) -> None:
        self.minute = minute
        self.model = model
        self._counts: dict[str, int] = {}
        self._first_bytes = Histogram()
        self._to_offset = -1

    def add(self, pick: RolledPick) -> None:
        """Take one pick with its end."""
        reason = pick.decode_reason if pick.decode_reason in COUNTED_REASONS else "other"
        self._add("picks", 1)
        self._add(f"by_{reason}", 1)
        self._add("prefilled", int(pick.has_prefill))
        self._add("estimated_tokens", pick.estimated_tokens)
        self._to_offset = max(self._to_offset, pick.log_offset)
        if pick.overlap_blocks is not None and pick.block_size is not None:
            self._add("predicted_picks", 1)
            self._add("predicted_tokens", pick.overlap_blocks * pick.block_size)
        if pick.end_offset is None:
            return
        self._to_offset = max(self._to_offset, pick.end_offset)
        self._add("ended", 1)
        if pick.status in COUNTED_STATUSES:
            self._add(pick.status, 1)
        self._add("prompt_tokens", pick.prompt_tokens or 0)
        self._add("completion_tokens", pick.completion_tokens or 0)
        self._add("cached_tokens", pick.cached_tokens or 0)
        if pick.first_byte_us is not None:
            self._first_bytes.add(pick.first_byte_us)

    def row(self) -> RollupRow:
        """What the minute came to so far."""
        firsts = self._first_bytes
        return RollupRow(
            minute=self.minute,
            model=self.model,
            first_bytes=sum(firsts.counts.values()),  # integers
            first_byte_p50_us=firsts.percentile(50),
            first_byte_p90_us=firsts.percentile(90),
            first_byte_p99_us=firsts.percentile(99),
            first_byte_buckets=firsts.text(),
            lane=LANE,
            to_offset=self._to_offset,
            **{name: whole(self._counts.get(name, 0)) for name in _COUNTED},
        )

    def _add(self, name: str, count: int) -> None:
        self._counts[name] = self._counts.get(name, 0) + count


def roll_up(minute: int, model: str, picks: Iterable[RolledPick]) -> RollupRow:
    """The row of a window from all of its picks."""
    window = Window(minute, model)
    for pick in picks:
        window.add(pick)
    return window.row()


_COUNTED = tuple(
    name
    for name in RollupRow._fields
    if name not in ("minute", "model", "lane", "to_offset") and not name.startswith("first_byte")
)
