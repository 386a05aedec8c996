"""A spill in memory: for tests of the machine and for simulations."""

from __future__ import annotations

from collections import deque


class MemorySpill:
    """Takes chunks while there is room and `is_open`. most: bytes that it held at most."""

    def __init__(self, bytes_max: int = 1 << 40) -> None:
        self.bytes_max = bytes_max
        self.is_open = True
        self.chunks: deque[bytes] = deque()
        self.most = 0

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.chunks))

    def put(self, chunk: bytes) -> bool:
        if not self.is_open or self.size_bytes + len(chunk) > self.bytes_max:
            return False
        self.chunks.append(chunk)
        self.most = max(self.most, self.size_bytes)
        return True

    def take(self) -> bytes:
        return self.chunks.popleft()

    def clear(self) -> None:
        self.chunks.clear()
