"""What is pinned are the files that lie here."""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from deploy.demo.pins import PINNED_FILES, pins_of


def test_pins_follow_the_bytes_of_the_files(tmp_path: Path) -> None:
    for name in PINNED_FILES:
        (tmp_path / name).write_text(name)
    assert pins_of(tmp_path) == tuple(f"blake3:{blake3(name.encode()).hexdigest()}" for name in PINNED_FILES)
    assert len(set(pins_of())) == len(PINNED_FILES)
