"""A chat of roles and texts alone, with its texts apart: how a usual chat goes to a render process.

    u32 bytes of the roles | roles, a JSON list | mark | text | mark | text | ...

Most of a long prompt is text, and no template language reads a text as fast as it copies one. So
texts go as they are, joined by a mark that stands in none of them: MARK_CHARACTERS drawn by
chance once in a router's life, which no client ever sees. What is left, the roles, is the same
for many chats, so whoever renders can keep what it made of them.

Source: measured by `bench/prompt.py`; requirement row RND-08.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import orjson

MARK_CHARACTERS: Final = 34
_ROLES_BYTES: Final = Struct("<I")


class SimpleChat(NamedTuple):
    """roles: a JSON list, one for each text. texts: joined by `mark`."""

    roles: bytes
    mark: str
    texts: str

    def messages(self) -> list[dict[str, Any]]:
        """As messages."""
        roles = orjson.loads(self.roles)
        pairs = zip(roles, self.texts.split(self.mark), strict=True)
        return [{"role": role, "content": text} for role, text in pairs]


def new_mark() -> str:
    """A mark that nobody can guess: 128 bits of chance between two control characters."""
    return f"\x1e{os.urandom(16).hex()}\x1e"


def packed(messages: Sequence[dict[str, Any]], mark: str) -> bytes:
    """Messages, at least one, of a role and a text each. Raises UnicodeEncodeError for a lone surrogate."""
    roles = orjson.dumps([message["role"] for message in messages])
    texts = mark.join([message["content"] for message in messages])
    return b"".join((_ROLES_BYTES.pack(len(roles)), roles, mark.encode(), texts.encode()))


def unpacked(data: memoryview) -> SimpleChat:
    """What `packed` packed."""
    (roles_bytes,) = _ROLES_BYTES.unpack_from(data)
    split = _ROLES_BYTES.size + roles_bytes
    begin = split + MARK_CHARACTERS
    mark, texts = str(data[split:begin], "ascii"), str(data[begin:], "utf-8")
    return SimpleChat(bytes(data[_ROLES_BYTES.size : split]), mark, texts)
