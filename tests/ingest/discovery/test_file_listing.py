"""Looks at a file store: ages, touches, clocks that step, things that are no records, bounds."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from ingest.discovery import file_listing
from ingest.discovery.file_listing import FileListing
from ingest.discovery.settings import FileStore
from ingest.discovery.source import Watched
from projections.bounds import RECORD_VALUE_BYTES_MAX
from projections.events.discovery import Keyspace
from tests.ingest.discovery.file_store import Clocks, StoreFolder

KEY = "v1/instances/prod/backend/generate/1a"
RECORDINGS = Path(__file__).parents[2] / "recordings"


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def folder(tmp_path: Path, clocks: Clocks) -> StoreFolder:
    return StoreFolder(tmp_path, clocks)


@pytest.fixture
def listing(folder: StoreFolder, clocks: Clocks) -> FileListing:
    return listing_of(folder, clocks)


def listing_of(folder: StoreFolder, clocks: Clocks, namespace: str = "prod") -> FileListing:
    watched = [Watched(keyspace, namespace) for keyspace in Keyspace]
    return FileListing(FileStore(str(folder.root)), watched, clocks.wall_us, clocks.monotonic_us)


def changed(listing: FileListing) -> list[str]:
    return [file.key.decode() for file in listing.look().changed]


def gone(listing: FileListing) -> list[str]:
    return [key.key.decode() for _, key in listing.look().gone]


@pytest.mark.req("FILE-02")
@pytest.mark.parametrize(
    ("age_s", "is_alive"), [(0, True), (9.9, True), (10.0, False), (3600, False), (-60, True)]
)
def test_first_sight_judges_a_file_by_its_age(
    folder: StoreFolder, listing: FileListing, age_s: float, is_alive: bool
) -> None:
    folder.write(KEY, b"{}")
    folder.touch(KEY, age_s)
    assert changed(listing) == ([KEY] if is_alive else [])


@pytest.mark.req("FILE-02")
def test_touches_keep_a_key_and_silence_ends_it(
    folder: StoreFolder, clocks: Clocks, listing: FileListing
) -> None:
    folder.write(KEY, b"{}")
    assert changed(listing) == [KEY]
    for _ in range(20):
        clocks.pass_by(3)
        folder.touch(KEY)
        assert gone(listing) == []
    clocks.pass_by(9.9)
    assert gone(listing) == []
    clocks.pass_by(0.1)
    assert gone(listing) == [KEY]
    assert gone(listing) == []


@pytest.mark.parametrize("step_s", [-7200, 7200])
def test_step_of_the_wall_clock_removes_no_worker(
    folder: StoreFolder, clocks: Clocks, listing: FileListing, step_s: int
) -> None:
    folder.write(KEY, b"{}")
    assert changed(listing) == [KEY]
    folder_clock = clocks.wall
    clocks.wall += step_s * 1_000_000
    assert gone(listing) == []
    clocks.pass_by(2.9)
    assert gone(listing) == []
    clocks.pass_by(0.1)
    os.utime(folder.path(KEY), ns=((folder_clock + 3_000_000) * 1000,) * 2)  # the server's own clock
    assert gone(listing) == []
    clocks.pass_by(9)
    assert gone(listing) == []
    clocks.pass_by(1)
    assert gone(listing) == [KEY]


def test_file_server_whose_clock_is_behind_still_shows_touched_files(
    folder: StoreFolder, clocks: Clocks, listing: FileListing
) -> None:
    folder.write(KEY, b"{}")
    folder.touch(KEY, age_s=100)
    assert changed(listing) == []
    clocks.pass_by(0.5)
    folder.touch(KEY, age_s=97)
    assert changed(listing) == [KEY]


def test_file_set_back_in_time_is_judged_by_its_age(
    folder: StoreFolder, clocks: Clocks, listing: FileListing
) -> None:
    folder.write(KEY, b"{}")
    assert changed(listing) == [KEY]
    clocks.pass_by(0.5)
    folder.touch(KEY, age_s=60)
    assert gone(listing) == [KEY]


@pytest.mark.req("FILE-02")
def test_dot_names_links_folders_and_pipes_are_no_records(
    folder: StoreFolder, clocks: Clocks, listing: FileListing, tmp_path: Path
) -> None:
    real = folder.write(KEY, b"{}")
    bucket = real.parent
    (bucket / ".tmp_0123456789abcdef").write_bytes(b"{")
    (bucket / ".hidden").write_bytes(b"{}")
    os.symlink(real, bucket / "prod%2Fbackend%2Fgenerate%2F2")
    (bucket / "prod%2Fbackend%2Fgenerate%2F3").mkdir()
    os.mkfifo(bucket / "prod%2Fbackend%2Fgenerate%2F4")
    look = listing.look()
    assert [file.key.decode() for file in look.changed] == [KEY]
    assert (look.refused, look.cut) == ((), ())


def test_link_put_in_place_of_a_seen_file_is_not_followed(
    folder: StoreFolder, listing: FileListing, tmp_path: Path
) -> None:
    path = folder.write(KEY, b"{}")
    (file,) = listing.look().changed
    secret = tmp_path / "secret"
    secret.write_text("not for the log")
    path.unlink()
    os.symlink(secret, path)
    with pytest.raises(OSError):
        listing.read(file)


def test_read_gives_value_and_size_and_none_for_a_file_that_went(
    folder: StoreFolder, listing: FileListing
) -> None:
    folder.write(KEY, b"{}")
    (file,) = listing.look().changed
    found = listing.read(file)
    assert found is not None
    assert (found.key.decode(), found.value, found.size, found.revision) == (KEY, b"{}", 2, 1)
    folder.remove(KEY)
    assert listing.read(file) is None


@pytest.mark.req("MEM-01")
def test_file_above_the_ceiling_is_named_without_its_content(
    folder: StoreFolder, listing: FileListing
) -> None:
    path = folder.write(KEY, b"")
    os.truncate(path, RECORD_VALUE_BYTES_MAX + 1)
    folder.touch(KEY)
    (file,) = listing.look().changed
    found = listing.read(file)
    assert found is not None
    assert (found.value, found.size) == (None, RECORD_VALUE_BYTES_MAX + 1)


def test_known_files_beyond_a_cut_are_asked_for_by_name(
    folder: StoreFolder, clocks: Clocks, listing: FileListing, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"v1/instances/prod/b/generate/{worker}" for worker in range(4)]
    for key in keys:
        folder.write(key, b"{}")
    assert changed(listing) == keys
    monkeypatch.setattr(file_listing, "ENTRIES_MAX", 1)
    folder.remove(keys[2])
    clocks.pass_by(1)
    folder.touch(keys[0])
    look = listing.look()
    assert look.cut == (Keyspace.INSTANCES,)
    assert [file.key.decode() for file in look.changed] == [keys[0]]
    assert [key.key.decode() for _, key in look.gone] == [keys[2]]


def test_files_remembered_are_bounded(
    folder: StoreFolder, listing: FileListing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_listing, "FILES_MAX", 10)
    for worker in range(30):
        folder.write(f"v1/instances/prod/b/generate/{worker}", b"{}")
    look = listing.look()
    assert (len(look.changed), look.cut) == (10, (Keyspace.INSTANCES,))


@pytest.mark.req("FILE-02", "ETCD-04")
def test_recorded_file_names_are_found_under_their_keys(folder: StoreFolder, clocks: Clocks) -> None:
    with gzip.open(RECORDINGS / "file_names.jsonl.gz", "rt") as lines:
        names = [row["file"] if isinstance(row, dict) else row for row in map(json.loads, lines)]
    assert names
    for name in names:
        path = folder.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
        at_ns = clocks.wall_us() * 1000
        os.utime(path, ns=(at_ns, at_ns))
    look = listing_of(folder, clocks, "dynamo").look()
    assert len(look.changed) == len(set(names))
    assert look.refused == ()
    assert {file.keyspace for file in look.changed} == set(Keyspace)
    assert all(folder.path(file.key.decode()).exists() for file in look.changed)
