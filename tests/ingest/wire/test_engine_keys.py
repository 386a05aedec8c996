"""Keys of an engine's blocks: images, salt, adapter, and what is none of them."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
import xxhash

from ingest.wire.engine_keys import block_keys, hashes_with_images
from projections.kv.block_hash import block_hashes, seed_of

DIGEST = "00000000deadbeef" + "7" * 48
IMAGE = 0xDEADBEEF
NAMED = xxhash.xxh3_64_intdigest(b"image-1")


@pytest.mark.parametrize(
    ("extra_keys", "images"),
    [
        (None, {}),
        ([], {}),
        ([None, None], {}),
        ([DIGEST, None], {0: [IMAGE]}),
        ([None, [DIGEST]], {1: [IMAGE]}),
        ([[DIGEST, 4]], {0: [IMAGE]}),
        ([[[DIGEST, 4], ["image-1", 9]]], {0: [IMAGE, NAMED]}),
        ([None, ["image-1", 9]], {1: [NAMED]}),
        ([[5, 6, None, {"a": 1}, [1, 2], ["x"]]], {}),
        ("text", {}),
        ({"a": 1}, {}),
    ],
)
def test_images_are_found_by_their_place(extra_keys: Any, images: dict[int, list[int]]) -> None:
    assert block_keys(extra_keys, None, None).images == images


def test_images_of_the_other_list_are_added_once() -> None:
    infos = [None, {"mm_objects": [{"mm_hash": 5, "offsets": []}, {"mm_hash": -1}, {"x": 1}, 7]}, 8, {}]
    assert block_keys(None, infos, None).images == {1: [5, 2**64 - 1]}
    assert block_keys([DIGEST], [{"mm_objects": [{"mm_hash": IMAGE}]}], None).images == {0: [IMAGE]}


@pytest.mark.field("B-052")
@pytest.mark.parametrize(
    ("extra_keys", "adapter", "salt"),
    [
        (["dynamo-cache-salt:tenant-1"], None, "tenant-1"),
        ([["dynamo-cache-salt:tenant-1", "a"]], "a", "tenant-1"),
        ([["a"]], "a", None),
        (["a"], None, "a"),
        ([None, "a"], None, None),
        ([""], None, None),
    ],
)
def test_a_text_on_the_first_block_is_the_adapter_or_a_salt(
    extra_keys: Any, adapter: str | None, salt: str | None
) -> None:
    assert block_keys(extra_keys, None, adapter).salt == salt


def test_blocks_with_images_have_the_recorded_hashes() -> None:
    tokens = array("I", range(1, 33)).tobytes()
    plain = block_hashes(tokens, 16, seed_of(None, None))
    one = hashes_with_images(plain, tokens, 16, 1337, {0: [0xDEADBEEF]})
    two = hashes_with_images(plain, tokens, 16, 1337, {0: [5, 3], 9: [1]})
    assert int.from_bytes(one[:8], "big") == 14529151895984176542
    assert int.from_bytes(two[:8], "big") == 14035768524119421418
    assert one[8:] == two[8:] == plain[8:] == (2287610619914608821).to_bytes(8, "big")
