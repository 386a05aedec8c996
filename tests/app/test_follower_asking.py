"""Verifier and shadow follow a log to its end, survive a sink that is away, and start where they were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import app.follower_asking
from app.checkpoint_store import CheckpointFolder
from app.follower_asking import Asking
from app.follower_figures import ShadowResult, Verdict
from app.shadow import Rows, ShadowSettings, SinkAway
from app.shadow_file import JsonLinesSink
from projections.events.control import ConfigAdopted, Pinged, RecordCondemned
from projections.events.ports import CheckpointStore, LogReader, RecordBatch
from replay.fold_cursor import FoldCursor, cursor_at
from tests.app.test_shadow import Told
from tests.replay.captured import busy_log, checkpoint_at
from tests.replay.recorded_log import SETTINGS, RecordedLog

SHADOW = ShadowSettings(SETTINGS._replace(max_staleness_us=1), "d", "file")


class Kept:
    """A sink that keeps rows, and can be away."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.is_away = False
        self.failures = 0

    async def mark(self, shadow_config: str) -> int:
        if self.is_away:
            raise SinkAway("a test")
        return max((row.log_offset for row in self.rows.shadow), default=-1)

    async def write(self, rows: Rows) -> None:
        if self.is_away:
            self.failures += 1
            raise SinkAway("a test")
        self.rows.shadow += rows.shadow
        self.rows.verifications += rows.verifications

    async def close(self) -> None:
        """Nothing to let go of."""


async def until(condition: Callable[[], bool]) -> None:
    """Let everything go on until it holds."""
    for _ in range(200_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to hold")


def asking(
    world: RecordedLog,
    folder: Path,
    sink: Kept | JsonLinesSink,
    told: Told,
    shadow: ShadowSettings | None = SHADOW,
) -> Asking:
    return Asking(world.log, CheckpointFolder(folder / "checkpoints"), sink, told, folder, shadow)


@pytest.mark.req("DYN-12")
async def test_every_pick_of_a_log_has_a_row_and_samples_are_equal(tmp_path: Path) -> None:
    world, sink, told = busy_log(15), Kept(), Told()
    await asking(world, tmp_path, sink, told).follow(world.log.end_offset())
    assert len({row.log_offset for row in sink.rows.shadow}) == len(sink.rows.shadow) == 30
    assert told.results.total() == 30 and told.results[ShadowResult.MOVED] > 0
    assert told.verdicts[Verdict.DIFFERENT] == 0 < told.verdicts[Verdict.EQUAL]


async def test_a_second_run_adds_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    world, sink = busy_log(8), Kept()
    end = world.log.end_offset()
    checkpoint_at(world, CheckpointFolder(tmp_path / "checkpoints"), end - 12)
    await asking(world, tmp_path, sink, Told()).follow(end - 20)
    before = len(sink.rows.shadow)
    assert 0 < before < 16
    await asking(world, tmp_path, sink, Told()).follow(end)
    offsets = [row.log_offset for row in sink.rows.shadow]
    assert len(offsets) == len(set(offsets)) == 16


class ReadsAhead:
    """A reader that has the next records only when it was asked for them before."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._is_there = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        self._is_there, is_there = not self._is_there, self._is_there
        return self._log.read(start, bytes_max) if is_there else []


async def test_what_the_log_condemns_is_read_where_nothing_is_still_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, skipped = busy_log(4), list[frozenset[int]]()
    world.say(RecordCondemned(7, "a test"))

    def noted(
        reader: LogReader, store: CheckpointStore | None, offset: int, condemned: frozenset[int]
    ) -> FoldCursor:
        skipped.append(condemned)
        return cursor_at(reader, store, offset, condemned)

    monkeypatch.setattr(app.follower_asking, "cursor_at", noted)
    checkpoints = CheckpointFolder(tmp_path / "checkpoints")
    one = Asking(ReadsAhead(world.log), checkpoints, Kept(), Told(), tmp_path, SHADOW, source=world.log)
    await one.follow(world.log.end_offset())
    assert skipped == [frozenset({7})]


async def test_rows_wait_for_a_sink_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.follower_asking, "WAIT_S", 0.0)
    world, sink = busy_log(4), Kept()
    sink.is_away = True
    running = asyncio.create_task(asking(world, tmp_path, sink, Told()).follow(world.log.end_offset()))
    await until(lambda: sink.failures >= 3)
    assert len(sink.rows) == 0
    sink.is_away = False
    await running
    assert len(sink.rows.shadow) == 8


async def test_asking_waits_when_too_many_rows_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.follower_asking, "WAIT_S", 0.0)
    monkeypatch.setattr(app.follower_asking, "ROWS_MAX", 5)
    world, sink, told = busy_log(20), Kept(), Told()
    sink.is_away = True
    one = asking(world, tmp_path, sink, told)
    running = asyncio.create_task(one.follow(world.log.end_offset()))
    await until(lambda: sink.failures >= 5)
    assert told.results.total() < 10
    sink.is_away = False
    await running
    assert told.results.total() == len(sink.rows.shadow) == 40


async def test_a_shadow_that_the_log_names_is_asked_while_it_is_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.follower_asking, "LOOK_S", 0.0)
    monkeypatch.setattr(app.follower_asking, "FLUSH_S", 0.0)
    (tmp_path / "other.yaml").write_text("dynamo: {load: {max_staleness: 100ms}}\n")
    world = RecordedLog()
    replica = world.replica()

    def said(fact: tuple[Any, ...]) -> None:
        world.say(fact)
        replica.read()
        world.say(Pinged(replica.id, 0, replica.fold.mark.offset), replica.id)

    before = replica.ask("before")
    sink, told = Kept(), Told()
    one = Asking(world.log, CheckpointFolder(tmp_path / "checkpoints"), sink, told, tmp_path)
    running = asyncio.create_task(one.run())
    said(ConfigAdopted(3, "file", b"f" * 16, '{"shadow": {"config": "other.yaml"}}', SETTINGS))
    await until(lambda: one.is_shadowed)
    during = replica.ask("during")
    said(ConfigAdopted(4, "file", b"g" * 16, "{}", SETTINGS))
    await until(lambda: not one.is_shadowed and bool(sink.rows.shadow))
    after = replica.ask("after")
    said(ConfigAdopted(5, "file", b"h" * 16, '{"a": 1}', SETTINGS))
    await until(lambda: one.machine is not None and one.machine.answered == 3)
    assert [row.pick_id for row in sink.rows.shadow] == [during.pick_id.hex()]
    assert len({before.pick_id, during.pick_id, after.pick_id}) == 3
    assert one.lag_records <= 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await one.close()


async def test_a_fold_that_stops_ends_the_walk_and_the_next_one_knows(tmp_path: Path) -> None:
    world, told = busy_log(2), Told()
    condemning = world.say(RecordCondemned(world.log.end_offset() - 1, "a test"))
    sink = Kept()
    await asking(world, tmp_path, sink, told).follow(condemning + 1)
    assert len(sink.rows.shadow) == 4


async def test_faults_are_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app.follower_asking, "PAUSE_S", 0.0)
    calls = []

    async def failing(self: Asking, until: int | None = None) -> None:
        calls.append(until)
        raise OSError("disk") if len(calls) % 2 else ZeroDivisionError("a bug")

    monkeypatch.setattr(Asking, "follow", failing)
    running = asyncio.create_task(asking(busy_log(1), tmp_path, Kept(), Told()).run())
    await until(lambda: len(calls) >= 4)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    told = capsys.readouterr().out
    assert "picks are not asked again for now" in told and "asking picks again failed" in told
