"""Hashes of token blocks: the names under which workers report what they cache.

A prompt's tokens are cut into blocks of the worker's block size, an incomplete tail is
dropped, and each block is named by the xxh3-64 of its tokens as little-endian u32. The seed
holds the adapter and the cache salt, so prompts of different adapters or tenants never share
a name (RND-12). A chain of blocks has a second name, its sequence hash, that also tells what
came before; mock workers use it as their engine hash.

Tokens come packed and hashes go packed, as the log and the index carry them: a digest's bytes
are big-endian already, and no number is made of any of them.

Sources: wire contract section 6, whose vectors are the tests; requirement rows RND-09, RND-10.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import Final

import xxhash

SEED: Final = 1337
TOKEN_BYTES: Final = 4  # little-endian u32
HASH_BYTES: Final = 8  # big-endian u64
_LORA_SEED: Final = 0
_SALT_SEED: Final = 1
_MASK: Final = (1 << 64) - 1
_SPLITTERS: Final = 512  # remembered, one for each (blocks, block size)
_PAIR: Final = Struct("<QQ")


def seed_of(lora_name: str | None, salt: str | None) -> int:
    """Seed of a request's block hashes, 0..2^64-1; an empty text counts as absent."""
    seed = SEED
    if lora_name:
        seed += xxhash.xxh3_64_intdigest(lora_name.encode("utf-8", "surrogatepass"), seed=_LORA_SEED)
    if salt:
        seed += xxhash.xxh3_64_intdigest(salt.encode("utf-8", "surrogatepass"), seed=_SALT_SEED)
    return seed & _MASK


def block_hashes(tokens: bytes, block_size: int, seed: int) -> bytes:
    """Packed big-endian tokens hashes of the complete blocks.

    tokens: packed little-endian u32. block_size: tokens of a block, at least 1. Returns
    8 bytes a block, nothing for fewer tokens than one block.
    """
    width = block_size * TOKEN_BYTES
    count = len(tokens) // width
    if not count:
        return b""
    return b"".join(map(xxhash.xxh3_64_digest, _splitter(count, width)(tokens), repeat(seed)))


def sequence_hashes(hashes: bytes) -> bytes:
    """Packed big-endian sequence hashes of a chain of tokens hashes, as many as there are.

    The first equals its tokens hash; each further one is the xxh3-64, with the constant seed,
    of the one before and its own tokens hash, both as little-endian u64.
    """
    chained: list[int] = []
    for at in range(0, len(hashes), HASH_BYTES):
        tokens_hash = int.from_bytes(hashes[at : at + HASH_BYTES])
        if chained:
            tokens_hash = xxhash.xxh3_64_intdigest(_PAIR.pack(chained[-1], tokens_hash), seed=SEED)
        chained.append(tokens_hash)
    return b"".join(one.to_bytes(HASH_BYTES) for one in chained)


@lru_cache(maxsize=_SPLITTERS)
def _splitter(count: int, width: int) -> Callable[[bytes], tuple[bytes, ...]]:
    """Cuts the first count * width bytes into blocks."""
    return Struct(f"{width}s" * count).unpack_from
