"""Plots as inline SVG: bars in pairs, lines, steps of a share over time, points, and a grid of shades.

No script, no external resource. Colours and type come from the page's style sheet through
classes, so that a plot follows the reader's light or dark theme. Every mark has a title
that a pointer shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

WIDTH = 720
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 56, 16, 14, 34
TICKS = 4

Point = tuple[float, float]


class Line(NamedTuple):
    """A named line. kind: its class, `before` or `after` (or `one`, `two`, ...)."""

    name: str
    kind: str
    points: Sequence[Point]


class Frame:
    """The plotting area and its scales. Values are mapped from 0 (or `low`) to `high`."""

    def __init__(self, x_low: float, x_high: float, y_high: float, height: int = 260) -> None:
        self.height = height
        self.x_low, self.x_high = x_low, x_high if x_high > x_low else x_low + 1
        self.y_high = y_high or 1.0
        self.right, self.bottom = WIDTH - MARGIN_RIGHT, height - MARGIN_BOTTOM

    def x(self, value: float) -> float:
        """Place of a value on the horizontal axis."""
        part = (value - self.x_low) / (self.x_high - self.x_low)
        return round(MARGIN_LEFT + part * (self.right - MARGIN_LEFT), 1)

    def y(self, value: float) -> float:
        """Place of a value on the vertical axis."""
        return round(self.bottom - value / self.y_high * (self.bottom - MARGIN_TOP), 1)

    def axes(self, y_text: str, x_labels: Sequence[tuple[float, str]], y_style: str = "") -> str:
        """Horizontal grid lines with numbers, and the given labels below."""
        parts = []
        for step in range(TICKS + 1):
            value = self.y_high * step / TICKS
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{MARGIN_LEFT}" x2="{self.right}" y1="{y}" y2="{y}"/>')
            text = _number(value, y_style)
            parts.append(
                f'<text class="tick" x="{MARGIN_LEFT - 8}" y="{y + 4}" text-anchor="end">{text}</text>'
            )
        for value, label in x_labels:
            x = self.x(value)
            anchor = "start" if x < MARGIN_LEFT + 24 else "end" if x > self.right - 24 else "middle"
            place = f'x="{x}" y="{self.bottom + 18}" text-anchor="{anchor}"'
            parts.append(f'<text class="tick" {place}>{escape(label)}</text>')
        parts.append(f'<text class="axis" x="{MARGIN_LEFT}" y="{MARGIN_TOP - 3}">{escape(y_text)}</text>')
        return "".join(parts)


def svg(height: int, label: str, body: str) -> str:
    """A whole drawing that scales with the page."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}"'
        f' preserveAspectRatio="xMidYMid meet">{body}</svg>'
    )


def paired_bars(rows: Sequence[tuple[str, float, float]], label: str) -> str:
    """A row for each name with two horizontal bars, before and after, and their numbers."""
    pitch, left = 34, 250
    height = max(1, len(rows)) * pitch + 8
    widest = max((max(before, after) for _, before, after in rows), default=0) or 1
    parts = []
    for place, (name, before, after) in enumerate(rows):
        y = place * pitch + 6
        shown = name if len(name) <= 36 else "…" + name[-35:]
        parts.append(
            f'<text class="name" x="{left - 10}" y="{y + 16}" text-anchor="end">{escape(shown)}'
            f"<title>{escape(name)}</title></text>"
        )
        for offset, kind, value in ((0, "before", before), (12, "after", after)):
            width = round((WIDTH - left - 70) * value / widest, 1)
            parts.append(
                f'<rect class="{kind}" x="{left}" y="{y + offset}" width="{max(width, 1)}" height="10"'
                f' rx="2"><title>{escape(name)}, {kind}: {value:g}</title></rect>'
                f'<text class="tick" x="{left + max(width, 1) + 6}" y="{y + offset + 9}">{value:g}</text>'
            )
    return svg(height, label, "".join(parts))


def steps(rows: Sequence[tuple[float, float]], x_labels: Sequence[tuple[float, str]], label: str) -> str:
    """A filled share, 0 to 1, over time: each row (time, share) holds until the next one.

    The last one holds for the shortest stretch of all.
    """
    if not rows:
        return ""
    width = min((after[0] - before[0] for before, after in pairwise(rows)), default=1.0)
    frame = Frame(rows[0][0], rows[-1][0] + width, 1.0, 220)
    path = [f"M{frame.x(rows[0][0])},{frame.y(0)}"]
    for place, (at, share) in enumerate(rows):
        end = rows[place + 1][0] if place + 1 < len(rows) else frame.x_high
        path.append(f"L{frame.x(at)},{frame.y(share)}L{frame.x(end)},{frame.y(share)}")
    path.append(f"L{frame.x(frame.x_high)},{frame.y(0)}Z")
    body = frame.axes("moved", x_labels, "%") + f'<path class="area" d="{"".join(path)}"/>'
    return svg(frame.height, label, body)


def lines(
    held: Sequence[Line],
    y_text: str,
    x_labels: Sequence[tuple[float, str]],
    label: str,
    *,
    y_high: float | None = None,
    y_style: str = "",
    diagonal: bool = False,
    dots: bool = False,
) -> str:
    """Lines over a common axis."""
    points = [point for line in held for point in line.points]
    if not points:
        return ""
    highest = max(y for _, y in points) if y_high is None else y_high
    frame = Frame(
        min(x for x, _ in points), max(x for x, _ in points), highest * (1.08 if y_high is None else 1)
    )
    body = frame.axes(y_text, x_labels, y_style)
    if diagonal:
        corner = f'x2="{frame.right}" y2="{frame.y(frame.y_high)}"'
        body += f'<line class="even" x1="{MARGIN_LEFT}" y1="{frame.bottom}" {corner}/>'
    for line in held:
        path = "M" + "L".join(f"{frame.x(x)},{frame.y(y)}" for x, y in line.points)
        body += f'<path class="line {line.kind}" d="{path}"><title>{escape(line.name)}</title></path>'
        if dots:
            body += "".join(
                f'<circle class="dot {line.kind}" cx="{frame.x(x)}" cy="{frame.y(y)}" r="4">'
                f"<title>{escape(line.name)}: {_number(y, y_style)}</title></circle>"
                for x, y in line.points
            )
    return svg(frame.height, label, body)


def points(pairs: Sequence[Point], x_text: str, y_text: str, label: str) -> str:
    """Pairs on equal scales with the diagonal on which nothing changed."""
    if not pairs:
        return ""
    highest = max(max(x, y) for x, y in pairs) * 1.05 or 1.0
    frame = Frame(0, highest, highest, 320)
    marks = [(highest * step / TICKS, _number(highest * step / TICKS, "")) for step in range(TICKS + 1)]
    body = frame.axes(y_text, marks)
    corner = f'x2="{frame.right}" y2="{frame.y(highest)}"'
    body += f'<line class="even" x1="{MARGIN_LEFT}" y1="{frame.bottom}" {corner}/>'
    body += "".join(
        f'<circle class="{"moved" if x != y else "kept"}" cx="{frame.x(x)}" cy="{frame.y(y)}" r="2.6"/>'
        for x, y in pairs
    )
    place = f'x="{frame.right}" y="{frame.bottom + 31}" text-anchor="end"'
    body += f'<text class="axis" {place}>{escape(x_text)}</text>'
    return svg(frame.height, label, body)


def shades(columns: Sequence[str], rows: Sequence[str], values: Sequence[Sequence[float]], label: str) -> str:
    """A grid of values, darker where larger, with the number in each cell."""
    left, top, cell = 160, 30, 40
    width = (WIDTH - left - 10) / max(1, len(columns))
    highest = max((value for row in values for value in row), default=0.0) or 1.0
    parts = [
        f'<text class="tick" x="{left + (n + 0.5) * width:.1f}" y="{top - 9}" text-anchor="middle">'
        f"{escape(name)}</text>"
        for n, name in enumerate(columns)
    ]
    for place, (name, row) in enumerate(zip(rows, values, strict=True)):
        y = top + place * cell
        parts.append(
            f'<text class="name" x="{left - 10}" y="{y + 25}" text-anchor="end">{escape(name)}</text>'
        )
        for n, value in enumerate(row):
            x = left + n * width
            parts.append(
                f'<rect class="shade" style="opacity:{0.08 + 0.92 * value / highest:.3f}" x="{x:.1f}" y="{y}"'
                f' width="{width - 3:.1f}" height="{cell - 3}" rx="4"/>'
                f'<text class="cell" x="{x + width / 2:.1f}" y="{y + 24}" text-anchor="middle">'
                f"{value:.1%}</text>"
            )
    return svg(top + len(rows) * cell + 4, label, "".join(parts))


def _number(value: float, style: str) -> str:
    if style == "%":
        return f"{value:.0%}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
