"""Standard input, output and error as every command may expect them: open.

A process may be started with any of the three closed. Whatever is opened next then gets
its number: a log's segment would be what warnings are written to, and the event loop
ends the process when it closes such a descriptor. So the null device takes every place
that is free, before anything else is opened.
"""

from __future__ import annotations

import os
import sys


def hold_standard_streams() -> None:
    """Open the null device where a standard stream is closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # the lowest free number is this one: those below it are open
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
            os.set_inheritable(number, True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115  # these three stay open
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def drop_output() -> None:
    """Forget what could not be written to standard output, so that nobody tries it again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
