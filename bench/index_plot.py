"""Figures of `bench.index` as a plot: lookups by length and ranks, events by the size of the index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.index_workload import SIZES


def draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    """Ours as lines and dots, Dynamo's broken and as crosses. rows: of `bench.index --json`."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _lookups(left, rows)
    _events(right, rows)
    with rc_context({"svg.hashsalt": "picklog"}):
        figure.savefig(file, metadata={"Date": None})


def _lookups(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    found: dict[str, list[tuple[int, float, float | None]]] = {}
    for row in rows:
        name, separator, length = str(row["name"]).partition(" lookup p50 ")
        if separator and name in SIZES:
            found.setdefault(name, []).append((int(length), row["ours"], row["theirs"]))
    for number, (name, points) in enumerate(found.items()):
        lengths = [point[0] for point in points]
        colour = f"C{number}"
        axes.plot(
            lengths, [point[1] for point in points], "o-", color=colour, label=f"{SIZES[name].ranks} ranks"
        )
        theirs = [point[2] for point in points if point[2] is not None]
        if len(theirs) == len(points):
            axes.plot(lengths, theirs, "o--", color=colour)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="blocks of the prompt",
        ylabel="lookup, median, µs (broken: Dynamo)",
    )
    axes.set_xticks([32, 128, 512, 2_048], ["32", "128", "512", "2,048"])
    axes.minorticks_off()
    axes.legend()


def _events(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    for mark, style in (("ours", "o"), ("theirs", "x")):
        for number, phase in enumerate(("fill", "steady")):
            points = sorted(
                (SIZES[name].ranks * SIZES[name].capacity, 1e6 / row[mark])
                for row in rows
                for name, separator, rest in [str(row["name"]).partition(f" apply {phase}")]
                if separator and not rest and name in SIZES and row[mark] is not None
            )
            whose = "" if mark == "ours" else ", Dynamo"
            if points:
                held, events = zip(*points, strict=True)
                axes.plot(held, events, style, color=f"C{number}", label=phase + whose)
    axes.set(xscale="log", xlabel="blocks held by all ranks", ylabel="events applied, thousand/s")
    axes.set_ylim(bottom=0)
    axes.legend(bbox_to_anchor=(1.0, 1.0), loc="upper left")
