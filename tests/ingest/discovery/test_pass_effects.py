"""The effects' own words."""

from __future__ import annotations

import pytest

from ingest.discovery.pass_effects import Phase, StateChanged


@pytest.mark.req("ETCD-15")
@pytest.mark.parametrize("phase", list(Phase))
def test_connected_is_watching_and_nothing_else(phase: Phase) -> None:
    assert StateChanged(phase, "").connected == (phase.name == "WATCHING")
