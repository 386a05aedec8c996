"""The numbered behaviours of the pick code, which a replica names when it starts.

A pick is repeated with the numbers of the process that made it, so what an old log recorded
comes out as it did. Append, never renumber, and never give a number another meaning.

Source: decision 8; architecture 7.4.
"""

from __future__ import annotations

from typing import Final

SHARED_IN_FLIGHT: Final = 1  # what is under way weighs only by what it does not share with the prompt

PICK_FLAGS: Final = (SHARED_IN_FLIGHT,)
"""Those of this release, ascending."""
