"""When Python's garbage collector runs: seldom, since nearly nothing that is made here holds cycles.

Source: decision 50.
"""

from __future__ import annotations

import gc

FREEZE_EVERY_S = 3600.0
_GENERATION_2_NEVER = 1_000_000
_YOUNG_OBJECTS = 10_000  # a request makes hundreds, nearly all gone when it ends
_YOUNG_ROUNDS = 50
_READ_OBJECTS = 50_000  # a read of a log makes tens of thousands of records at once
_READ_ROUNDS = 20


def reading_collector() -> None:
    """For commands that fold logs: every generation runs, each more seldom than by default."""
    gc.set_threshold(_READ_OBJECTS, _READ_ROUNDS, _READ_ROUNDS)


def serving_collector() -> None:
    """Generation 2 never runs by itself in a process that serves (decision 50), the others seldom."""
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_ROUNDS, _GENERATION_2_NEVER)


def freeze_collected() -> None:
    """Collect once and take what is left out of later collections. Call when nothing waits."""
    gc.collect()
    gc.freeze()


def freeze_again() -> None:
    """The same without generation 2, so it is short: call every FREEZE_EVERY_S."""
    gc.collect(1)
    gc.freeze()
