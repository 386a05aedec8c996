"""A file store as Dynamo's workers write it, and clocks and a lane for tests of its reader."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ingest.wire.fleet_keys import file_of_key

Result = TypeVar("Result")
WALL_START_US = 1_700_000_000_000_000


class InlineLane:
    """Runs calls at once, so that tests on virtual time have no threads."""

    async def call(self, function: Callable[[], Result], deadline_s: float) -> Result:
        return function()


class Clocks:
    """Wall and monotonic microseconds that move only when told to."""

    def __init__(self) -> None:
        self.wall = WALL_START_US
        self.monotonic = 5_000_000

    def pass_by(self, seconds: float) -> None:
        self.wall += int(seconds * 1e6)
        self.monotonic += int(seconds * 1e6)

    def wall_us(self) -> int:
        return self.wall

    def monotonic_us(self) -> int:
        return self.monotonic


class StoreFolder:
    """Writes, touches and deletes records as a worker does: a temporary file, then a rename."""

    def __init__(self, root: Path, clocks: Clocks) -> None:
        self.root = root
        self._clocks = clocks

    def path(self, key: str) -> Path:
        place = file_of_key(key)
        assert place is not None, key
        return self.root.joinpath(*place)

    def write(self, key: str, value: bytes) -> Path:
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.parent / f".tmp_{secrets.token_hex(8)}"
        fresh.write_bytes(value)
        os.rename(fresh, path)
        self.touch(key)
        return path

    def touch(self, key: str, age_s: float = 0.0) -> None:
        at_ns = self._clocks.wall_us() * 1000 - int(age_s * 1e9)
        os.utime(self.path(key), ns=(at_ns, at_ns))

    def remove(self, key: str) -> None:
        self.path(key).unlink()
