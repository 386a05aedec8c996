"""Figures of `bench.replicas` as a plot: rebuild time, memory and lag by the size of the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure


def draw(found: dict[str, Any], file: Path) -> None:
    """found: of `bench.replicas --json`."""
    sizes = found["sizes"]
    records = [one["records"] / 1e6 for one in sizes]
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for axes, (key, label) in zip(
        figure.subplots(1, 3),
        (
            ("rebuild_s", "fold from the beginning, s"),
            ("rss_mb", "memory of the folding process, MB"),
            ("lag_us", "until a follower has a new record, µs"),
        ),
        strict=True,
    ):
        axes.plot(records, [one["lag_ms"] * 1e3 if key == "lag_us" else one[key] for one in sizes], "o-")
        axes.set(xscale="log", xlabel="records of the log, millions", ylabel=label)
        axes.set_ylim(bottom=0)
        axes.set_xticks(records, [f"{one:g}" for one in records])
        axes.minorticks_off()
        if key == "rebuild_s":
            axes.axhline(found["segments"]["start_s"], color="C1", linestyle="--", label="from a checkpoint")
            axes.legend()
    with rc_context({"svg.hashsalt": "picklog"}):
        figure.savefig(file, metadata={"Date": None})
