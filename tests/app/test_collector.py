"""The garbage collector runs seldom, and leaves alone what stays."""

import gc

from app.collector import freeze_again, freeze_collected, reading_collector, serving_collector


def test_old_objects_are_left_alone_in_a_process_that_serves() -> None:
    before = gc.get_threshold()
    try:
        serving_collector()
        assert all(gc.get_threshold()[n] >= before[n] for n in (0, 1)), "young ones seldom"
        assert gc.get_threshold()[2] >= 1_000_000
        freeze_collected()
        frozen = gc.get_freeze_count()
        assert frozen > 0
        kept: list[list[int]] = [[] for _ in range(1000)]
        freeze_again()
        assert gc.get_freeze_count() >= frozen + len(kept)
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_commands_that_read_logs_collect_every_generation_but_seldom() -> None:
    before = gc.get_threshold()
    try:
        reading_collector()
        young, middle, old = gc.get_threshold()
        assert young > before[0] and middle > before[1]
        assert 0 < old < 100
    finally:
        gc.set_threshold(*before)
