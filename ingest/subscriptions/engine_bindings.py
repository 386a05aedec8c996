"""Which worker each engine of `engine_sources` belongs to.

An entry that names an instance id has its worker. Any other is bound to the one worker of its namespace
that advertises the engine's host and has what else the entry says of it (component, model, system port,
its rank among the worker's). The engine's host is that of its endpoint, as written, and where that is a
name also the address that its present connection was made to. When that worker leaves and another comes,
the entry is bound to the new one.

A wrong binding would credit one worker with what another holds, so in doubt there is none:

    several_workers   more than one fits. Within a lease that is the old and the new one of a restart. If
                      two fit for SIDE_BY_SIDE_US they live side by side, and which one the engine belongs
                      to can no longer be told from who is left: then the entry stays unbound until its
                      configuration changes.
    rank_taken        another entry stands for the same rank, or for all ranks. One that names its worker
                      stands; of those that were found none does, as nobody knows which of them is right.
    no_worker         none fits; no_address: the endpoint is a name, and no connection stood yet.

Whoever is unbound for SAID_AFTER_US is said once, with what is missing; a restart takes less.

All of this is this process's own and no part of the log: its result is the instance id in the records.

Sources: requirement row KVX-05; wire contract 2.1, 2.5 and 5.6; decisions 22, 39.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from ingest.subscriptions.addresses import parse_address
from ingest.subscriptions.advertised import host_text
from ingest.subscriptions.worker_places import WorkerPlace
from ingest.wire.engine_events import EngineSource
from projections.bounds import SECOND_US
from projections.identity import WorkerKey
from projections.notices import Notice, StatusNotice

SETTING: Final = "dynamo.kv.engine_sources"
LEASE_US_MAX: Final = 30 * SECOND_US  # for so long a worker that was killed stays in the fleet
SAID_AFTER_US: Final = LEASE_US_MAX
SIDE_BY_SIDE_US: Final = 2 * LEASE_US_MAX
_OR_NAME_IT: Final = "or name the worker by instance_id"
_CROWDED: Final = (
    f"several workers lived on its host: add component, model or system_port to say which, {_OR_NAME_IT}"
)
_TAKEN: Final = "another entry stands for the same rank of its worker: give each its dp_rank, or take one out"


class Binding(StrEnum):
    """Where an entry stands."""

    NAMED = "named"  # by its instance id, whether that worker lives or not
    BOUND = "bound"
    NO_ADDRESS = "no_address"
    NO_WORKER = "no_worker"
    SEVERAL_WORKERS = "several_workers"
    RANK_TAKEN = "rank_taken"


class EngineRow(NamedTuple):
    """One entry for operators. place: its number in the configuration, from 0.

    worker: None while it has none; missing: what would bind it, "" where nothing is missing.
    """

    place: int
    source: EngineSource
    binding: Binding
    worker: WorkerKey | None
    missing: str


class _Verdict(NamedTuple):
    binding: Binding
    worker: WorkerKey | None = None
    missing: str = ""


class _Entry:
    """One source, and what is remembered of it. told: who hears of another worker, while connected."""

    __slots__ = (
        "crowded_since", "host", "is_crowded", "is_name", "peer", "place", "said", "since", "source", "told",
        "verdict",
    )  # fmt: skip

    def __init__(self, place: int, source: EngineSource, now_us: int) -> None:
        address = parse_address(source.endpoint)
        self.place = place
        self.source = source
        self.host = host_text(address.host) if address is not None else ""
        self.is_name = address is not None and address.ip is None
        self.peer: str | None = None
        self.told: Callable[[int | None], None] | None = None
        self.verdict = _Verdict(Binding.NO_WORKER)
        self.since = now_us
        self.said: set[Binding] = set()
        self.crowded_since: int | None = None
        self.is_crowded = False

    def fits(self, place: WorkerPlace) -> bool:
        """Whether a worker on this host has what the entry says of it."""
        source = self.source
        return (
            source.component in (None, place.component)
            and source.model in (None, place.model)
            and source.system_port in (None, place.system_port)
            and (source.dp_rank is None or source.dp_rank in place.ranks)
        )


class EngineBindings:
    """See the module's text. Call from the event loop.

    clock_us: microseconds of the process's own time.
    """

    def __init__(self, on_notice: Callable[[Notice], object], clock_us: Callable[[], int]) -> None:
        self._on_notice = on_notice
        self._clock_us = clock_us
        self._entries: dict[str, _Entry] = {}  # by endpoint
        self._on_host: dict[tuple[str, str], list[WorkerPlace]] = {}  # by namespace and host

    @property
    def is_looking(self) -> bool:
        """Whether any entry has to find its worker, so that `follow` is of use."""
        return any(entry.source.instance_id is None for entry in self._entries.values())

    def replace(self, sources: Sequence[EngineSource]) -> None:
        """Other entries are configured; those that stayed go on as they are."""
        before, now_us = self._entries, self._clock_us()
        self._entries = {}
        for place, source in enumerate(sources):
            entry = before.get(source.endpoint)
            if entry is None or entry.source != source:
                entry = _Entry(place, source, now_us)
            entry.place = place
            self._entries[source.endpoint] = entry
        self._decide()

    def follow(self, places: Iterable[WorkerPlace]) -> None:
        """These are the workers now."""
        on_host: dict[tuple[str, str], list[WorkerPlace]] = {}
        for place in places:
            on_host.setdefault((place.key.namespace, place.host), []).append(place)
        self._on_host = on_host
        self._decide()

    def connected(
        self, source: EngineSource, peer: str | None, told: Callable[[int | None], None]
    ) -> int | None:
        """A connection to an engine stands; the instance id of its worker, None while it has none.

        peer: address that it was made to. told: called with each other instance id from here on, not
        from within this call.
        """
        entry = self._entries.get(source.endpoint)
        if entry is None or entry.source != source:
            return None
        entry.told = None
        entry.peer = host_text(peer) if peer is not None and entry.is_name else None
        self._decide()
        entry.told = told
        return _instance_id(entry.verdict)

    def tick(self) -> None:
        """Say what has been unbound for long. Call each second or so."""
        now_us = self._clock_us()
        for entry in self._entries.values():
            verdict = entry.verdict
            is_new = verdict.worker is None and verdict.binding not in entry.said
            if is_new and now_us - entry.since >= SAID_AFTER_US:
                entry.said.add(verdict.binding)
                text = f"{SETTING}[{entry.place}]: {verdict.missing}"
                self._on_notice(StatusNotice("an engine source has no worker", text, "warning"))

    def rows(self) -> list[EngineRow]:
        """All entries in the order of the configuration."""
        return [EngineRow(entry.place, entry.source, *entry.verdict) for entry in self._entries.values()]

    # inside

    def _decide(self) -> None:
        """Find every entry's worker, then take back what two of them would share; tell who has another."""
        entries, now_us = [*self._entries.values()], self._clock_us()
        found = [self._found(entry, now_us) for entry in entries]
        ranks: dict[WorkerKey, Counter[int | None]] = {}
        for entry, verdict in zip(entries, found, strict=True):
            if verdict.worker is not None:
                ranks.setdefault(verdict.worker, Counter())[entry.source.dp_rank] += 1
        changed: list[_Entry] = []
        for entry, verdict in zip(entries, found, strict=True):
            is_shared = verdict.worker is not None and _is_shared(ranks[verdict.worker], entry.source.dp_rank)
            if verdict.binding is Binding.BOUND and is_shared:
                verdict = _Verdict(Binding.RANK_TAKEN, missing=_TAKEN)
            if self._take(entry, verdict, now_us):
                changed.append(entry)
        for entry in changed:
            if entry.told is not None:
                entry.told(_instance_id(entry.verdict))

    def _found(self, entry: _Entry, now_us: int) -> _Verdict:
        """The worker of an entry as if there were no other entry."""
        source = entry.source
        if source.instance_id is not None:
            return _Verdict(Binding.NAMED, WorkerKey(source.namespace, source.instance_id))
        hosts = sorted({entry.host, entry.peer or entry.host})
        near = [place for host in hosts for place in self._on_host.get((source.namespace, host), ())]
        fitting = [place for place in near if entry.fits(place)]
        if len(fitting) > 1:
            if entry.crowded_since is None:
                entry.crowded_since = now_us
            return _Verdict(Binding.SEVERAL_WORKERS, missing=_what_tells_apart(fitting))
        if entry.crowded_since is not None:
            entry.is_crowded |= now_us - entry.crowded_since >= SIDE_BY_SIDE_US
            entry.crowded_since = None
        if entry.is_crowded:
            return _Verdict(Binding.SEVERAL_WORKERS, missing=_CROWDED)
        if fitting:
            return _Verdict(Binding.BOUND, fitting[0].key)
        if not near and entry.is_name and entry.peer is None:
            return _Verdict(Binding.NO_ADDRESS, missing="no connection stood yet, so its name has no address")
        return _Verdict(Binding.NO_WORKER, missing=_what_fits_not(source, len(near)))

    def _take(self, entry: _Entry, verdict: _Verdict, now_us: int) -> bool:
        """Put a verdict in force; whether its worker is another one."""
        before, entry.verdict = entry.verdict, verdict
        if before.binding is not verdict.binding:
            entry.since = now_us
        if before.worker == verdict.worker:
            return False
        if verdict.binding is Binding.BOUND and verdict.worker is not None:
            entry.said.clear()
            text = f"{SETTING}[{entry.place}]: {verdict.worker.to_text()}"
            self._on_notice(StatusNotice("an engine source is bound to a worker", text, "info"))
        return True


def _instance_id(verdict: _Verdict) -> int | None:
    return None if verdict.worker is None else verdict.worker.instance_id


def _is_shared(ranks: Counter[int | None], rank: int | None) -> bool:
    """Whether another entry of these speaks of the rank too. None: of any."""
    return ranks.total() > 1 and (rank is None or ranks[None] > 0 or ranks[rank] > 1)


def _what_tells_apart(fitting: Sequence[WorkerPlace]) -> str:
    """What an entry would have to say, since several workers fit."""
    keys: dict[str, set[object]] = {
        "component": {place.component for place in fitting},
        "model": {place.model for place in fitting},
        "system_port": {place.system_port for place in fitting},
        "dp_rank": {(place.ranks.start, place.ranks.stop) for place in fitting},
    }
    differing = [key for key, values in keys.items() if len(values) > 1]
    if not differing:
        differing = ["system_port (start the workers with DYN_SYSTEM_PORT)"]
    return f"{len(fitting)} workers on its host fit: add {' or '.join(differing)}, {_OR_NAME_IT}"


def _what_fits_not(source: EngineSource, near: int) -> str:
    """What to look at, since no worker fits. near: workers on the host."""
    if not near:
        return f"no worker of the namespace advertises its host: check the endpoint, {_OR_NAME_IT}"
    said = {
        "component": source.component,
        "model": source.model,
        "system_port": source.system_port,
        "dp_rank": source.dp_rank,
    }
    keys = " and ".join(key for key, value in said.items() if value is not None)
    return f"of {near} workers on its host none has its {keys}: correct the entry, {_OR_NAME_IT}"
