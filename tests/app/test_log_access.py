"""How the owner reaches the embedded log: its lock, its readers, its checkpoints, its upkeep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app import log_access
from app.checkpoint_store import CheckpointFolder
from app.config_model import Config
from app.log_access import SOCKET_NAME, OwnedLog, checkpoints_in
from app.log_places import checkpoint_folder
from ingest.log.raw_frames import KeptFrames, raw_digest
from ingest.log.socket_store import SocketStore
from projections.events.ports import LogError
from tests.log_suite import number_of, read_all, record


def config_of(data: Path, **checkpoints: object) -> Config:
    return Config.model_validate({"checkpoints": {"bytes": "16MiB", **checkpoints}})


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[OwnedLog]:
    access = OwnedLog(tmp_path, config_of(tmp_path))
    yield access
    access.close()


def test_what_is_written_is_read_by_the_owner_and_by_readers_of_their_own(owned: OwnedLog) -> None:
    owned.store.commit([record(1), record(2)])
    reader = owned.open_reader()
    try:
        for one in (owned.reader, reader):
            assert [number_of(data) for _, data in read_all(one, 0)] == [1, 2]
    finally:
        reader.close()
    assert owned.room is not None


@pytest.mark.req("EVS-10")
def test_other_processes_append_through_its_socket_and_are_counted(owned: OwnedLog) -> None:
    store = SocketStore(owned.data / SOCKET_NAME, owned.open_reader())
    try:
        assert store.commit([record(5)]) == 0
        figures = owned.figures()
        assert figures is not None
        assert (figures.routers, figures.turned_away) == (1, 0)
        assert 0 < figures.stored_bytes <= figures.ceiling_bytes
    finally:
        store.close()
    assert [number_of(data) for _, data in read_all(owned.reader, 0)] == [5]


def test_raw_frames_go_to_the_data_directory(owned: OwnedLog) -> None:
    raw = owned.raw_frames(config_of(owned.data))
    assert raw is not None
    raw.put(5, b"frame", 1)
    raw.close()
    kept = KeptFrames(owned.data, owned.reader.log_id)
    assert kept.get(5, raw_digest(b"frame")) == b"frame"


def test_a_data_directory_has_one_owner_and_is_let_go_at_the_end(tmp_path: Path) -> None:
    first = OwnedLog(tmp_path, config_of(tmp_path))
    with pytest.raises(LogError):
        OwnedLog(tmp_path, config_of(tmp_path))
    first.close()
    OwnedLog(tmp_path, config_of(tmp_path)).close()


def test_a_socket_that_cannot_be_made_lets_the_lock_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(36, "File name too long")

    with monkeypatch.context() as patched:
        patched.setattr(log_access, "OwnerSocket", refused)
        with pytest.raises(OSError, match="too long"):
            OwnedLog(tmp_path, config_of(tmp_path))
    OwnedLog(tmp_path, config_of(tmp_path)).close()


def test_a_log_that_keeps_less_than_a_day_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log_access, "log_horizon_seconds", lambda _: 7_200.0)
    OwnedLog(tmp_path, config_of(tmp_path)).close()
    assert "keeps less than a day" in capsys.readouterr().out


@pytest.mark.req("EVS-14")
def test_retention_goes_no_further_than_kept_checkpoints_allow(tmp_path: Path) -> None:
    access = OwnedLog(tmp_path, config_of(tmp_path, keep=2))
    try:
        floors = []
        for offset in (10, 20, 30):
            access.checkpoints.write(access.log.log_id, offset, 0, offset, iter([]))
            access.upkeep()
            floors.append(access.log.retention_floor)
        assert floors == [0, 10, 20], "with fewer than it keeps, nothing may go"
        access.give_up()
        assert access.store.commit([record(1)]) == 0, "there is nobody that a commit could wait for"
    finally:
        access.close()


def test_checkpoints_lie_in_the_data_directory_or_where_replicas_share_them(tmp_path: Path) -> None:
    own = checkpoints_in(tmp_path, config_of(tmp_path), 1 << 30)
    own.write(bytes(16), 1, 1, 1, iter([]))
    assert CheckpointFolder(checkpoint_folder(tmp_path)).list()
    shared = tmp_path / "shared"
    one, other = (
        checkpoints_in(tmp_path / name, config_of(tmp_path, folder=str(shared)), 1 << 30)
        for name in ("a", "b")
    )
    written = one.write(bytes(16), 7, 7, 7, iter([]))
    assert other.list() == [written]
