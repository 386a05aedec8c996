"""The floor loop is the same for ever: figures of years ago are read through it."""

from __future__ import annotations

from bench import floor


def test_loop_does_what_it_always_did() -> None:
    assert floor.loop(10_000) == 43_920


def test_line_tells_both_figures() -> None:
    text = floor.line()
    assert f"{floor.REFERENCE_LOOPS_PER_S:,} on the reference machine" in text
    assert "rounds/s here" in text
