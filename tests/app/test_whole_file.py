"""A file that was asked for is there whole or not at all, and faults name it."""

from __future__ import annotations

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
