"""A file that was asked for is there whole or not at all, and faults name it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from app.whole_file import unfinished_name, whole_file


def test_it_is_there_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with whole_file(path) as unfinished:
        unfinished.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt, OSError(28, "No space left on device")])
def test_nothing_is_left_of_a_block_that_ends_by_a_fault(tmp_path: Path, fault: BaseException) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(BaseException) as raised, whole_file(path) as unfinished:  # noqa: PT012
        unfinished.write_text("half")
        raise fault
    assert list(tmp_path.iterdir()) == []
    if isinstance(raised.value, OSError):
        assert (raised.value.errno, raised.value.filename) == (28, str(path))


def test_faults_name_the_file_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "no" / "a.txt"
    with pytest.raises(FileNotFoundError) as missing, whole_file(path) as unfinished:
        unfinished.write_text("x")
    assert missing.value.filename == str(path)
    with pytest.raises(IsADirectoryError) as folder, whole_file(tmp_path):
        pass
    assert folder.value.filename == str(tmp_path)
    with pytest.raises(IsADirectoryError):
        unfinished_name(tmp_path)


def test_what_is_no_ordinary_file_is_refused_and_stays(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(OSError, match="no ordinary file") as refused, whole_file(path) as unfinished:
            unfinished.write_text("x")
        assert refused.value.filename == str(path)
    assert stat.S_ISFIFO(pipe.lstat().st_mode) and link.is_symlink()


def test_of_a_link_the_file_is_replaced_that_it_leads_to(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder / "a.txt")
    for text in ("made", "replaced"):
        with whole_file(link) as unfinished:
            unfinished.write_text(text)
        assert link.is_symlink() and (folder / "a.txt").read_text() == text
    assert [path.name for path in folder.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("name", ["a" * 255, "\u00fc" * 127])
def test_a_name_may_be_as_long_as_file_systems_take_it(tmp_path: Path, name: str) -> None:
    with whole_file(tmp_path / name) as unfinished:
        unfinished.write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == [name]
