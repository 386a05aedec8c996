"""The memo of block hashes: what it says is what hashing says, under a ceiling."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.kv.block_hash import block_hashes
from router.prompt import hash_memo
from router.prompt.hash_memo import STRETCH_TOKENS, HashMemo

SIZES = (1, 16, 48, 64, 600)


def tokens_of(count: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(4 * count)


@settings(max_examples=200)
@given(
    st.integers(0, 4 * STRETCH_TOKENS),
    st.integers(0, 3),
    st.integers(0, 4 * STRETCH_TOKENS),
    st.sampled_from(SIZES),
    st.sampled_from([1337, 2**64 - 1]),
)
def test_a_prompt_that_begins_as_another_has_its_own_hashes(
    common: int, first: int, more: int, size: int, seed: int
) -> None:
    memo = HashMemo(1 << 16)
    for tail in (first, first + 1, first):
        tokens = tokens_of(common, 9) + tokens_of(more, tail)
        assert memo.block_hashes(tokens, size, seed) == block_hashes(tokens, size, seed)
        assert memo.size <= 1 << 16


def test_what_was_hashed_is_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    memo, hashed = HashMemo(1 << 20), []

    def spied(tokens: bytes, size: int, seed: int) -> bytes:
        hashed.append(len(tokens) // 4)
        return block_hashes(tokens, size, seed)

    monkeypatch.setattr(hash_memo, "block_hashes", spied)
    tokens = tokens_of(3 * STRETCH_TOKENS + 40, 1)
    memo.block_hashes(tokens, 16, 1337)
    assert hashed == [*[STRETCH_TOKENS] * 3, 40]
    hashed.clear()
    memo.block_hashes(tokens[: 8 * STRETCH_TOKENS], 16, 1337)
    assert hashed == [0]
    memo.block_hashes(tokens, 16, 7)
    assert hashed == [0, *[STRETCH_TOKENS] * 3, 40], "another seed, other hashes"


def test_two_stretches_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xxhash.xxh3_64_digest", lambda _: b"the same")
    memo = HashMemo(1 << 20)
    one, other = tokens_of(STRETCH_TOKENS, 1), tokens_of(STRETCH_TOKENS, 2)
    monkeypatch.setattr(hash_memo, "block_hashes", lambda tokens, *_: tokens[:8])
    for tokens in (one, other, one + other, other + one):
        wanted = b"".join(tokens[at : at + 8] for at in range(0, len(tokens), 4 * STRETCH_TOKENS))
        assert memo.block_hashes(tokens, 16, 1337) == wanted
    assert memo.size < 4 * STRETCH_TOKENS + 1000, "one is kept, and counted once"


def test_what_is_used_stays_while_others_go() -> None:
    memo, used = HashMemo(1 << 16), tokens_of(STRETCH_TOKENS, 0)
    memo.block_hashes(used, 16, 1337)
    for number in range(1, 200):
        memo.block_hashes(tokens_of(STRETCH_TOKENS, number), 16, 1337)
        memo.block_hashes(used, 16, 1337)
        assert memo.size <= 1 << 16
    kept = [
        one[0] for tables in (memo._young, memo._old) for table in tables.values() for one in table.values()
    ]
    assert used in kept and len(kept) < 40
