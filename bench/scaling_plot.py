"""Figures of `bench.scaling_model` as plots: cores of each process, and bytes of the log, by fleet size."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.scaling_model import ASSUMED, REFERENCE, TARGET, Fleet, Needs, grown, needs

POINTS: Final = 40
REPLICAS: Final = 100


def draw(folder: Path) -> None:
    """Write scaling_cpu.svg and scaling_log.svg."""
    fleets = _fleets()
    for name, fill in (("scaling_cpu", _cores), ("scaling_log", _bytes)):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        fill(axes, fleets)
        axes.set(
            xscale="log", yscale="log", xlabel="ranks of the fleet, each as busy as the reference fleet's"
        )
        for fleet in (REFERENCE, TARGET):
            axes.axvline(fleet.ranks, color="0.7", linewidth=0.8, zorder=0)
            axes.annotate(
                fleet.name,
                (fleet.ranks, 1),
                (3, -12),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
            )
        axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(0, 0.93))
        with rc_context({"svg.hashsalt": "picklog"}):
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def _fleets() -> list[tuple[Fleet, Needs]]:
    first, last = 64.0, 40_000.0
    sizes = [first * (last / first) ** (step / (POINTS - 1)) for step in range(POINTS)]
    fleets = [grown("", ranks, 2.56, REPLICAS) for ranks in sizes]
    return [(fleet, needs(fleet)) for fleet in fleets]


def _cores(axes: Axes, fleets: list[tuple[Fleet, Needs]]) -> None:
    ranks = [fleet.ranks for fleet, _ in fleets]
    axes.plot(ranks, [need.owner for _, need in fleets], "C3", label="owner")
    axes.plot(ranks, [need.follower for _, need in fleets], "C2", label="follower, SQL included")
    axes.plot(
        ranks,
        [need.replica for _, need in fleets],
        "C0",
        label=f"one of {REPLICAS} replicas, requests included",
    )
    axes.plot(ranks, [need.following for _, need in fleets], "C1--", label="following the log, every process")
    axes.plot(ranks, [need.fold_kv for _, need in fleets], "C1:", label="of it the fold of kv-events")
    axes.axhline(ASSUMED.busy_max, color="k", linewidth=0.8)
    axes.annotate(
        f"{ASSUMED.busy_max} of its one core",
        (1, ASSUMED.busy_max),
        (-110, 3),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
    )
    axes.set(ylabel="cores")


def _bytes(axes: Axes, fleets: list[tuple[Fleet, Needs]]) -> None:
    ranks = [fleet.ranks for fleet, _ in fleets]
    axes.plot(ranks, [need.log_bytes_per_s / 1e6 for _, need in fleets], "C0", label="into the log")
    axes.plot(
        ranks,
        [need.leader_bytes_per_s / 1e6 for _, need in fleets],
        "C3",
        label=f"out of its leader to {REPLICAS} replicas",
    )
    for limit, text in (
        (ASSUMED.partition_bytes_per_s, "one partition, assumed"),
        (ASSUMED.broker_bytes_per_s, "25 Gbit/s"),
    ):
        axes.axhline(limit / 1e6, color="k", linewidth=0.8)
        axes.annotate(
            text, (1, limit / 1e6), (-130, 3), xycoords=("axes fraction", "data"), textcoords="offset points"
        )
    axes.set(ylabel="MB/s")
