from __future__ import annotations

from pathlib import Path

from ingest.log.reserve import RESERVE_NAME, RESERVE_STEP_BYTES, Reserve, Room
from tests.ingest.log.log_places import LimitedDisk

WANTED = 3 * RESERVE_STEP_BYTES


def test_the_reserve_takes_its_blocks_and_keeps_them_over_a_restart(tmp_path: Path) -> None:
    disk = LimitedDisk(WANTED)
    for _ in range(2):
        reserve = Reserve(disk, tmp_path, WANTED)
        assert (reserve.room, reserve.held_bytes, disk.room) == (Room.PLENTY, WANTED, 0)
    assert (tmp_path / RESERVE_NAME).stat().st_blocks * 512 >= WANTED


def test_it_is_given_up_step_by_step_and_taken_back_when_there_is_room(tmp_path: Path) -> None:
    disk = LimitedDisk(WANTED)
    reserve = Reserve(disk, tmp_path, WANTED)
    for step in range(1, 4):
        reserve.mark_full()
        assert reserve.room is Room.RESERVE
        reserve.give_up_step()
        assert disk.room == step * RESERVE_STEP_BYTES
    reserve.mark_full()
    assert reserve.room is Room.NONE
    disk.room = WANTED - 1
    reserve.fill()
    assert reserve.room is Room.NONE
    disk.room = WANTED
    reserve.fill()
    assert (reserve.room, reserve.held_bytes) == (Room.PLENTY, WANTED)


def test_a_log_on_a_disk_without_room_for_the_reserve_begins_full(tmp_path: Path) -> None:
    assert Reserve(LimitedDisk(10), tmp_path, WANTED).room is Room.NONE


def test_without_a_reserve_room_is_plenty_until_a_write_fails(tmp_path: Path) -> None:
    reserve = Reserve(LimitedDisk(0), tmp_path, 0)
    assert reserve.room is Room.PLENTY
    reserve.mark_full()
    assert reserve.room is Room.NONE
