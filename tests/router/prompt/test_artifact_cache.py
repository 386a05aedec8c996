"""Blobs on disk: whole, private, verified at each read, never through a link or pipe; bounded reads."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from router.prompt.artifact_cache import ArtifactUnusable, BlobCache, checksum_of, read_local, verified
from router.prompt.artifact_set import ArtifactResult

DATA = b'{"version": "1.0"}'
SUM = checksum_of(DATA)


@pytest.fixture
def cache(tmp_path: Path) -> BlobCache:
    return BlobCache(tmp_path / "artifacts")


def changed(cache: BlobCache) -> ArtifactResult:
    with pytest.raises(ArtifactUnusable) as caught:
        cache.read(SUM)
    return caught.value.result


@pytest.mark.req("ART-08")
def test_a_blob_lies_under_its_digest_and_is_the_owners_alone(cache: BlobCache, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache.write(SUM, DATA)
    finally:
        os.umask(before)
    path = tmp_path / "artifacts" / "blobs" / SUM.removeprefix("blake3:")
    assert path == cache.path_of(SUM)
    assert path.read_bytes() == DATA == cache.read(SUM)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (path.parent, path.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_nothing_is_there_before_it_was_written(cache: BlobCache, tmp_path: Path) -> None:
    assert cache.read(SUM) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("ART-07")
@pytest.mark.parametrize("place", [0, len(DATA) // 2, len(DATA) - 1])
def test_a_flipped_byte_removes_the_blob(cache: BlobCache, place: int) -> None:
    cache.write(SUM, DATA)
    path = cache.path_of(SUM)
    bad = bytearray(DATA)
    bad[place] ^= 1
    path.write_bytes(bad)
    assert changed(cache) is ArtifactResult.EVICTED
    assert not path.exists()
    assert cache.read(SUM) is None
    cache.write(SUM, DATA)
    assert cache.read(SUM) == DATA


@pytest.mark.req("ART-07")
@pytest.mark.parametrize("data", [b"", DATA + b"\n", DATA[:-1]])
def test_a_blob_of_another_length_is_removed(cache: BlobCache, data: bytes) -> None:
    cache.write(SUM, DATA)
    cache.path_of(SUM).write_bytes(data)
    assert changed(cache) is ArtifactResult.EVICTED
    assert not cache.path_of(SUM).exists()


def test_a_sparse_giant_in_the_cache_is_removed_unread(cache: BlobCache) -> None:
    cache.write(SUM, DATA)
    os.truncate(cache.path_of(SUM), 1 << 40)
    assert changed(cache) is ArtifactResult.EVICTED


def test_a_link_in_the_cache_is_removed_and_never_followed(cache: BlobCache, tmp_path: Path) -> None:
    cache.write(SUM, DATA)
    path = cache.path_of(SUM)
    other = tmp_path / "other"
    other.write_bytes(DATA)
    path.unlink()
    path.symlink_to(other)
    assert changed(cache) is ArtifactResult.EVICTED
    assert other.read_bytes() == DATA and not path.is_symlink()


def test_a_pipe_in_the_cache_is_removed_without_waiting_for_its_writer(cache: BlobCache) -> None:
    cache.write(SUM, DATA)
    path = cache.path_of(SUM)
    path.unlink()
    os.mkfifo(path)
    assert changed(cache) is ArtifactResult.EVICTED
    assert not path.exists()


def test_a_write_replaces_a_link_and_leaves_its_target_alone(cache: BlobCache, tmp_path: Path) -> None:
    cache.write(SUM, DATA)
    path = cache.path_of(SUM)
    path.unlink()
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    path.symlink_to(victim)
    cache.write(SUM, DATA)
    assert victim.read_bytes() == b"mine" and not path.is_symlink() and cache.read(SUM) == DATA


def test_a_folder_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "blobs").symlink_to(tmp_path / "elsewhere")
    cache = BlobCache(tmp_path / "artifacts")
    with pytest.raises(OSError):
        cache.write(SUM, DATA)
    with pytest.raises(OSError):
        cache.read(SUM)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_an_open_folder_is_closed_to_others(cache: BlobCache) -> None:
    cache.write(SUM, DATA)
    folder = cache.path_of(SUM).parent
    folder.chmod(0o777)
    assert cache.read(SUM) == DATA
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_is_not_used(cache: BlobCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write(SUM, DATA)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(PermissionError):
        cache.read(SUM)


@pytest.mark.parametrize("text", ["../../etc/passwd", "blake3:../x", "blake3:" + "A" * 64, SUM[7:], ""])
def test_what_is_no_checksum_names_no_file(cache: BlobCache, text: str) -> None:
    for call in (lambda: cache.read(text), lambda: cache.write(text, b""), lambda: cache.path_of(text)):
        with pytest.raises(ValueError):
            call()


def test_a_full_disk_leaves_nothing_behind(cache: BlobCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write(SUM, DATA)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    other = checksum_of(b"other")
    with pytest.raises(OSError, match="No space"):
        cache.write(other, b"other")
    names = [entry.name for entry in cache.path_of(SUM).parent.iterdir()]
    assert names == [cache.path_of(SUM).name]


def test_the_least_lately_used_go_when_room_is_needed(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, bytes_max=3_000)
    blobs = [bytes([number]) * 1_000 for number in range(4)]
    for age, blob in enumerate(blobs[:3]):
        cache.write(checksum_of(blob), blob)
        os.utime(cache.path_of(checksum_of(blob)), (1_000 + age, 1_000 + age))
    assert cache.read(checksum_of(blobs[0])) == blobs[0]  # used just now
    cache.write(checksum_of(blobs[3]), blobs[3])
    kept = [cache.read(checksum_of(blob)) is not None for blob in blobs]
    assert kept == [True, False, True, True]


def test_what_an_ended_process_did_not_finish_is_removed(cache: BlobCache) -> None:
    cache.write(SUM, DATA)
    folder = cache.path_of(SUM).parent
    old, new = folder / ".x.1.0.tmp", folder / ".y.1.0.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1_000, 1_000))
    cache.write(SUM, DATA)
    assert not old.exists() and new.exists()


def test_data_is_verified() -> None:
    assert verified(DATA, SUM) == DATA
    with pytest.raises(ArtifactUnusable) as caught:
        verified(DATA + b" ", SUM)
    assert caught.value.result is ArtifactResult.CHECKSUM_MISMATCH


@pytest.mark.req("ART-03")
def test_a_local_file_is_read_also_through_links(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(DATA)
    (tmp_path / "tokenizer.json").symlink_to(tmp_path / "blob")
    assert read_local(str(tmp_path / "tokenizer.json")) == DATA


@pytest.mark.req("ART-06")
def test_a_local_file_of_the_largest_size_is_read_and_one_byte_more_is_not(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"x" * 100)
    assert len(read_local(str(path), 100)) == 100
    with pytest.raises(ArtifactUnusable) as caught:
        read_local(str(path), 99)
    assert caught.value.result is ArtifactResult.TOO_LARGE


@pytest.mark.req("ART-06")
def test_a_file_that_says_it_is_empty_is_read_no_further_than_the_ceiling() -> None:
    with pytest.raises(ArtifactUnusable) as caught:
        read_local("/proc/self/smaps", 50)
    assert caught.value.result is ArtifactResult.TOO_LARGE


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/", "/nowhere/at/all", "/x\x00y", "/x" * 5_000])
def test_what_is_no_readable_file_is_refused_without_opening_it(path: str) -> None:
    with pytest.raises(ArtifactUnusable) as caught:
        read_local(path)
    assert caught.value.result is ArtifactResult.FETCH_FAILED
    assert path[:6] not in str(caught.value)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArtifactUnusable, match="no regular file"):
        read_local(str(tmp_path / "pipe"))
