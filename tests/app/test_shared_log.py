"""A router beside the owner of its log: waits for the log, reads its segments, writes through its owner."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app import shared_log
from app.config_model import Config
from app.log_access import OwnedLog
from app.shared_log import SharedLog
from ingest.log.segment_files import LogAbsent
from projections.events.ports import LogError
from tests.log_suite import number_of, read_all, record

CONFIG = Config.model_validate({"checkpoints": {"bytes": "16MiB"}})


async def test_a_router_that_starts_first_waits_for_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_log, "OWNER_LOOK_S", 0.001)
    opening = asyncio.create_task(SharedLog.open(tmp_path, CONFIG))
    await asyncio.sleep(0.02)
    assert not opening.done()
    owner = OwnedLog(tmp_path, CONFIG)
    try:
        async with asyncio.timeout(10):
            access = await opening
        await asyncio.to_thread(access.close)
    finally:
        owner.close()


async def test_an_owner_that_never_comes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_log, "OWNER_LOOK_S", 0.001)
    with pytest.raises(LogAbsent), capture_logs() as said:
        await SharedLog.open(tmp_path, CONFIG, patience_s=0.01)
    (waiting,) = said
    assert waiting["event"] == "waiting for the log's owner" and str(tmp_path) in waiting["cause"]


@pytest.mark.req("EVS-10")
async def test_what_it_writes_it_reads_and_so_do_the_others(tmp_path: Path) -> None:
    owner = OwnedLog(tmp_path, CONFIG)
    one, other = [await SharedLog.open(tmp_path, CONFIG) for _ in range(2)]
    try:
        assert await asyncio.to_thread(one.store.commit, [record(1), record(2)]) == 0
        assert owner.store.commit([record(3)]) == 2
        assert await asyncio.to_thread(other.store.commit, [record(4)]) == 3
        reader = one.open_reader()
        for reading in (owner.reader, one.reader, other.reader, reader):
            assert [number_of(data) for _, data in read_all(reading, 0)] == [1, 2, 3, 4]
        reader.close()
        assert (one.figures(), one.room) == (None, None), "the owner tells them"
        one.upkeep()
        owner.checkpoints.write(owner.log.log_id, 3, 0, 1, iter([]))
        assert one.checkpoints.list() == owner.checkpoints.list()
    finally:
        for access in (one, other, owner):
            await asyncio.to_thread(access.close)


async def test_a_commit_that_waits_for_an_owner_ends_when_it_is_given_up(tmp_path: Path) -> None:
    owner = OwnedLog(tmp_path, CONFIG)
    access = await SharedLog.open(tmp_path, CONFIG)
    await asyncio.to_thread(access.store.commit, [record(1)])
    owner.close()
    told: list[BaseException] = []

    def commit() -> None:
        try:
            while True:
                try:
                    access.store.commit([record(2)])
                except LogError as problem:
                    if access.store._failed is not None or access.store._closing.is_set():
                        told.append(problem)
                        return
        except BaseException as problem:
            told.append(problem)

    thread = threading.Thread(target=commit)
    thread.start()
    await asyncio.to_thread(access.give_up)
    await asyncio.to_thread(thread.join, 20)
    assert not thread.is_alive()
    assert isinstance(told[0], LogError)
    await asyncio.to_thread(access.close)
