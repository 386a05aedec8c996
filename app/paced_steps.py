"""Steps that cost the follower at most a small part of its time.

A step is a whole state. Of a large one a step every fifty thousand records would take longer to write than
those records take to come, and the follower would fall behind what it is for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from app.replay_steps import STEP_RECORDS, Steps
from projections.fold import Fold

COST_SHARE = 0.05  # of the time since the step before, at most


class PacedSteps:
    """Writes `steps`. clock: monotonic seconds."""

    def __init__(self, steps: Steps, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps = steps
        self._clock = clock
        self._newest = max((info.offset for info in steps.list()), default=-1)
        self._not_before = float("-inf")

    def is_due(self, fold: Fold) -> bool:
        """Whether a step of this state is wanted; cheap."""
        is_far = fold.mark.offset >= self._newest + STEP_RECORDS and fold.stopped is None
        return is_far and self._clock() >= self._not_before

    def write(self, fold: Fold, log_id: bytes) -> bool:
        """Write it; the fold must stand still. False where the disk does not take it."""
        began = self._clock()
        self._newest = fold.mark.offset
        is_written = self._steps.write(fold, log_id)
        ended = self._clock()
        self._not_before = ended + (ended - began) / COST_SHARE
        return is_written
