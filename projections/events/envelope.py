"""Record, mark and writer id: what surrounds a fact in the log.

A record's place is its offset in the log's one lane. Its `time` is log time in
microseconds. Only records of the owner, the pair (writer, epoch) of the winning
`LaneOpened`, advance log time; records of replicas carry epoch 0 and the log time that
the replica asked at, which is informative (decision 3).
"""

from __future__ import annotations

from typing import NamedTuple

LANE = 0  # one lane per log; a number in formats, never another value (decision 1)
WRITER_BYTES = 16
REPLICA_EPOCH = 0  # epoch of every record that does not speak for the owner


class Record(NamedTuple):
    """One decoded record at its place in the log.

    offset:   position in the lane, grows by one, may jump after a recovery that cut.
    check:    xxh3-64 check word of the record's bytes.
    kind:     number from `kinds.FACT_KINDS`.
    time:     log time, microseconds.
    writer:   16 random bits-per-process bytes.
    epoch:    owner epoch, 0 for replicas.
    sequence: of this writer over all its records, from 1.
    fact:     the typed payload, a NamedTuple of `kinds.FACT_KINDS[kind]`.
    """

    offset: int
    check: int
    kind: int
    time: int
    writer: bytes
    epoch: int
    sequence: int
    fact: tuple  # type: ignore[type-arg]  # one of the fact types; the kind tells which


class Mark(NamedTuple):
    """A position up to which the log has been applied: offset, its log time, its check word."""

    offset: int
    time: int
    check: int

    def to_text(self) -> str:
        """`0:18233`, the form of documents and commands."""
        return f"{LANE}:{self.offset}"


NOTHING = Mark(-1, 0, 0)  # the mark of a fold that has applied no record
