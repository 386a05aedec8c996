"""Samples that were shed, and the later one that speaks for them (decision 15).

The next sample of a publisher that goes through covers the shed ones before it, if they say
no more than it does: where all were of its rank and no number was missing between them.
Otherwise the hole stays visible, and the fold drops what it holds of the publisher.
"""

from __future__ import annotations

from ingest.log.appends import Fact
from projections.events.signals import SampleReceived, SubscriptionChanged


class ShedSamples:
    """By publisher what was shed as one sample; None where it cannot be said as one."""

    def __init__(self) -> None:
        self._owed: dict[tuple[str, int], SampleReceived | None] = {}

    def __bool__(self) -> bool:
        return bool(self._owed)

    def add(self, fact: Fact) -> None:
        """This fact was shed; only samples are looked at."""
        if type(fact) is SampleReceived:
            publisher = fact.namespace, fact.publisher_id
            owed = self._owed.get(publisher, fact)
            if owed is not fact and owed is not None and owed.connection == fact.connection:
                owed = _merged(owed, fact)
            elif owed is not None:
                owed = fact
            self._owed[publisher] = owed

    def covered(self, fact: Fact) -> Fact:
        """A fact that goes through, with the numbers of the shed samples before it where it may have them."""
        if type(fact) is SampleReceived:
            owed = self._owed.pop((fact.namespace, fact.publisher_id), None)
            if owed is not None and owed.connection == fact.connection:
                return _merged(owed, fact) or fact
        elif type(fact) is SubscriptionChanged:
            self._owed.pop((fact.namespace, fact.publisher_id), None)
        return fact


def _merged(older: SampleReceived, newer: SampleReceived) -> SampleReceived | None:
    """The newer sample in place of both, None where the older one said something of its own."""
    if older.worker_id != newer.worker_id or older.dp_rank != newer.dp_rank:
        return None
    if newer.covers_from > older.sequence + 1:
        return None
    return newer._replace(covers_from=min(older.covers_from, newer.covers_from))
