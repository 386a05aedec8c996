"""Big frames column by column: only the exact form is read, and every byte outside the hashes counts."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from ingest.wire.event_columns import BLOCKS_MIN, EVENT_BYTES_MIN, array_head, usual_columns
from tests.ingest.wire.kv_messages import WORKER, event, removed, stored, told

WIDE = 2**63


def big(blocks: int = BLOCKS_MIN, parent: int | None = WIDE + 99) -> dict[str, Any]:
    return stored(*((WIDE + n, WIDE + 2 * n) for n in range(blocks)), parent=parent)


def packed(*events: dict[str, Any]) -> bytes:
    data: bytes = msgpack.packb([*events])
    return data


def test_a_big_store_is_read() -> None:
    columns = usual_columns(packed(event(300, big(), 70_000)))
    assert columns is not None
    (one,) = told(*columns)
    assert (one.worker_id, one.dp_rank, one.event_id, one.parent) == (WORKER, 70_000, 300, WIDE + 99)
    assert one.tokens == tuple(WIDE + 2 * n for n in range(BLOCKS_MIN))
    assert one.engines == tuple(WIDE + n for n in range(BLOCKS_MIN))


def test_stores_and_removals_of_a_frame_keep_their_order_and_their_own_hashes() -> None:
    gone = removed(*(WIDE + 3 * n for n in range(400)))
    columns = usual_columns(packed(event(1, big(150, None)), event(2, gone, 1), event(3, big(160))))
    assert columns is not None
    first, second, third = told(*columns)
    assert (len(first.tokens), first.parent, first.engines[-1]) == (150, None, WIDE + 149)
    assert (second.dp_rank, second.engines[-1]) == (1, WIDE + 3 * 399)
    assert (len(third.tokens), third.parent, third.engines[-1]) == (160, WIDE + 99, WIDE + 159)


def test_removals_alone_are_read() -> None:
    columns = usual_columns(packed(event(1, removed(*(WIDE + n for n in range(2000))))))
    assert columns is not None
    assert len(told(*columns)[0].engines) == 2000


def test_any_byte_of_the_skeleton_that_differs_sends_the_frame_the_other_way() -> None:
    data = packed(event(1, big()))
    whole = usual_columns(data)
    assert whole is not None
    start = data.index(b"\x83\xaablock_hash", 200)
    inside = {*range(13, 21), *range(34, 42)}  # of a block: the two hashes
    for place in range(57):
        changed = bytearray(data)
        changed[start + place] ^= 1
        found = usual_columns(bytes(changed))
        if place in inside:
            assert found is not None
            assert found != whole
        else:
            assert found is None, place


@pytest.mark.parametrize(
    "events",
    [
        [event(1, stored((WIDE, 5), *((WIDE + n, WIDE) for n in range(BLOCKS_MIN))))],
        [event(1, removed(5, *(WIDE + n for n in range(2000))))],
        [event(1, big(), storage_tier="disk")],
        [event(1, big(), residency_domain="cache_owner")],
        [event(1, big(), session_id="s")],
        [event(1, big(), 2**32 - 1)],
        [event(1, big(), 2**32)],
        [event(1, big(parent=5))],
        [event(1, big(1000)), *(event(n, "cleared") for n in range(2, 9))],
        [dict(reversed(event(1, big()).items()))],
        [list(event(1, big()).values())],
    ],
    ids=["short hash", "short removed", "tier", "owner", "more keys", "unset rank", "wide rank",
         "short parent", "cleared", "order", "positional"],
)  # fmt: skip
def test_what_is_not_exactly_of_the_usual_form_goes_the_other_way(events: list[Any]) -> None:
    assert usual_columns(msgpack.packb(events)) is None


def test_small_frames_go_the_other_way() -> None:
    assert usual_columns(packed(event(1, big(BLOCKS_MIN - 1)))) is None
    assert usual_columns(packed(*(event(n, big(12)) for n in range(64)))) is None
    assert EVENT_BYTES_MIN > 57 * 12


@pytest.mark.parametrize("cut", [1, 8, 9, 57, 7000])
def test_a_frame_that_ends_early_or_late_goes_the_other_way(cut: int) -> None:
    data = packed(event(1, big()), event(2, removed(*(WIDE + n for n in range(500)))))
    assert usual_columns(data) is not None
    assert usual_columns(data[:-cut]) is None
    assert usual_columns(data + bytes(cut)) is None


def test_bytes_that_are_no_array_go_the_other_way() -> None:
    for data in (b"", b"\x90", b"\xc0", b"\x81" + bytes(5000), b"\xdd\xff\xff\xff\xff" + bytes(5000)):
        assert usual_columns(data) is None


@pytest.mark.parametrize(
    ("data", "head"),
    [
        (b"\x93", (3, 1)),
        (b"\xdc\x01\x02", (258, 3)),
        (b"\xdd\x00\x01\x00\x00", (65_536, 5)),
        (b"\x83", (0, 0)),
        (b"", (0, 0)),
        (b"\xc0", (0, 0)),
    ],
)
def test_the_head_of_an_array_tells_its_length(data: bytes, head: tuple[int, int]) -> None:
    assert array_head(data) == array_head(memoryview(data)) == head
