"""The ceilings of the index."""

from __future__ import annotations

import pytest

from projections.kv.index_limits import INDEX_LIMITS, IndexLimits


@pytest.mark.req("KVX-12")
def test_the_ceilings_are_those_of_the_specification() -> None:
    assert INDEX_LIMITS[:4] == (1_048_576, 262_144, 8_388_608, 4_096)
    assert IndexLimits() == INDEX_LIMITS
