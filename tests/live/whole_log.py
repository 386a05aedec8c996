"""All that a log holds, read by a fold that compares each digest which the owner noted."""

from __future__ import annotations

from typing import Any

from projections.events.codec import decode_record
from projections.events.control import ClockTicked
from projections.events.ports import LogReader
from projections.fold import Fold
from replay.engine import records_of


def facts_of(reader: LogReader) -> list[Any]:
    """Every fact in order; every digest in a tick is that of the record that it names."""
    fold = Fold()
    noted: dict[int, tuple[tuple[str, int], ...]] = {}
    facts = []
    for offset, data in records_of(reader, 0):
        fact = fold.apply(offset, data, [])
        facts.append(decode_record(offset, data).fact)
        if isinstance(fact, ClockTicked):
            noted[offset] = fold.digests()
            assert noted.get(fact.noted_offset, fact.digests) == fact.digests
    return facts
