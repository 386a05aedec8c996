"""Plots: every mark inside the drawing, names escaped, nothing drawn of nothing."""

import re
from collections.abc import Callable

import pytest

from app.page_plots import WIDTH, Frame, Line, lines, paired_bars, points, shades, steps


def numbers(drawing: str, *names: str) -> list[float]:
    return [float(value) for name in names for value in re.findall(rf' {name}="(-?[0-9.]+)"', drawing)]


@pytest.mark.parametrize(
    "drawing",
    [
        paired_bars([("a", 3, 5), ("b", 0, 1)], "bars"),
        steps([(0.0, 0.5), (1.0, 1.0), (2.0, 0.0)], [(0.0, "then")], "steps"),
        lines([Line("x", "before", [(0, 0), (1, 5)])], "y", [(0, "0")], "lines", dots=True),
        points([(0.1, 0.5), (0.9, 0.9)], "x", "y", "points"),
        shades(["a", "b"], ["r"], [[0.0, 1.0]], "grid"),
    ],
)
def test_every_mark_lies_inside_the_drawing(drawing: str) -> None:
    [size] = re.findall(r'viewBox="0 0 (\d+) (\d+)"', drawing)
    assert int(size[0]) == WIDTH
    assert all(0 <= x <= WIDTH for x in numbers(drawing, "x", "x1", "x2", "cx"))
    assert all(0 <= y <= int(size[1]) for y in numbers(drawing, "y1", "y2", "cy"))


def test_bars_are_as_long_as_their_values() -> None:
    drawing = paired_bars([("a", 2, 4)], "bars")
    short, long = numbers(drawing, "width")
    assert long == pytest.approx(2 * short, abs=0.2)


@pytest.mark.parametrize(
    "nothing",
    [lambda: steps([], [], "x"), lambda: lines([], "y", [], "x"), lambda: points([], "x", "y", "x")],
)
def test_nothing_is_drawn_of_nothing(nothing: Callable[[], str]) -> None:
    assert nothing() == ""


def test_names_are_escaped_and_long_ones_cut_with_the_whole_in_the_title() -> None:
    name = "<b>" + 60 * "n"
    drawing = paired_bars([(name, 1, 1)], "<i>")
    assert "<b>" not in drawing and "<i>" not in drawing
    assert "…" in drawing and f"<title>&lt;b&gt;{60 * 'n'}</title>" in drawing


def test_a_frame_maps_corners_to_corners() -> None:
    frame = Frame(0, 10, 4)
    assert frame.x(0) < frame.x(10) == frame.right
    assert frame.y(4) < frame.y(0) == frame.bottom
