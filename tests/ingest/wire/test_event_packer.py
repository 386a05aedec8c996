"""Packing of events: heads and hashes in order, numbers of any sign as their 64 bits."""

from __future__ import annotations

import pytest

from ingest.wire.event_packer import DEVICE, EXTERNAL, EventPacker, packed_hashes
from projections.events.signals import KvOperation, StorageTier
from tests.ingest.wire.kv_messages import Told, told

STORED, REMOVED, CLEARED = KvOperation


def test_events_come_out_as_they_went_in() -> None:
    packer = EventPacker()
    packer.stored(1, 2, 3, DEVICE, 9, packed_hashes([5, 6, 7, 8]))
    packer.removed(1, 2, 4, EXTERNAL, packed_hashes([7]))
    packer.cleared(1, 3, 2**64 - 1, DEVICE)
    assert told(*packer.columns()) == [
        Told(1, 2, 3, STORED, StorageTier.DEVICE, 9, (5, 6), (7, 8)),
        Told(1, 2, 4, REMOVED, StorageTier.EXTERNAL, None, (), (7,)),
        Told(1, 3, 2**64 - 1, CLEARED, StorageTier.DEVICE, None, (), ()),
    ]
    assert packer.words == 6


def test_hashes_in_the_order_of_the_columns_pack_alike() -> None:
    packer, apart = EventPacker(), EventPacker()
    packer.add(1, 2, 3, STORED, DEVICE, [9, 5, 6, -7, 8])
    apart.stored(1, 2, 3, DEVICE, 9, packed_hashes([5, 6, -7, 8]))
    packer.add(1, 2, 4, STORED, EXTERNAL, [])
    apart.stored(1, 2, 4, EXTERNAL, 9, b"")
    packer.add(1, 2, 5, STORED, DEVICE, [*range(200)])
    apart.stored(1, 2, 5, DEVICE, None, packed_hashes([*range(200)]))
    packer.add(1, 2, 6, REMOVED, DEVICE, [7, 8, 9])
    apart.removed(1, 2, 6, DEVICE, packed_hashes([7, 8, 9]))
    assert packer.columns() == apart.columns()
    assert packer.words == apart.words


def test_the_parent_of_no_blocks_is_left_out() -> None:
    packer = EventPacker()
    packer.stored(1, 2, 3, DEVICE, 9, b"")
    assert told(*packer.columns()) == [Told(1, 2, 3, STORED, StorageTier.DEVICE, None, (), ())]


@pytest.mark.field("B-064")
@pytest.mark.parametrize("count", [1, 3, 64, 65, 1000])
def test_hashes_of_either_sign_are_64_bits_big_endian(count: int) -> None:
    signed = [-(2**63) + n for n in range(count)]
    unsigned = [2**63 + n for n in range(count)]
    expected = b"".join(number.to_bytes(8, "big") for number in unsigned)
    assert packed_hashes(signed) == packed_hashes(unsigned) == expected
    assert packed_hashes([]) == b""
