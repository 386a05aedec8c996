"""Events of a frame on their way into the packed columns of the log (KvBatchReceived).

Source: decision 11.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Final

from projections.events.signals import KV_EVENT_HEAD, KvOperation, StorageTier
from projections.identity import U64_MAX

DEVICE: Final = int(StorageTier.DEVICE)
EXTERNAL: Final = int(StorageTier.EXTERNAL)
STORED: Final = int(KvOperation.STORED)
REMOVED: Final = int(KvOperation.REMOVED)
_CLEARED: Final = int(KvOperation.CLEARED)

_head = KV_EVENT_HEAD.pack
_columns = tuple(struct.Struct(f">{count}Q").pack for count in range(65))


class EventPacker:
    """Collects events as columns. words: hashes so far. dropped: events that could not be read.

    Tiers are numbers of StorageTier. Raises nothing for numbers that fit the wire.
    """

    __slots__ = ("_hashes", "_heads", "dropped", "words")

    def __init__(self) -> None:
        self.dropped = 0
        self.words = 0
        self._heads: list[bytes] = []
        self._hashes: list[bytes] = []

    def columns(self) -> tuple[bytes, bytes]:
        """Heads and hashes so far."""
        return b"".join(self._heads), b"".join(self._hashes)

    def add(
        self, worker: int, rank: int, event_id: int, operation: int, tier: int, hashes: list[int]
    ) -> None:
        """A chain or a removal with its hashes in the order of the columns.

        STORED with an odd number of hashes has its parent first; REMOVED has engine hashes.
        """
        words = len(hashes)
        leads, blocks = (words & 1, words >> 1) if operation == STORED else (0, words)
        self._heads.append(_head(worker, rank, event_id, operation, tier, leads, blocks))
        try:
            self._hashes.append(_columns[words](*hashes))
        except (struct.error, IndexError):
            self._hashes.append(packed_hashes(hashes))
        self.words += words

    def stored(
        self, worker: int, rank: int, event_id: int, tier: int, parent: int | None, hashes: bytes
    ) -> None:
        """A chain. hashes: all tokens hashes, then as many engine hashes. Of none the parent is left out."""
        size = len(hashes) // 8
        leads = 0
        if parent is not None and size:
            leads = 1
            self._hashes.append((parent & U64_MAX).to_bytes(8, "big"))
        self._heads.append(_head(worker, rank, event_id, STORED, tier, leads, size >> 1))
        self._hashes.append(hashes)
        self.words += size + leads

    def removed(self, worker: int, rank: int, event_id: int, tier: int, hashes: bytes) -> None:
        """Blocks that are gone, by their engine hashes."""
        size = len(hashes) // 8
        self._heads.append(_head(worker, rank, event_id, REMOVED, tier, 0, size))
        self._hashes.append(hashes)
        self.words += size

    def cleared(self, worker: int, rank: int, event_id: int, tier: int) -> None:
        """Nothing is held any more."""
        self._heads.append(_head(worker, rank, event_id, _CLEARED, tier, 0, 0))


def packed_hashes(hashes: list[int]) -> bytes:
    """Big-endian u64 of hashes; a negative one is the u64 with its bits (B-064)."""
    if len(hashes) < len(_columns):
        try:
            return _columns[len(hashes)](*hashes)
        except struct.error:
            return _columns[len(hashes)](*[number & U64_MAX for number in hashes])
    try:
        column = array("Q", hashes)
    except OverflowError:
        column = array("Q", [number & U64_MAX for number in hashes])
    if sys.byteorder == "little":
        column.byteswap()
    return column.tobytes()
