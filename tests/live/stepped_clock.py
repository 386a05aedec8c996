"""A real-time clock that a test steps in one process, while its monotonic clocks go on as they are.

Only root may set the clock, and then for the whole machine. libfaketime, which would do it for one
process, refuses the sleeps of Python (an absolute `clock_nanosleep` on the monotonic clock, release
0.9.10). So a folder on PYTHONPATH replaces `time.time` and `time.time_ns` before anything else is
imported, and adds what a file says; children inherit it. `datetime.now`, which stamps lines of the
process log, stays true.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

WIDTH = 32  # characters of the file: a number is replaced in one write
SHIM = f'''"""Adds the nanoseconds that a file holds to the wall clock."""

import os
import time

_file = os.open(os.environ["STEPPED_CLOCK"], os.O_RDONLY | os.O_CLOEXEC)
_true_ns = time.time_ns


def _stepped_ns():
    return _true_ns() + int(os.pread(_file, {WIDTH}, 0))


time.time_ns = _stepped_ns
time.time = lambda: _stepped_ns() / 1e9
'''


class SteppedClock:
    """The wall clock of every process that is started with `environment`; true to begin with."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._file = folder / "step"
        self.set(0)
        (folder / "sitecustomize.py").write_text(SHIM)
        self.environment: Mapping[str, str] = {"PYTHONPATH": str(folder), "STEPPED_CLOCK": str(self._file)}

    def set(self, ahead_s: int) -> None:
        """So many seconds ahead of the true one from now on; negative behind it."""
        file = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(file, b"%+0*d" % (WIDTH, ahead_s * 1_000_000_000), 0)
        finally:
            os.close(file)
