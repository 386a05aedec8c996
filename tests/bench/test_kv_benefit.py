"""How the comparison counts and judges."""

from __future__ import annotations

from dataclasses import replace

from bench.kv_benefit import Figures, arms, complaints, figures_of, fleet_plan, table
from bench.kv_traffic import Load, Reply, Request
from deploy.demo.fleet_plan import frontend_argv
from deploy.demo.pins import pins_of

SENT = Request("single", 0, ())


def row(name: str, cached: float, **settings: float) -> Figures:
    found = Figures(name, 100, 0, cached, 100.0, 150.0, 400.0, 20.0, 0.26, 0.02, 0.02, {})
    return replace(found, **settings)  # type: ignore[arg-type]


def rows(*cached: float) -> list[Figures]:
    return [row(arm.name, share) for arm, share in zip(arms(), cached, strict=True)]


def test_shares_are_of_tokens_and_spread_is_over_all_workers() -> None:
    replies = tuple(Reply(SENT, 0.1 * n, 1.0, 100, 50 * (n % 2), "1" if n < 3 else "2") for n in range(1, 5))
    figures = figures_of(arms()[0], Load(replies, 1, 2.0), {"1": "agg-1", "2": "agg-2", "3": "agg-3"}, {})
    assert figures.cached_share == 0.25
    assert (figures.requests, figures.failed, figures.requests_per_s) == (4, 1, 2.0)
    assert figures.busiest == 0.5
    assert round(figures.first_byte_p50_ms) == 250
    assert figures.gini > 0, "a worker without a request counts"


def test_win_by_a_wide_margin_is_no_complaint() -> None:
    assert complaints(rows(0.6, 0.65, 0.4, 0.4, 0.6)) == []


def test_each_shortfall_is_told() -> None:
    told = complaints(rows(0.5, 0.6, 0.4, 0.4, 0.6))
    assert [line.split(",")[0].rpartition(" of ")[2] for line in told] == [
        "load only",
        "round robin",
        "dynamo kv",
    ]
    uneven = rows(0.6, 0.65, 0.4, 0.4, 0.6)
    uneven[0] = replace(uneven[0], busiest=0.5, failed=2)
    assert len(complaints(uneven)) == 2
    assert "kv-aware" in table(uneven)


def test_every_router_stands_before_the_same_workers() -> None:
    plans = [fleet_plan(arm) for arm in arms()]
    assert len({plan.groups for plan in plans}) == 1
    modes = [plan.frontends[0].router_mode for plan in plans]
    assert modes == ["direct"] * 4 + ["kv"]
    argv = frontend_argv(fleet_plan(arms()[0]).model_dir, plans[-1], plans[-1].frontends[0], 1)
    assert argv[argv.index("--router-mode") + 1] == "kv"
    settings = arms()[0].dynamo
    assert settings is not None
    assert settings["kv"]["pinned_artifacts"] == list(pins_of())
