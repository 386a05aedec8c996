"""Questions, outcomes, picks and their ends.

A pick is `pick(view, question, settings) -> Outcome`. Whatever it needs and the fold
cannot give is frozen into the question, and question and outcome are written together,
so that the pick can be asked again and compared byte for byte (decisions 14, 28).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Phase(IntEnum):
    """The two halves of serving a request."""

    PREFILL = 1
    DECODE = 2

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class PickReason(IntEnum):
    """Why a phase chose as it did. NO_CANDIDATE is in log and SQL, never in the metric."""

    LOAD = 1
    ROUND_ROBIN_STALE = 2
    NO_PREFILL_POOL = 3
    KV_AWARE = 4
    CONDITIONAL_BYPASS = 5
    NO_CANDIDATE = 6

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class Verdict(IntEnum):
    """How a candidate's load reads at the time of the question."""

    FRESH = 1
    QUIET = 2
    SILENT = 3
    STALLED = 4
    EXCLUDED = 5

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class ExcludedReason(IntEnum):
    """Why a candidate was left out. Closed list."""

    NONE = 0
    SUSPECT = 1

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class AbsentCause(IntEnum):
    """Why a configured namespace was not eligible for a request."""

    NO_SHIM_CONFIGURED = 1
    SHIM_UNHEALTHY = 2
    BREAKER_OPEN = 3
    KEY_NOT_ALLOWED = 4
    SHIM_UNUSABLE = 5  # it answers 404 for a model that the registry serves
    DISABLED = 6

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class EndStatus(IntEnum):
    """How a dispatch ended. `unknown` exists in the audit alone."""

    OK = 1
    REFUSED = 2
    FAILED = 3
    CANCELLED = 4
    EXPIRED = 5

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class Fault(IntEnum):
    """What an end says of the pinned workers (decisions 20, 31)."""

    NONE = 0
    FAULT = 1  # connection lost, or 500/503, before any byte: the workers become suspect
    BACKPRESSURE = 2  # 529, 429, 408


class KvResult(IntEnum):
    """What became of the prefix term of a pick (KVP-13).

    The first six tell why there is no term; they are the prompt's result in a question.
    READY is a question's alone: hashes are at hand, the pick says what they were worth.
    """

    OFF = 0  # prefix-aware picks are not enabled
    TOKENIZER_UNAVAILABLE = 1
    PROMPT_TOO_LARGE = 2
    RENDER_UNAVAILABLE = 3
    ARTIFACT_UNPINNED = 4
    UNSUPPORTED = 5
    MISMATCHED = 6  # predicted blocks of this model did not match the workers' events (self-check)
    READY = 7
    NO_OVERLAP = 8
    OVERLAP = 9
    BYPASS = 10

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


class BlockHashes(NamedTuple):
    """Tokens hashes of a prompt's complete blocks at one block size.

    blocks: how many the prompt has. digest: xxh3-64 of all of them, packed.
    hashes: packed big-endian u64, the first of them: up to the deepest match of any rank and
    one more, since further ones cannot change an overlap; all where a side index is on or the
    log keeps full questions (decision 14).
    """

    block_size: int
    blocks: int
    digest: int
    hashes: bytes


class Question(NamedTuple):
    """All inputs of a pick that are not in projections.

    asked_at, dispatched_at: log time, microseconds; the second adds the replica's lag.
    model: as the client named it; served_model: after the model map, for matching.
    namespaces: eligible ones, sorted. absent: (namespace, AbsentCause), sorted.
    estimated_tokens: prompt tokens by the character and word heuristic, >= 1.
    rotation_prefill, rotation_decode: the replica's rotations of this model before.
    draws: 53-bit integers, one per phase that may need one.
    rotations_prefill: the same per namespace, in the order of `namespaces`; () where one
    rotation serves all of them. Two pools that take turns on one rotation would each see
    only every other value of it, and half of their workers would never be chosen.
    prompt_result: KvResult, READY where hashes are at hand. isl_tokens: of the rendered prompt.
    hashes: by block size. rotations_decode: as rotations_prefill, for prefix-aware picks, which
    choose a pair's prefill rank first, by rotation_prefill, and decode inside its namespace.
    """

    request_id: str
    send: int
    model: str
    served_model: str
    asked_at: int
    dispatched_at: int
    namespaces: tuple[str, ...]
    absent: tuple[tuple[str, int], ...]
    estimated_tokens: int
    rotation_prefill: int
    rotation_decode: int
    draws: tuple[int, ...] = ()
    rotations_prefill: tuple[int, ...] = ()
    prompt_result: int = 0
    isl_tokens: int = 0
    hashes: tuple[BlockHashes, ...] = ()
    rotations_decode: tuple[int, ...] = ()


class Chosen(NamedTuple):
    """A rank that a phase chose, and what it is charged with.

    pin_rank: whether the card declares its ranks, so that a rank header is sent.
    tokens, blocks: backlog charged until a sample answers, or for 30 s. `blocks` is
    None where no block size is known (then no stall is judged either).
    """

    instance_id: int
    dp_rank: int
    pin_rank: bool
    tokens: int
    blocks: int | None


class PhaseOutcome(NamedTuple):
    """What one phase decided.

    runner_up: position in `rows` order (1), or None with fewer than two candidates.
    margin: cost of the runner-up minus the winner's, None where either is undefined.
    rows: the best PICK_ROWS_MAX candidate rows, packed as in `router.picker.rows`.
    """

    reason: int
    chosen: Chosen | None
    candidates: int
    margin: float | None
    rows: bytes


class Outcome(NamedTuple):
    """What a pick decided. Equal outcomes encode to equal bytes.

    namespace: of the chosen workers, None where none was chosen.
    rotation_prefill: of the chosen namespace where the question gave one for each.
    rows_digest: xxh3-128 over the packed rows of all candidates, prefill then decode,
    each in canonical order.
    kv_result: KvResult, what the prefix term was worth.
    overlap_blocks: predicted for the rank that prefills; block_size: at this size, 0 without a term.
    """

    namespace: str | None
    prefill: PhaseOutcome
    decode: PhaseOutcome
    rotation_prefill: int
    rotation_decode: int
    rows_digest: bytes
    kv_result: int = 0
    overlap_blocks: int = 0
    block_size: int = 0


class PickMade(NamedTuple):
    """A replica picked.

    replica: id of the picking process for its whole life (its first writer id).
    own_seq: this replica's count of picks and ends before this one: the overlay is its
    own picks and ends with a number <= own_seq that the as-of does not hold yet.
    as_of: offset up to which the replica had folded, -1 before the first record.
    suspect: True while the replica's fold disagreed or had stopped (decisions 10, 16).
    """

    pick_id: bytes
    replica: bytes
    own_seq: int
    as_of: int
    config_version: int
    question: Question
    outcome: Outcome
    suspect: bool = False


class DispatchEnded(NamedTuple):
    """A dispatch is over. Exactly one per pick that chose a worker.

    own_seq: this end's own number in the replica's count of picks and ends.
    http_status: of the frontend's answer, 0 where none came.
    backend: configured name of the shim replica, "" where none was reached.
    Durations in microseconds from the dispatch; token counts None without usage.
    """

    pick_id: bytes
    replica: bytes
    own_seq: int
    ended_at: int
    status: int
    fault: int
    http_status: int
    backend: str
    first_byte_us: int | None
    duration_us: int
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class LostPick(NamedTuple):
    """The ledger line of a pick whose full record was dropped (decision 33).

    own_seq: as in PickMade. ended_seq, ended_at: own number and log time of its end, when
    it ended before this was written (that end then has no record of its own).
    """

    pick_id: bytes
    own_seq: int
    asked_at: int
    dispatched_at: int
    namespace: str
    decode: Chosen | None
    prefill: Chosen | None
    ended_seq: int | None
    ended_at: int | None


class PicksLost(NamedTuple):
    """Picks that went out while the log was away and whose records had to be dropped."""

    replica: bytes
    lines: tuple[LostPick, ...]


class PicksDistrusted(NamedTuple):
    """Picks that a replica made on a fold that disagreed later: suspect, as if marked (decision 10).

    They are those of this replica whose as-of lies in (after, upto]: behind the last offset at which
    its fold agreed with the owner's, up to the newest that one of them names. Their as-ofs tell them,
    since the rows of the audit know these. Changes no state: whoever repeats picks reads it ahead.
    """

    replica: bytes
    after: int
    upto: int


def own_number(fact: PickMade | DispatchEnded | LostPick) -> int:
    """A replica's own number of a pick or end, from 1, without gaps over its life.

    A pick sees as overlay exactly the own facts with a number <= its own_seq that its
    as-of does not hold; its own number is therefore own_seq + 1.
    """
    return fact.own_seq if isinstance(fact, DispatchEnded) else fact.own_seq + 1
