"""Both the registry and a fleet answer which ranks are live."""

from __future__ import annotations

from projections.load.live_ranks import LiveRanks
from projections.registry.reducer import Registry
from tests.router.picker.builders import NAMESPACE, a_fleet, a_worker


def test_fleet_and_registry_answer_the_same_question() -> None:
    fleet: LiveRanks = a_fleet(a_worker(1, dp_start_rank=4, dp_size=2))
    registry: LiveRanks = Registry()
    assert [fleet.is_live(NAMESPACE, 1, rank) for rank in range(3, 7)] == [False, True, True, False]
    assert not registry.is_live(NAMESPACE, 1, 4)
