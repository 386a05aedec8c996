"""Long fuzz of the wire decoders.

    python -m bench.fuzz_wire [SECONDS] [--seed N] [--target NAME] [--case N]

Prints its seed first and for each failure the command that repeats it. Without --seed a fresh
one is drawn; with --case that single case of --target and --seed is run.
Exit status 1 when a decoder broke a promise.
"""

from __future__ import annotations

import sys

from tests.fuzz.command_line import fuzz
from tests.fuzz.wire_targets import targets

COMMAND = "python -m bench.fuzz_wire"

if __name__ == "__main__":
    sys.exit(fuzz(COMMAND, "Mutated bytes against the wire decoders.", targets()))
