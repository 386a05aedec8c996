"""The port between discovery and wherever the fleet keeps its records.

A pass of a source has four steps, each one call on a session: list the names below every
watched prefix, read the values, then follow the changes after the revision of the list.
Listing comes first and alone, so that keys which went while nobody looked are removed
before anything new is added, without holding new values in memory meanwhile.

A source never writes. It reports what it saw in typed events and ends a pass by raising
`SourceFailed`; it neither retries nor judges values, the machine in `discovery_pass` does.
Whatever a fleet puts into keys and values arrives here as bytes and may not raise.

Sources: requirement rows ETCD-01..12, FILE-01..03; field reports B-007, B-119.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from ingest.wire.fleet_keys import prefix_of
from projections.events.discovery import Keyspace


class Watched(NamedTuple):
    """One prefix: a keyspace of one namespace."""

    keyspace: Keyspace
    namespace: str

    @property
    def prefix(self) -> str:
        """The full key prefix; ends in `/`, so a longer namespace is never matched."""
        return prefix_of(self.keyspace, self.namespace)


class ReadAt(NamedTuple):
    """A listed prefix and the store's revision at its listing; a watch begins one later."""

    watched: Watched
    revision: int


class FoundKey(NamedTuple):
    """A key as the store holds it.

    key:      full key, raw bytes, of any length and content.
    revision: the key's own last revision; grows within a pass.
    value:    bytes as stored; None when the source would not read it for its size.
    size:     bytes of the value, as far as known.
    """

    key: bytes
    revision: int
    value: bytes | None
    size: int


class GoneKey(NamedTuple):
    """A key that the store no longer holds."""

    key: bytes
    revision: int


class Connected(NamedTuple):
    """The store answers. `where` names the endpoint, without credentials."""

    where: str


class Waiting(NamedTuple):
    """The source is well but has nothing to read yet; the limit of the seed rests meanwhile."""

    what: str


class NamesListed(NamedTuple):
    """Some names below a prefix; more may follow."""

    watched: Watched
    keys: tuple[bytes, ...]


class NamesEnded(NamedTuple):
    """All names below a prefix were listed, as of this revision."""

    watched: Watched
    revision: int


class Denied(NamedTuple):
    """The store does not let us read this prefix."""

    watched: Watched


class ValuesRead(NamedTuple):
    """Keys of one prefix with their values; more may follow."""

    watched: Watched
    found: tuple[FoundKey, ...]


class ValuesEnded(NamedTuple):
    """Every listed prefix was read."""


class WatchesStand(NamedTuple):
    """Every change after the listings will be reported from now on."""


class KeysChanged(NamedTuple):
    """Changes below one prefix, in the order in which the store made them."""

    watched: Watched
    changes: tuple[FoundKey | GoneKey, ...]


class NamesRefused(NamedTuple):
    """Entries of the store that are no keys at all (file names with broken escapes)."""

    keyspace: Keyspace
    times: int


class NamesCut(NamedTuple):
    """A listing was cut at its ceiling: entries beyond it were not looked at."""

    keyspace: Keyspace


class EndReason(StrEnum):
    """Why a pass ended; the words stand in the log and in documents."""

    UNREACHABLE = "unreachable"  # no endpoint took a connection
    UNAUTHENTICATED = "unauthenticated"  # user, password or token refused
    PERMISSION = "permission"  # a prefix that we cannot do without is refused
    COMPACTED = "compacted"  # the watch's revision is gone
    CANCELLED = "cancelled"  # the store ended a watch
    STREAM = "stream"  # the connection broke
    SILENT = "silent"  # half open: nothing comes though an answer was asked for
    SEED_TIMEOUT = "seed_timeout"  # connecting and reading took longer than their limit
    ROOT_MISSING = "root_missing"  # the file store went
    HUNG = "hung"  # the file system does not answer
    UNREADABLE = "unreadable"  # the file store refuses to be listed
    ROOM = "room"  # keys refused for capacity fit again: read them
    REPEATED = "repeated"  # asked for by the owner of the log
    REPLACED = "replaced"  # other settings
    STOPPED = "stopped"
    ERROR = "error"  # a fault of the source itself


class SourceEnded(NamedTuple):
    """A step failed or the watch ended. `detail` is for the log line alone."""

    reason: EndReason
    detail: str


SourceEvent = (
    Connected
    | Waiting
    | NamesListed
    | NamesEnded
    | Denied
    | ValuesRead
    | ValuesEnded
    | WatchesStand
    | KeysChanged
    | NamesRefused
    | NamesCut
    | SourceEnded
)


class SourceFailed(Exception):
    """The world's fault: the pass ends and a later one tries again.

    The text holds no token, no password and no value of a record.
    """

    def __init__(self, reason: EndReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.detail = detail


class Session(Protocol):
    """One connection, used for one pass. Steps are called in this order, once each."""

    @property
    def where(self) -> str:
        """The endpoint or folder, for people."""

    def names(self, watched: Sequence[Watched]) -> AsyncGenerator[SourceEvent, None]:
        """NamesListed and one NamesEnded or Denied for each prefix. Raises SourceFailed."""

    def values(self, listed: Sequence[ReadAt]) -> AsyncGenerator[SourceEvent, None]:
        """ValuesRead of all prefixes, as of their listings where the store can. Raises SourceFailed."""

    def changes(self, listed: Sequence[ReadAt]) -> AsyncGenerator[SourceEvent, None]:
        """WatchesStand once, KeysChanged as they happen. Ends only by raising SourceFailed."""

    async def siblings(self, namespace: str, limit: int) -> tuple[str, ...]:
        """Up to `limit` other namespaces with instances whose name begins with this one's.

        Returns () where the store will not tell. Raises nothing but SourceFailed.
        """

    async def close(self) -> None:
        """Let go of everything. Safe to call twice and after failures."""


class DiscoverySource(Protocol):
    """Where sessions come from."""

    @property
    def name(self) -> str:
        """`etcd` or `file`, as the records name the source."""

    async def connect(self, waiting: Callable[[str], None]) -> Session:
        """A session on a store that answers. Raises SourceFailed.

        waiting: called with a phrase while the source is well but its store is not there yet;
        the limit of connecting and reading rests from then on until this returns.
        """
