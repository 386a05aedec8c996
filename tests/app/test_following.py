"""A log is followed over its owners, segments and outages, and what ends that is told."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import typer

from app import following as module
from app.cli_errors import EXIT_USAGE
from app.following import Following, FollowingEnded, end_if_unread, seconds_of
from app.log_places import OpenLog, open_log
from ingest.log.segment_files import log_folder
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_settings import SegmentSettings
from projections.events.codec import encode_record
from projections.events.control import CheckpointDue
from projections.events.ports import MemoryLog
from tests.app.captures import capture_of
from tests.app.log_on_disk import SETTINGS, some_picks, written
from tests.app.timed_log import WRITER
from tests.ingest.log.kafka_topic import LOG_ID
from tests.ingest.log.test_kafka_tail import ahead

SMALL = SegmentSettings(segment_bytes=4 << 10, reserve_bytes=0, durable=False, allocate_bytes=4096)


def record(number: int) -> bytes:
    return encode_record(number + 1, WRITER, 1, number + 1, CheckpointDue("x" * 100))


async def read_to(following: Following, position: int, end: int) -> int:
    """Read on until the record before `end` was read; the position behind it."""
    async with asyncio.timeout(20):
        while position < end:
            for batch in await following.more(position):
                assert batch.first_offset >= position
                position = batch.first_offset + len(batch.records)
    return position


async def test_a_log_is_followed_from_owner_to_owner_and_from_segment_to_segment(tmp_path: Path) -> None:
    number = position = 0
    store = SegmentLog.open_owner(tmp_path, SMALL)
    store.commit([record(0)])
    with open_log(tmp_path, True) as opened, Following.of(opened) as following:
        for _ in range(3):
            for _ in range(60):
                number += 1
                end = store.commit([record(number)]) + 1
                position = await read_to(following, position, end)
            store.close()
            assert await following.more(position) == [], "nobody owns it now"
            store = SegmentLog.open_owner(tmp_path, SMALL)
        assert position == number + 1
    store.close()
    assert len([*log_folder(tmp_path).glob("*.seg*")]) > 3


async def test_a_log_without_an_owner_is_followed_once_one_comes(tmp_path: Path) -> None:
    data = written(some_picks(), tmp_path / "data")
    with open_log(data, True) as opened, Following.of(opened) as following:
        end = opened.reader.end_offset()
        assert await following.more(end) == []
        store = SegmentLog.open_owner(data, SETTINGS)
        store.commit([record(999)])
        assert await read_to(following, end, end + 1) == end + 1
        store.close()


async def test_retention_that_was_quicker_ends_it_with_the_oldest_kept_offset() -> None:
    log = MemoryLog()
    log.commit([record(0)])
    log.commit([record(1)])
    log.forget(1)
    with pytest.raises(FollowingEnded, match="offset 0 before it was read, the oldest kept is 1"):
        await Following(log).more(0)


async def test_another_log_at_the_same_place_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    data = written(some_picks(), tmp_path / "data")
    with open_log(data, True) as opened, Following.of(opened) as following:
        end = opened.reader.end_offset()
        assert await following.more(end) == []
        shutil.rmtree(log_folder(data))
        with pytest.raises(FollowingEnded, match="the log is gone"):
            await following.more(end)
        written(some_picks(), data)
        with pytest.raises(FollowingEnded, match="another log stands there now"):
            await following.more(end)
        following.stop()


async def test_a_topic_that_was_made_anew_ends_it() -> None:
    with ahead(5) as one:
        following = Following(one.tail)
        position = await read_to(following, 0, 5)
        one.topic.forget(0)
        one.topic.end = 0
        one.topic.records.clear()
        with pytest.raises(FollowingEnded, match="recreated"):
            await read_to(following, position, 6)
        assert one.tail.log_id == LOG_ID


async def test_brokers_that_do_not_answer_are_waited_for_and_the_order_to_end_is_heard() -> None:
    with ahead(2) as one:
        following = Following(one.tail)
        position = await read_to(following, 0, 2)
        one.fetch.is_away = True
        assert await following.more(position) == []
        one.append()
        one.fetch.is_away = False
        assert await read_to(following, position, 3) == 3
        one.fetch.is_away = True
        following.stop()
        assert await following.more(3) == []


@pytest.mark.looptime
async def test_an_order_to_end_ends_the_wait_and_so_does_time() -> None:
    loop = asyncio.get_running_loop()
    following = Following(MemoryLog())
    with following.until_told(7.0):
        began = loop.time()
        await following.wait(asyncio.sleep(100))
    assert loop.time() - began == pytest.approx(7.0)
    assert following.is_stopped()


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_the_first_signal_is_an_order_and_the_second_ends_the_process(number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGINT)
    following = Following(MemoryLog())
    with following.until_told():
        os.kill(os.getpid(), number)
        await following.stopped()
        assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert following.is_stopped()
    signal.signal(signal.SIGINT, before)


async def test_what_a_wait_raises_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await Following(MemoryLog()).wait(fail())


def test_a_capture_never_grows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture_of(some_picks().log, None, tmp_path / "a.capture", 12)
    with pytest.raises(typer.Exit) as ended, open_log(tmp_path / "a.capture", True) as opened:
        Following.of(opened)
    assert ended.value.exit_code == EXIT_USAGE
    assert "never grows" in capsys.readouterr().err


def test_a_log_is_closed_by_whoever_opened_it(tmp_path: Path) -> None:
    closed: list[bool] = []
    with Following(MemoryLog(), close=lambda: closed.append(True)):
        assert closed == []
    assert closed == [True]
    opened = OpenLog(MemoryLog(), None, "memory", tmp_path)  # type: ignore[arg-type]
    with Following.of(opened):
        pass


def test_a_time_is_a_number_with_a_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert [seconds_of(text, True) for text in ("1m30s", "500ms", None)] == [90.0, 0.5, None]
    for text, follows, words in (
        ("soon", True, "--for soon: is not a duration"),
        ("5s", False, "add --follow"),
    ):
        with pytest.raises(typer.Exit) as ended:
            seconds_of(text, follows)
        assert ended.value.exit_code == EXIT_USAGE
        assert words in capsys.readouterr().err
    assert seconds_of(None, False) is None


def test_a_reader_that_went_away_is_noticed_though_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    here, there = os.pipe()
    with open(there, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        end_if_unread()
        assert raised == []
        os.close(here)
        end_if_unread()
        assert raised == [signal.SIGPIPE]
    end_if_unread()
    assert len(raised) == 1, "what is no file at all has no reader"
