"""Block hashes: the vectors that three releases of Dynamo gave."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import pytest

from projections.kv.block_hash import SEED, block_hashes, seed_of, sequence_hashes

A16 = range(1, 33)
A64 = range(1000, 1128)
B = [0, 1, 2147483648, 4294967295] * 16


def packed(tokens: Iterable[int]) -> bytes:
    return array("I", tokens).tobytes()


def numbers(hashes: bytes) -> list[int]:
    return [int.from_bytes(hashes[at : at + 8]) for at in range(0, len(hashes), 8)]


@pytest.mark.req("RND-10")
@pytest.mark.field("B-050")
@pytest.mark.parametrize(
    ("lora", "salt", "seed"),
    [
        (None, None, 1337),
        ("", "", 1337),
        ("adapter-a", None, 8842669519798868182),
        ("adapter-a", "", 8842669519798868182),
        (None, "tenant-1", 13131544620552358486),
        ("adapter-a", "tenant-1", 3527470066641673715),
    ],
)
def test_the_seed_holds_adapter_and_salt(lora: str | None, salt: str | None, seed: int) -> None:
    assert seed_of(lora, salt) == seed


@pytest.mark.req("RND-09")
@pytest.mark.parametrize(
    ("tokens", "size", "lora", "salt", "blocks", "second"),
    [
        (A16, 16, None, None, [16863443419780771464, 2287610619914608821], 12466389667045779788),
        (A64, 64, None, None, [7337154364384838499, 8394412188204864904], 11788397496893737194),
        (B, 64, None, None, [2842401468694949065], None),
        (B, 16, None, None, [17753014785718228693] * 4, None),
        (A16, 16, "adapter-a", None, [4377081107200288488, 16216151377791080369], 7377467575642017039),
        (A64, 64, "adapter-a", None, [8449588511357559199, 1594161623065224650], 11466907121112090965),
        (A16, 16, None, "tenant-1", [15362812222086887632, 3775388916072002001], 3994712503774288688),
        (
            A16,
            16,
            "adapter-a",
            "tenant-1",
            [10705809790500934550, 12602935856247641818],
            16175208079497901574,
        ),
        (A64, 64, "adapter-a", "tenant-1", [8688242670934789264, 973096428479508445], 10097215255570840659),
        (range(1, 40), 16, None, None, [16863443419780771464, 2287610619914608821], 12466389667045779788),
        ([], 16, None, None, [], None),
        (range(15), 16, None, None, [], None),
    ],
)
def test_blocks_are_named_as_dynamo_names_them(
    tokens: Iterable[int],
    size: int,
    lora: str | None,
    salt: str | None,
    blocks: list[int],
    second: int | None,
) -> None:
    hashes = block_hashes(packed(tokens), size, seed_of(lora, salt))
    assert numbers(hashes) == blocks
    if second is not None:
        assert numbers(sequence_hashes(hashes)) == [blocks[0], second]


@pytest.mark.req("RND-12")
@pytest.mark.field("B-052")
def test_prompts_of_different_salts_share_no_block() -> None:
    tokens = packed(range(4096))
    seeds = [SEED, seed_of(None, "a"), seed_of(None, "b"), seed_of("a", None), seed_of("a", "b")]
    named = [frozenset(numbers(block_hashes(tokens, 16, seed))) for seed in seeds]
    assert len(frozenset().union(*named)) == 5 * 256


def test_a_longer_prompt_begins_with_the_blocks_of_the_shorter_one() -> None:
    short, long = (block_hashes(packed(range(count)), 16, SEED) for count in (100, 4000))
    assert long.startswith(short)
    assert (len(short), len(long)) == (6 * 8, 250 * 8)
