"""Draws a report: minute by minute, as bars, or as spans of time, into a PNG or SVG file.

What is drawn of which column stands in the report (`sql_queries.Plot`). A file appears whole
or not at all. The only module that knows matplotlib; it draws without a display.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from app.audit_query import Answer
from app.cli_errors import printable
from app.sql_queries import Chart, Plot, Report
from app.whole_file import whole_file

BARS_MAX = 40
SERIES_MAX = 12
LABEL_CHARACTERS_MAX = 48
SECOND_DAYS = 1 / 86_400
MINUTE_DAYS = 60 * SECOND_DAYS
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
    "#8c6d1f", "#5b4a8a", "#7a7a7a", "#004d40", "#b0413e", "#3e7cb0",
)  # fmt: skip


def draw(report: Report, answer: Answer, file: Path) -> None:
    """Draw the rows of a report into `file`, whose suffix is .png or .svg. Raises OSError."""
    style: Any = {
        "font.size": 9,
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "picklog",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with rc_context(style):
        figure = Figure(figsize=(10, 5), layout="constrained", dpi=150)
        axes = figure.add_subplot()
        axes.set_title(report.asks, loc="left", fontweight="bold")
        if not answer.rows:
            axes.text(0.5, 0.5, "no rows", ha="center", va="center", transform=axes.transAxes)
            axes.set_axis_off()
        else:
            _CHARTS[report.plot.chart](figure, axes, report.plot, answer)
        kind = file.suffix.lower().removeprefix(".")
        with whole_file(file) as unfinished:
            figure.savefig(unfinished, format=kind, metadata={"Date": None} if kind == "svg" else None)


def _minutes(figure: Figure, axes: Axes, plot: Plot, answer: Answer) -> None:
    """Sums of the value minute by minute, one series on another; the smallest ones together."""
    sums: dict[str, dict[str, float]] = {}
    times = sorted({_text(row[answer.columns.index(plot.along[0])]) for row in answer.rows})
    for row in answer.rows:
        of = dict(zip(answer.columns, row, strict=True))
        line = sums.setdefault(_label(of, plot.series), {})
        moment = _text(of[plot.along[0]])
        line[moment] = line.get(moment, 0) + _number(of[plot.values[0]])
    names = sorted(sums, key=lambda name: (-_total(sums[name].values()), name))
    for rest in names[SERIES_MAX - 1 :] if len(names) > SERIES_MAX else ():
        others = sums.setdefault("others", {})
        for moment, value in sums.pop(rest).items():
            others[moment] = others.get(moment, 0) + value
    numbers = [_day(moment) for moment in times]
    below = [0.0] * len(times)
    for place, (name, line) in enumerate(sorted(sums.items())):
        values = [line.get(moment, 0) for moment in times]
        colour = COLOURS[place % len(COLOURS)]
        axes.bar(numbers, values, 0.9 * MINUTE_DAYS, below, label=name, color=colour, align="edge")
        below = [low + value for low, value in zip(below, values, strict=True)]
    _time_axis(axes)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    axes.set_ylabel(plot.unit)
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower left", ncols=2, frameon=False)


def _bars(figure: Figure, axes: Axes, plot: Plot, answer: Answer) -> None:
    """A group of bars for each row, or one bar with the number of rows of a kind."""
    groups: dict[str, list[float]] = {}
    for row in answer.rows:
        of = dict(zip(answer.columns, row, strict=True))
        label = _label(of, plot.along)
        if plot.values:
            groups[_free(groups, label)] = [_number(of[name]) for name in plot.values]
        else:
            groups.setdefault(label, [0.0])[0] += 1
    left_out = max(0, len(groups) - BARS_MAX)
    names = list(groups)[:BARS_MAX]
    columns = plot.values or ("",)
    height = 0.8 / len(columns)
    for place, column in enumerate(columns):
        at = [row - 0.4 + height * (place + 0.5) for row in range(len(names))]
        values = [groups[name][place] for name in names]
        bars = axes.barh(at, values, height, label=column.replace("_", " "), color=COLOURS[place])
        axes.bar_label(bars, [f"{value:,.6g}" for value in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_xlabel(plot.unit + (f"; {left_out} further rows are not drawn" if left_out else ""))
    figure.set_figheight(max(3.0, 1.5 + 0.3 * len(names) * max(1, len(columns) * 0.6)))
    if len(columns) > 1:
        figure.legend(loc="outside lower left", ncols=len(columns), frameon=False)


def _spans(figure: Figure, axes: Axes, plot: Plot, answer: Answer) -> None:
    """A row for each label, with a span for each of its stretches of time."""
    labels: dict[str, int] = {}
    colours: dict[str, str] = {}
    first, last = plot.values
    for row in answer.rows:
        of = dict(zip(answer.columns, row, strict=True))
        label, series = _label(of, plot.along), _label(of, plot.series)
        if len(labels) == BARS_MAX and label not in labels:
            continue
        place = labels.setdefault(label, len(labels))
        is_new = series not in colours
        colour = colours.setdefault(series, COLOURS[len(colours) % len(COLOURS)])
        begin, end = _day(_text(of[first])), _day(_text(of[last]))
        width = max(end - begin, SECOND_DAYS)  # one pick alone is a span of no length
        axes.broken_barh([(begin, width)], (place - 0.4, 0.8), color=colour, label=series if is_new else None)
    axes.set_yticks(range(len(labels)), list(labels))
    axes.invert_yaxis()
    _time_axis(axes)
    axes.grid(axis="x", alpha=0.3)
    figure.set_figheight(max(3.0, 1.5 + 0.35 * len(labels)))
    figure.legend(loc="outside lower left", ncols=4, frameon=False)


_CHARTS = {Chart.MINUTES: _minutes, Chart.BARS: _bars, Chart.SPANS: _spans}


def _time_axis(axes: Axes) -> None:
    locator = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_xlabel("log time, UTC")


def _label(of: dict[str, Any], columns: Sequence[str]) -> str:
    text = " ".join(_text(of[name]) for name in columns if of[name] is not None) or "-"
    text = printable(text)
    return text if len(text) <= LABEL_CHARACTERS_MAX else "..." + text[3 - LABEL_CHARACTERS_MAX :]


def _free(groups: dict[str, list[float]], label: str) -> str:
    """A label that is not taken: two rows may read alike once they are cut."""
    number, free = 1, label
    while free in groups:
        number += 1
        free = f"{label} ({number})"
    return free


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _total(values: Any) -> float:
    return float(sum(values))


def _day(text: str) -> float:
    """A time of a report as a chart's axis counts it."""
    day: float = date2num(datetime.fromisoformat(text.removesuffix("Z")))  # type: ignore[no-untyped-call]
    return day
