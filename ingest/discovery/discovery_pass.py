"""The machine of a discovery pass. It does no I/O: events in, effects out, time as an argument.

    BACKOFF --tick--> CONNECTING --Connected--> LISTING --all names--> READING
       ^                                                                  |
       |                                                            ValuesEnded
       +--any end-- WATCHING <--WatchesStand-- OPENING <------------------+

One pass lists the names below every prefix, each at a revision of its own; removes the
held keys that no listing named; reads the values and logs those that differ from what the
log says; opens each watch one revision later; and is settled once all watches stand. It
then follows the changes until anything ends, waits, and starts from scratch.

Why this loses nothing: a change up to a prefix's listed revision is in the listing or the
values (both of that revision), a later one is in the watch, which begins right after it.
When the store cannot give the watch from there (compaction), the pass ends and the next one
reads everything. Why it repeats nothing: a sighting becomes a fact only where it differs
from what was logged. Why removals come first: a worker that came back under a new key must
not stand beside its old record, not even for one record of the log.

While no pass is open the fleet stays as it was. A store restored from a backup counts
revisions from a smaller number: nothing here compares revisions of two passes, and
`PassBegan` tells the fold to do the same.

Refused keys (no UTF-8, too long, outside the prefix, above the ceiling) are `Refused`
effects. No key and no value can make the machine raise.

Sources: requirement rows ETCD-03..16; decisions 11, 22; field reports B-006, B-007, B-119.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from ingest.discovery.backoff import Backoff
from ingest.discovery.held_keys import HeldKey, HeldKeys, Sighting
from ingest.discovery.pass_effects import (
    Append,
    Close,
    Connect,
    Effect,
    ListNames,
    Notify,
    OpenWatches,
    Phase,
    ReadValues,
    Refused,
    SleepUntil,
    StateChanged,
)
from ingest.discovery.source import (
    Connected,
    Denied,
    EndReason,
    FoundKey,
    GoneKey,
    KeysChanged,
    NamesCut,
    NamesEnded,
    NamesListed,
    NamesRefused,
    ReadAt,
    SourceEnded,
    SourceEvent,
    ValuesEnded,
    ValuesRead,
    Waiting,
    Watched,
    WatchesStand,
)
from ingest.wire.fleet_keys import KeyFault, KeyRefused, relative_key, text_of_key
from projections.bounds import KEYS_PER_KEYSPACE_MAX, SECOND_US
from projections.events.discovery import (
    KeyPut,
    KeysDropped,
    Keyspace,
    PassBegan,
    PassEnded,
    PassSettled,
)
from projections.notices import DiscoveryKind, DiscoveryNotice, StatusNotice

SEED_US_MAX = 30 * SECOND_US  # connect, login and reading together (ETCD-12)
# A keyspace that refused keys is read again once it has fallen this far below its ceiling.
ROOM_KEYS = KEYS_PER_KEYSPACE_MAX - KEYS_PER_KEYSPACE_MAX // 8


class DiscoveryPass:
    """Passes over the namespaces of one source, one after another.

    source:      name for the records.
    namespaces:  watched ones, in the order of the settings.
    held:        what the fold holds; see `HeldKeys`. Kept over all passes.
    pass_number: of the last pass that the log knows, 0 for none.
    """

    def __init__(
        self,
        source: str,
        namespaces: tuple[str, ...],
        held: Mapping[HeldKey, bytes] | HeldKeys,
        backoff_initial_us: int,
        backoff_max_us: int,
        pass_number: int = 0,
    ) -> None:
        self.source = source
        self.namespaces = namespaces
        self.held = held if isinstance(held, HeldKeys) else HeldKeys(held)
        self.pass_number = pass_number
        self.phase = Phase.IDLE
        self._watched = tuple(Watched(keyspace, name) for name in namespaces for keyspace in Keyspace)
        self._backoff = Backoff(backoff_initial_us, backoff_max_us)
        self._deadline_us: int | None = None
        self._stood_since_us: int | None = None
        self._listed: dict[Watched, int] = {}
        self._denied: set[Watched] = set()
        self._warned_denied = False
        self._crowded: set[int] = set()  # keyspaces that refused a key in this pass
        self._shown: set[tuple[DiscoveryKind, int]] = set()  # refusals that were warned about

    def start(self, now_us: int, reason: str = "start") -> list[Effect]:
        """Begin the first pass. `reason` is a fixed word for `PassBegan`."""
        stale = tuple(name for name in self.held.namespaces() if name not in self.namespaces)
        effects: list[Effect] = []
        if stale:  # the settings changed while no process was there to see it
            self.held.drop(stale)
            effects.append(Append(KeysDropped(stale, "namespaces")))
        return effects + self._begin(now_us, reason)

    def tick(self, now_us: int) -> list[Effect]:
        """The time that `SleepUntil` asked for, or any other."""
        if self._deadline_us is None or now_us < self._deadline_us:
            return []
        if self.phase is Phase.BACKOFF:
            return self._begin(now_us, "ended")
        return self._end(EndReason.SEED_TIMEOUT, f"in {self.phase.name.lower()}", now_us)

    def stop(self, reason: EndReason = EndReason.STOPPED) -> list[Effect]:
        """End the open pass, if there is one, and stay idle."""
        was_open = self._is_open()
        self.phase = Phase.IDLE
        self._deadline_us = None
        effects: list[Effect] = [StateChanged(self.phase, str(reason))]
        if was_open:
            effects.append(Append(self._ended(reason)))
        return [*effects, Close(), SleepUntil(None)]

    def repeat(self, held: Mapping[HeldKey, bytes], now_us: int) -> list[Effect]:
        """Take over what the fold really holds and read everything again."""
        self.held = HeldKeys(held)
        if not self._is_open():
            return []
        return self._end(EndReason.REPEATED, "the fold holds other keys than were logged", now_us)

    def receive(self, event: SourceEvent, now_us: int) -> list[Effect]:
        """What an event of the source makes. Events outside an open pass make nothing."""
        if not self._is_open():
            return []
        match event:
            case Connected(where):
                return self._connected(where, now_us)
            case Waiting(what):
                self._deadline_us = None
                return [SleepUntil(None), StateChanged(self.phase, f"waiting: {what}")]
            case NamesListed(watched, keys):
                return self._names_listed(watched, keys)
            case NamesEnded(watched, revision):
                self._listed[watched] = revision
                return self._names_ended(now_us)
            case Denied(watched):
                return self._denied_one(watched, now_us)
            case ValuesRead(watched, found):
                return self._sightings(watched, found)
            case ValuesEnded():
                return self._enter(Phase.OPENING, OpenWatches(self._read_at()))
            case WatchesStand():
                return self._settled(now_us)
            case KeysChanged(watched, changes):
                return self._changed(watched, changes, now_us)
            case NamesRefused(keyspace, times):
                return [self._refused(DiscoveryKind.MALFORMED, keyspace, "", "name is no key", times)]
            case NamesCut(keyspace):
                return [self._refused(DiscoveryKind.OVER_CAPACITY, keyspace, "", "listing was cut", 1)]
            case SourceEnded(reason, detail):
                return self._end(reason, detail, now_us)
            case _:
                assert_never(event)

    # the steps of a pass

    def _begin(self, now_us: int, reason: str) -> list[Effect]:
        self.pass_number += 1
        self.phase = Phase.CONNECTING
        self._deadline_us = now_us + SEED_US_MAX
        self._stood_since_us = None
        self._listed = {}
        self._denied = set()
        self._crowded = set()
        return [
            Append(PassBegan(self.source, self.namespaces, self.pass_number, reason)),
            SleepUntil(self._deadline_us),
            StateChanged(self.phase, "connecting"),
            Connect(),
        ]

    def _connected(self, where: str, now_us: int) -> list[Effect]:
        effects: list[Effect] = []
        if self._deadline_us is None:  # the limit rested while the source waited
            self._deadline_us = now_us + SEED_US_MAX
            effects.append(SleepUntil(self._deadline_us))
        self.held.begin_listing()
        return [*effects, *self._enter(Phase.LISTING, ListNames(self._watched), f"reading {where}")]

    def _names_listed(self, watched: Watched, keys: tuple[bytes, ...]) -> list[Effect]:
        # Refusals are counted where the value is read, so that each counts once in a pass.
        names = (self._relative(watched, key) for key in keys)
        self.held.listed(watched, (name for name in names if isinstance(name, str)))
        return []

    def _denied_one(self, watched: Watched, now_us: int) -> list[Effect]:
        if watched.keyspace is not Keyspace.SOURCES:
            return self._end(EndReason.PERMISSION, f"{watched.prefix} may not be read", now_us)
        self._denied.add(watched)
        effects: list[Effect] = []
        if not self._warned_denied:
            self._warned_denied = True
            effects.append(Notify(StatusNotice("event sources may not be read", watched.prefix, "warning")))
        return effects + self._names_ended(now_us)

    def _names_ended(self, now_us: int) -> list[Effect]:
        if len(self._listed) + len(self._denied) < len(self._watched):
            return []
        if not self._denied:
            self._warned_denied = False
        revisions = {(int(at.keyspace), at.namespace): revision for at, revision in self._listed.items()}
        removed: list[Effect] = [Append(fact) for fact in self.held.remove_unseen(revisions)]
        return removed + self._enter(Phase.READING, ReadValues(self._read_at()))

    def _settled(self, now_us: int) -> list[Effect]:
        self._stood_since_us = now_us
        self._deadline_us = None
        unwatched = tuple(sorted({int(watched.keyspace) for watched in self._denied}))
        fact = PassSettled(
            self.source,
            self.namespaces,
            self.pass_number,
            len(self.held),
            self.held.digest,
            max(self._listed.values(), default=0),
            unwatched,
        )
        self.phase = Phase.WATCHING
        return [Append(fact), SleepUntil(None), StateChanged(self.phase, "watching")]

    def _changed(
        self, watched: Watched, changes: tuple[FoundKey | GoneKey, ...], now_us: int
    ) -> list[Effect]:
        effects: list[Effect] = []
        for change in changes:
            if isinstance(change, FoundKey):
                effects += self._sightings(watched, (change,))
                continue
            name = self._relative(watched, change.key)
            fact = self.held.gone(watched, name, change.revision) if isinstance(name, str) else None
            if fact is not None:
                effects.append(Append(fact))
        if any(self.held.count(keyspace) <= ROOM_KEYS for keyspace in self._crowded):
            return effects + self._end(EndReason.ROOM, "refused keys may fit now", now_us)
        return effects

    def _end(self, reason: EndReason, detail: str, now_us: int) -> list[Effect]:
        stood_us = 0 if self._stood_since_us is None else now_us - self._stood_since_us
        wait_us = self._backoff.after_pass(stood_us)
        self.phase = Phase.BACKOFF
        self._deadline_us = now_us + wait_us
        return [
            StateChanged(self.phase, f"{reason}: {detail}" if detail else str(reason)),
            Append(self._ended(reason)),
            Close(),
            SleepUntil(self._deadline_us),
        ]

    # keys

    def _sightings(self, watched: Watched, found: tuple[FoundKey, ...]) -> list[Effect]:
        effects: list[Effect] = []
        malformed = crowded = 0
        why = ""
        for one in found:
            name = self._relative(watched, one.key)
            if isinstance(name, KeyRefused):
                malformed, why = malformed + 1, name.fault.value
                continue
            made = self.held.sighted(watched, name, one)
            if isinstance(made, KeyPut):
                effects.append(Append(made))
            elif made is Sighting.OVER_CAPACITY:
                crowded += 1
        keyspace, namespace = watched
        if malformed:
            effects.append(self._refused(DiscoveryKind.MALFORMED, keyspace, namespace, why, malformed))
        if crowded:
            self._crowded.add(int(keyspace))
            what = "keyspace is full, new keys are left out"
            effects.append(self._refused(DiscoveryKind.OVER_CAPACITY, keyspace, namespace, what, crowded))
        return effects

    def _relative(self, watched: Watched, key: bytes) -> str | KeyRefused:
        text = text_of_key(key)
        if isinstance(text, KeyRefused):
            return text
        relative = relative_key(watched.keyspace, watched.namespace, text)
        return KeyRefused(KeyFault.KEYSPACE) if relative is None else relative

    def _refused(
        self, kind: DiscoveryKind, keyspace: Keyspace, namespace: str, what: str, times: int
    ) -> Refused:
        """The first of its kind in a keyspace is a warning, later ones are only counted."""
        level = "debug" if (kind, int(keyspace)) in self._shown else "warning"
        self._shown.add((kind, int(keyspace)))
        return Refused(DiscoveryNotice(kind, namespace, what, keyspace.name.lower(), (), times, level))

    # small things

    def _is_open(self) -> bool:
        return self.phase not in (Phase.IDLE, Phase.BACKOFF)

    def _read_at(self) -> tuple[ReadAt, ...]:
        return tuple(ReadAt(one, self._listed[one]) for one in self._watched if one in self._listed)

    def _ended(self, reason: EndReason) -> PassEnded:
        return PassEnded(self.source, self.namespaces, self.pass_number, str(reason))

    def _enter(self, phase: Phase, effect: Effect, detail: str = "") -> list[Effect]:
        self.phase = phase
        return [StateChanged(phase, detail or phase.name.lower()), effect]
