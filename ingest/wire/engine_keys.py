"""What an engine adds to the hash of a block besides its tokens: images, adapter, salt.

`extra_keys` holds one entry a block: nil, one key, or several. A key is a text, or a pair of a text
and an offset. `block_mm_infos`, where an engine sends them, hold the hashes of a block's images.

    64 hex digits                    an image: the first 16 digits as u64
    (text, offset)                   an image: the same, or the xxh3-64 of another text
    dynamo-cache-salt:<salt>         on the first block: the salt
    any other text on the first one  the adapter where it is its name, else a salt
    anything else                    nothing

Source: wire contract 5.6 and 6.1 (step 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import xxhash

from projections.identity import U64_MAX

_SALT: Final = "dynamo-cache-salt:"
_DIGEST_DIGITS: Final = 64
_HEX: Final = frozenset("0123456789abcdefABCDEF")
_TOKEN_BYTES: Final = 4


class BlockKeys(NamedTuple):
    """Of one event. images: hashes by place of the block, only of blocks that have any."""

    images: dict[int, list[int]]
    salt: str | None


def block_keys(extra_keys: Any, mm_infos: Any, adapter: str | None) -> BlockKeys:
    """Images and salt of an event's blocks.

    extra_keys, mm_infos: decoded values of any shape, None where absent. What does not fit is no key.
    """
    images: dict[int, list[int]] = {}
    salt: str | None = None
    for place, entry in enumerate(_listed(extra_keys)):
        for key in _keys_of(entry):
            image = _image_of(key)
            if image is not None:
                images.setdefault(place, []).append(image)
            elif place == 0 and isinstance(key, str) and key and key != adapter:
                salt = key.removeprefix(_SALT)
    for place, info in enumerate(_listed(mm_infos)):
        objects = info.get("mm_objects") if isinstance(info, dict) else None
        for found in _listed(objects):
            image = found.get("mm_hash") if isinstance(found, dict) else None
            if type(image) is int and image & U64_MAX not in images.get(place, ()):
                images.setdefault(place, []).append(image & U64_MAX)
    return BlockKeys(images, salt)


def hashes_with_images(
    hashes: bytes, tokens: bytes, block_size: int, seed: int, images: dict[int, list[int]]
) -> bytes:
    """Tokens hashes in which those of blocks with images are made with them, sorted.

    hashes: big-endian u64 of the same blocks without. tokens: packed little-endian u32.
    """
    anew = bytearray(hashes)
    width = block_size * _TOKEN_BYTES
    for place, found in images.items():
        if 8 * place < len(hashes):
            block = tokens[place * width : (place + 1) * width]
            added = b"".join(image.to_bytes(8, "little") for image in sorted(found))
            anew[8 * place : 8 * place + 8] = xxhash.xxh3_64_digest(block + added, seed=seed)
    return bytes(anew)


def _keys_of(entry: Any) -> Iterable[Any]:
    """Keys of a block. A text with an offset is one key, not two."""
    if isinstance(entry, str):
        return (entry,)
    keys = _listed(entry)
    is_pair = len(keys) == 2 and isinstance(keys[0], str) and type(keys[1]) is int
    return (keys,) if is_pair else keys


def _image_of(key: Any) -> int | None:
    """The u64 of an image, None where the key is none."""
    if isinstance(key, str):
        return int(key[:16], 16) if _is_digest(key) else None
    parts = _listed(key)
    if len(parts) != 2 or not isinstance(parts[0], str):
        return None
    if _is_digest(parts[0]):
        return int(parts[0][:16], 16)
    digest: int = xxhash.xxh3_64_intdigest(parts[0].encode("utf-8", "surrogatepass"))
    return digest


def _is_digest(text: str) -> bool:
    return len(text) == _DIGEST_DIGITS and _HEX.issuperset(text)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
