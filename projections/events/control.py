"""Facts about the log itself: who owns it, its time, its replicas, settings in force."""

from __future__ import annotations

from typing import NamedTuple


class LaneOpened(NamedTuple):
    """A process claims to be the owner. Epoch one higher than the last, first offset wins.

    wall_us: wall clock at opening, to show and to look up times; it moves nothing.
    previous_writer: the owner that was seen last, empty at a log's first record.
    cause: new, restart, takeover.
    """

    epoch: int
    wall_us: int
    previous_writer: bytes
    cause: str


class ClockTicked(NamedTuple):
    """The owner's second hand, and its notes for agreement (decision 10).

    noted_offset: offset of the earlier tick that `digests`, `records` and `check_sum`
    speak of, -1 where the owner has no notes yet.
    digests: (projection name, digest) sorted by name, of the fold up to that tick.
    records, check_sum: count and sum modulo 2^64 of check words since the tick before it.
    """

    wall_us: int
    noted_offset: int
    digests: tuple[tuple[str, int], ...]
    records: int
    check_sum: int


class WriterContinued(NamedTuple):
    """First record of a writer that replaces one whose append stayed unclear (decision 7).

    last_sequence: the newest sequence of the old writer that was seen in the log.
    """

    previous_writer: bytes
    last_sequence: int


class ReplicaStarted(NamedTuple):
    """A process that picks has started.

    flags: numbered behaviours of its pick code. kinds: newest record kind it reads.
    fold_modes: flags of reducers that it supports.
    """

    replica: bytes
    label: str
    role: str
    version: str
    python: str
    flags: tuple[int, ...]
    kinds: int
    fold_modes: tuple[int, ...]


class ReplicaGone(NamedTuple):
    """No record of this replica for 30 s; any later record of it lifts that."""

    replica: bytes
    last_seen: int


class Pinged(NamedTuple):
    """A process asks to read itself back. as_of is where its fold stands."""

    replica: bytes
    number: int
    as_of: int


class FoldModeAdopted(NamedTuple):
    """From this offset on reducers behave by these numbered flags (decision 8)."""

    flags: tuple[int, ...]


class ConditionalSettings(NamedTuple):
    """When a decode worker prefills by itself (CDG-02..05).

    policy: isl_bounding, prefill_load or isl_or_load. eff_isl_tokens: net new tokens below
    which, eff_isl_ratio: net new share of the prompt below which. prefill_busy: share of
    max_num_batched_tokens above which a prefill worker is busy, None never.
    decode_busy: share of total_kv_blocks up to which a decode worker may take it, None any.
    """

    policy: str
    eff_isl_tokens: int
    eff_isl_ratio: float
    prefill_busy: float | None
    decode_busy: float | None


class KvPickSettings(NamedTuple):
    """The prefix term of a pick; each beyond the first three is neutral at its default.

    overlap_credit: blocks of credit a cached block (overlap_score_credit).
    prefill_scale: weight of the prefill part. temperature: 0 takes the lowest cost.
    credit_decay: k of 1 / (1 + k * excess), excess in request sizes (DYN-05), 0 for none.
    host_credit, disk_credit: share of a block cached in host memory or on disk (DYN-02).
    predicted_ttl_us, approximate_ttl_us: how long an own pick stands for blocks that its rank
    will hold, where kv-events come (DYN-04) and where none do (DYN-08); 0 for not at all.
    conditional: None where prefill workers always prefill.
    """

    overlap_credit: float
    prefill_scale: float
    temperature: float
    credit_decay: float = 0.0
    host_credit: float = 0.0
    disk_credit: float = 0.0
    predicted_ttl_us: int = 0
    approximate_ttl_us: int = 0
    conditional: ConditionalSettings | None = None


class PickSettings(NamedTuple):
    """The settings that a pick may read: no secret, no address.

    picker: name of the picking rule, see router.picker.pick.PICKERS.
    source: discovery source. namespaces: configured ones, sorted.
    model_map: (client id, Dynamo name), sorted. max_staleness_us: of a sample.
    ledger: whether unanswered dispatches weigh (off in tests only).
    kv: the prefix term, None where it is off.
    """

    picker: str
    source: str
    namespaces: tuple[str, ...]
    model_map: tuple[tuple[str, str], ...]
    max_staleness_us: int
    ledger: bool = True
    kv: KvPickSettings | None = None


class ConfigProposed(NamedTuple):
    """A process asks the owner to adopt settings. `settings` is masked JSON text."""

    replica: bytes
    digest: bytes
    settings: str
    pick: PickSettings


class ConfigAdopted(NamedTuple):
    """Settings in force from this offset on, for requests accepted afterwards.

    version: from 1, one higher each time. proposed_by: file, admin, start.
    enabled: whether discovery is on (RED-23).
    """

    version: int
    proposed_by: str
    digest: bytes
    settings: str
    pick: PickSettings
    enabled: bool = True


class CheckpointDue(NamedTuple):
    """The follower shall write the state of this very offset. cause: time, records, shutdown."""

    cause: str


class RecordCondemned(NamedTuple):
    """The record at `offset` cannot be applied; every fold skips it (decision 16)."""

    offset: int
    detail: str
