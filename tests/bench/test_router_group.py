"""The bench of a group of routers ends with status 1 below its target, whatever the other load gives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import router_group
from bench.router_group import CLIENTS, ROUTERS, TARGET, Turn, main

GROUP = (ROUTERS, ROUTERS * CLIENTS)


def turns(cost_us: float) -> list[Turn]:
    return [Turn(100, 1.0, {"serve": cost_us * 100})] * 3


@pytest.mark.parametrize(("ratio", "status"), [(TARGET + 0.01, 0), (TARGET - 0.01, 1)])
def test_below_the_target_it_ends_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ratio: float, status: int
) -> None:
    found = {(1, CLIENTS): turns(850.0), GROUP: turns(850.0 / ratio), (ROUTERS, CLIENTS): turns(1_200.0)}

    def compare(rounds: int, folder: Path) -> dict[tuple[int, int], list[Turn]]:
        return found

    monkeypatch.setattr(sys, "argv", ["router_group"])
    monkeypatch.setattr(router_group, "compare", compare)
    monkeypatch.setattr("bench.floor.line", lambda: "floor")
    assert main() == status
    said = capsys.readouterr().out
    assert f"{ratio:.2f} (target {TARGET})" in said and "0.71 (no target)" in said
