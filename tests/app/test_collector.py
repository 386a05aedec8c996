"""The garbage collector runs seldom, and leaves alone what stays."""

import gc

import pytest

from app.collector import freeze_again, freeze_collected, reading_collector, serving_collector

USUAL = (700, 10, 10)  # what CPython 3.11 and 3.12 start with


@pytest.fixture(autouse=True)
def _usual_collector() -> None:
    """Whatever ran before in this process; tests/conftest.py puts the thresholds back."""
    gc.set_threshold(*USUAL)


def test_old_objects_are_left_alone_in_a_process_that_serves() -> None:
    serving_collector()
    young, middle, old = gc.get_threshold()
    assert young > USUAL[0] and middle > USUAL[1], "young ones seldom"
    assert old >= 1_000_000
    freeze_collected()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    kept: list[list[int]] = [[] for _ in range(1000)]
    freeze_again()
    assert gc.get_freeze_count() >= frozen + len(kept)


def test_commands_that_read_logs_collect_every_generation_but_seldom() -> None:
    reading_collector()
    young, middle, old = gc.get_threshold()
    assert young > USUAL[0] and middle > USUAL[1]
    assert 0 < old < 100
