"""The numbered behaviours of reducers that a log may adopt, and which of them are wanted.

A flag is in force from the `FoldModeAdopted` that names it to the next one that does not
(decision 8). Numbers are part of the log's format: append, never renumber, and never give
one another meaning.

Source: decision 8; architecture 7.4; requirement row KVX-20.
"""

from __future__ import annotations

from typing import Final

from projections.events.control import PickSettings

KV_INDEX: Final = 1  # kv-events of device memory are indexed
LOWER_TIERS: Final = 2  # those of host memory, disk and beyond too
SIDE_INDEX: Final = 3  # own picks stand for the blocks that their ranks will hold
COUNTED_ONCE: Final = 4  # a copy that lands later counts no more, whatever happened in between

FOLD_MODES: Final[frozenset[int]] = frozenset((KV_INDEX, LOWER_TIERS, SIDE_INDEX, COUNTED_ONCE))
WANTED_ALWAYS: Final = (COUNTED_ONCE,)  # by every log, whatever its settings are; they wait for no settings


def wanted_modes(pick: PickSettings) -> tuple[int, ...]:
    """The flags that picks under these settings read the results of, ascending."""
    kv = pick.kv
    if kv is None:
        return ()
    wanted = [KV_INDEX]
    if kv.host_credit > 0 or kv.disk_credit > 0:
        wanted.append(LOWER_TIERS)
    if kv.predicted_ttl_us > 0 or kv.approximate_ttl_us > 0:
        wanted.append(SIDE_INDEX)
    return tuple(wanted)
