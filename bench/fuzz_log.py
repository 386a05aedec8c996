"""Long fuzz of what reads the log and the fleet's values; options as `bench.fuzz_wire`.

python -m bench.fuzz_log [SECONDS] [--seed N] [--target NAME] [--case N]
"""

from __future__ import annotations

import sys

from tests.fuzz.command_line import fuzz
from tests.fuzz.log_targets import targets

COMMAND = "python -m bench.fuzz_log"

if __name__ == "__main__":
    sys.exit(fuzz(COMMAND, "Mutated bytes against record, segment, checkpoint and value readers.", targets()))
