"""What the pass machine wants done: its phases and effects.

Effects are carried out in their order. Those that start a step of the session (`Connect`,
`ListNames`, `ReadValues`, `OpenWatches`) return at once; what the step yields comes back
to the machine as events of `source`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ingest.discovery.source import ReadAt, Watched
from projections.notices import DiscoveryNotice, StatusNotice


class Phase(IntEnum):
    """Where a pass stands."""

    IDLE = 0
    CONNECTING = 1
    LISTING = 2
    READING = 3
    OPENING = 4
    WATCHING = 5
    BACKOFF = 6


class Append(NamedTuple):
    """Write this fact."""

    fact: tuple  # type: ignore[type-arg]  # one of projections.events.discovery


class Connect(NamedTuple):
    """Open a session."""


class ListNames(NamedTuple):
    """Run the session's `names`."""

    watched: tuple[Watched, ...]


class ReadValues(NamedTuple):
    """Run the session's `values`."""

    listed: tuple[ReadAt, ...]


class OpenWatches(NamedTuple):
    """Run the session's `changes`."""

    listed: tuple[ReadAt, ...]


class Close(NamedTuple):
    """Stop what runs and let the session go."""


class SleepUntil(NamedTuple):
    """Call `tick` then; replaces an earlier wish. None: no wish."""

    at_us: int | None


class Refused(NamedTuple):
    """Keys that are not logged; to be counted, and shown at the notice's level."""

    notice: DiscoveryNotice


class Notify(NamedTuple):
    """Something that operators look at."""

    notice: StatusNotice


class StateChanged(NamedTuple):
    """For gauges: `connected` while changes are folded, and a phrase for people."""

    phase: Phase
    detail: str

    @property
    def connected(self) -> bool:
        """Whether the view follows the store (ETCD-15)."""
        return self.phase is Phase.WATCHING


Effect = (
    Append
    | Connect
    | ListNames
    | ReadValues
    | OpenWatches
    | Close
    | SleepUntil
    | Refused
    | Notify
    | StateChanged
)
