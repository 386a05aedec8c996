"""Checkpoints are kept whole, named by position, and thinned by age and size."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from app.checkpoint_store import (
    DAY_US,
    HOUR_US,
    NO_FOLDER_SYNC,
    NO_RENAME,
    CheckpointFolder,
    checkpoint_name,
    surplus_checkpoints,
)
from app.fold_start import start_fold
from projections.bounds import COMMIT_BATCH_BYTES_MAX
from projections.checkpoint import checkpoint_records
from projections.events.codec import encode_record
from projections.events.held import WriterSeen
from projections.events.ports import CheckpointInfo, LogCorrupt
from projections.fold import Fold
from tests.app.log_on_disk import some_picks

LOG = bytes(range(16))


def records(count: int) -> list[bytes]:
    return [
        encode_record(0, bytes(16), 0, n, WriterSeen(n.to_bytes(16, "big"), n, n))
        for n in range(1, count + 1)
    ]


def at(hours: float, size: int = 10) -> CheckpointInfo:
    return CheckpointInfo(int(hours * 60), 0, int(hours * HOUR_US), size, f"{hours}")


@pytest.mark.req("EVS-13")
def test_a_written_checkpoint_reads_back_record_for_record(tmp_path: Path) -> None:
    store = CheckpointFolder(tmp_path / "checkpoints")
    written = store.write(LOG, 17, 99, 123456, iter(records(3000)))
    assert store.list() == [written]
    assert list(store.read(written)) == records(3000)
    assert (written.offset, written.check, written.time) == (17, 99, 123456)
    assert (tmp_path / "checkpoints").stat().st_mode & 0o077 == 0
    assert (tmp_path / "checkpoints" / written.name).stat().st_mode & 0o077 == 0


def test_an_empty_state_is_a_checkpoint_too(tmp_path: Path) -> None:
    store = CheckpointFolder(tmp_path)
    assert list(store.read(store.write(LOG, 0, 1, 2, iter([])))) == []


def test_large_records_are_spread_over_batches(tmp_path: Path) -> None:
    store = CheckpointFolder(tmp_path)
    large = [bytes([n]) * (COMMIT_BATCH_BYTES_MAX // 3) for n in range(5)]
    assert list(store.read(store.write(LOG, 1, 1, 1, iter(large)))) == large


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "no footer"])
def test_damage_is_reported_before_any_record_is_given(tmp_path: Path, damage: str) -> None:
    store = CheckpointFolder(tmp_path)
    written = store.write(LOG, 17, 99, 1, iter(records(2000)))
    path = tmp_path / written.name
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    damaged = {"cut": data[: len(data) // 2], "flip": data, "empty": bytearray(), "no footer": data[:-90]}
    path.write_bytes(bytes(damaged[damage]))
    with pytest.raises(LogCorrupt, match="checkpoint"):
        next(store.read(written))


def test_what_fails_while_it_is_written_leaves_nothing(tmp_path: Path) -> None:
    store = CheckpointFolder(tmp_path)

    def failing() -> object:
        yield from records(5)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.write(LOG, 5, 5, 5, failing())  # type: ignore[arg-type]
    assert [*tmp_path.iterdir()] == []


def test_what_a_crash_left_is_no_checkpoint_and_is_cleared_away_when_nobody_can_be_writing_it(
    tmp_path: Path,
) -> None:
    store = CheckpointFolder(tmp_path)
    left, underway = (store.unfinished(checkpoint_name(offset, 5, 5)) for offset in (5, 7))
    os.utime(left, (1, 1))
    assert store.list() == []
    kept = store.write(LOG, 6, 6, 6, iter(records(1)))
    assert {path.name for path in tmp_path.iterdir()} == {kept.name, underway.name}


def test_one_is_whole_only_for_its_own_log(tmp_path: Path) -> None:
    store = CheckpointFolder(tmp_path)
    info = store.write(LOG, 5, 5, 5, iter(records(5)))
    assert store.check(info, LOG) is None
    assert "another log" in (store.check(info, bytes(16)) or "")
    path = store.path_of(info.name)
    assert path is not None and store.path_of("../" + info.name) is None
    path.write_bytes(path.read_bytes()[:-1])
    assert store.check(info, LOG) is not None


def test_those_whose_tail_is_gone_go_but_for_the_newest(tmp_path: Path) -> None:
    store = CheckpointFolder(tmp_path)
    old, edge, new = (store.write(LOG, offset, 1, 2, iter(records(2))) for offset in (5, 8, 9))
    store.expire(9)
    assert store.list() == [edge, new] and old not in store.list()
    store.expire(99)
    assert store.list() == [new]


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    store = CheckpointFolder(tmp_path, keep=1)
    for offset in range(4):
        store.write(LOG, offset, 1, offset, iter(records(1)))
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.req("EVS-14")
def test_the_newest_few_one_an_hour_and_one_a_day_are_kept() -> None:
    minutes = [at(n / 60) for n in range(3 * 24 * 60)]
    surplus = set(surplus_checkpoints(minutes, 3, 1 << 40))
    kept = [info for info in minutes if info not in surplus]
    assert kept[-3:] == minutes[-3:]
    assert {info.time // DAY_US for info in kept} == {0, 1, 2}
    assert {info.time // HOUR_US for info in kept} == set(range(72))
    assert len(kept) == 72 + 2, "one an hour, and the newest three, of which one is an hour's"


def test_the_byte_ceiling_wins_over_age_but_never_takes_the_newest() -> None:
    infos = [at(n, size=100) for n in range(10)]
    surplus = surplus_checkpoints(infos, 3, 250)
    assert [info for info in infos if info not in surplus] == infos[-2:]
    assert surplus_checkpoints([at(1, size=1000)], 3, 250) == []


def test_one_that_is_let_go_of_while_they_are_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointFolder(tmp_path)
    going, kept = (store.write(LOG, offset, 1, 2, iter(records(2))) for offset in (5, 9))
    scan = os.scandir

    def scan_then_remove(folder: Path) -> list[os.DirEntry[str]]:
        entries = list(scan(folder))
        (tmp_path / going.name).unlink(missing_ok=True)
        return entries

    monkeypatch.setattr(os, "scandir", scan_then_remove)
    assert store.list() == [kept]


class Mount:
    """A file system that refuses sync of a folder, renaming, or both. on_file_sync: behind each of a file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder_sync: int | None = None
        self.renaming: int | None = None
        self.on_file_sync: Callable[[int], None] = lambda descriptor: None
        self.calls: list[str] = []
        self._fsync, self._rename = os.fsync, os.rename
        monkeypatch.setattr(os, "fsync", self._sync)
        monkeypatch.setattr(os, "rename", self._move)

    def _sync(self, descriptor: int) -> None:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._fsync(descriptor)
            self.on_file_sync(descriptor)
            return
        self.calls.append("folder")
        if self.folder_sync is not None:
            raise OSError(self.folder_sync, os.strerror(self.folder_sync))
        self._fsync(descriptor)

    def _move(self, source: Path, target: Path) -> None:
        self.calls.append("rename")
        if self.renaming is not None:
            raise OSError(self.renaming, os.strerror(self.renaming))
        self._rename(source, target)


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> Mount:
    return Mount(monkeypatch)


MOUNTS = [
    *((code, None) for code in sorted(NO_FOLDER_SYNC)),
    *((None, code) for code in sorted(NO_RENAME)),
    (errno.EINVAL, errno.EPERM),
    (errno.ENOTSUP, errno.ENOSYS),
]


@pytest.mark.req("EVS-13")
@pytest.mark.parametrize(("folder_sync", "renaming"), MOUNTS)
def test_a_mounted_object_store_keeps_checkpoints_too(
    tmp_path: Path, mount: Mount, folder_sync: int | None, renaming: int | None
) -> None:
    mount.folder_sync, mount.renaming = folder_sync, renaming
    store = CheckpointFolder(tmp_path / "mount", keep=2)
    written = [store.write(LOG, offset, 1, offset, iter(records(2_000))) for offset in (5, 8, 9)]
    assert mount.calls == ["rename", "folder"] * 3
    assert store.list() == written[1:], "those that need not be kept go"
    for info in written[1:]:
        assert store.check(info, LOG) is None and list(store.read(info)) == records(2_000)
    assert {path.name for path in (tmp_path / "mount").iterdir()} == {info.name for info in written[1:]}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "mount").iterdir())
    store.expire(9)
    fetched = store.unfinished(checkpoint_name(12, 1, 12))  # as a peer's file is kept
    fetched.write_bytes((tmp_path / "mount" / written[2].name).read_bytes())
    store.finish(fetched, checkpoint_name(12, 1, 12))
    assert [info.offset for info in store.list()] == [8, 9, 12]
    assert list(store.read(store.list()[-1])) == records(2_000)


@pytest.mark.parametrize("what", ["folder_sync", "renaming"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_what_is_no_missing_call_fails_as_ever(tmp_path: Path, mount: Mount, what: str, code: int) -> None:
    setattr(mount, what, code)
    with pytest.raises(OSError) as failed:
        CheckpointFolder(tmp_path).write(LOG, 5, 5, 5, iter(records(5)))
    assert failed.value.errno == code
    assert not [*tmp_path.glob(".*.tmp")]


@pytest.mark.parametrize("damage", ["cut", "flipped", "full"])
def test_a_file_that_reads_back_otherwise_is_none(tmp_path: Path, mount: Mount, damage: str) -> None:
    """Where nothing can be renamed it is looked at under its name, and goes if it is not what was written."""
    mount.renaming = errno.EPERM
    syncs = 0

    def damaged(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        if syncs < 2:  # the first is that of the unfinished file
            return
        if damage == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if damage == "cut":
            os.truncate(descriptor, os.fstat(descriptor).st_size - 1)
        else:
            os.pwrite(descriptor, b"\xff\xff", 200)

    mount.on_file_sync = damaged
    with pytest.raises(OSError, match="No space" if damage == "full" else "reads back otherwise"):
        CheckpointFolder(tmp_path).write(LOG, 5, 5, 5, iter(records(2_000)))
    assert syncs == 2 and [*tmp_path.iterdir()] == []


def test_a_whole_one_of_that_name_is_not_written_over_and_a_half_one_is(tmp_path: Path, mount: Mount) -> None:
    mount.renaming = errno.EPERM
    store = CheckpointFolder(tmp_path)
    info = store.write(LOG, 5, 5, 5, iter(records(100)))
    path = tmp_path / info.name
    whole = path.read_bytes()
    store.write(LOG, 5, 5, 5, iter(records(100)))
    assert path.read_bytes() == whole, "a reader may be at it"
    path.write_bytes(whole[:-1])
    store.write(LOG, 5, 5, 5, iter(records(100)))
    assert store.check(info, LOG) is None and store.list() == [info]


@pytest.mark.req("EVS-14")
def test_a_start_passes_over_one_that_was_written_half_under_its_name(tmp_path: Path) -> None:
    """A kill where nothing can be renamed: whatever is there of the file, an older checkpoint serves."""
    world, store = some_picks(), CheckpointFolder(tmp_path)
    fold, written = Fold(), []
    for batch in world.log.read(0, 1 << 30):
        for offset, data in enumerate(batch.records, batch.first_offset):
            fold.apply(offset, data, [])
            if offset in (8, 12):
                mark = fold.mark
                state = checkpoint_records(fold, world.log.log_id)
                written.append(store.write(world.log.log_id, mark.offset, mark.check, mark.time, state))
    older, newest = written
    assert start_fold(world.log, store).next_offset == newest.offset + 1
    path = tmp_path / newest.name
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:size])
        (half,) = [info for info in store.list() if info.offset == newest.offset]
        assert store.check(half, world.log.log_id) is not None, size
        with pytest.raises(LogCorrupt):
            next(store.read(half))
        start = start_fold(world.log, store)
        assert start.next_offset == older.offset + 1, size
        assert [name for name, _ in start.passed_over] == [newest.name]
