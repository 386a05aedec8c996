"""The wait between two passes: doubles while they fail, starts anew only after a good one.

A pass was good when all its watches stood for at least the longest wait. A store that
answers reads but closes every watch at once therefore keeps the wait growing, instead of
being read from end to end twice a second for ever.

Sources: requirement rows ETCD-10, ETCD-11.
"""

from __future__ import annotations


class Backoff:
    """Waits in microseconds: initial, 2 x initial, ... up to max."""

    def __init__(self, initial_us: int, max_us: int) -> None:
        self._initial_us = initial_us
        self._max_us = max_us
        self._next_us = initial_us

    def after_pass(self, stood_us: int) -> int:
        """The wait after a pass whose watches all stood for `stood_us` (0: they never did)."""
        if stood_us >= self._max_us:
            self._next_us = self._initial_us
        wait_us = min(self._next_us, self._max_us)
        self._next_us = min(2 * wait_us, self._max_us)
        return wait_us
