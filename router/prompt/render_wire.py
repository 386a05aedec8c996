"""Messages between a router and its render processes: one frame each way, in turns.

    u32 length of the rest | u8 kind | u32 length of the head | head | body

Little-endian. The length is compared with a ceiling before anything is read: what a process
answers is as hostile as the template that it runs. Kinds tell what head and body hold:

    TEMPLATE    JSON {key, engine, config, template: lengths or null}   tokenizer_config, template
    RENDER      u8 flags, u32 bytes of messages, of tools, key          JSON: messages (or a SimpleChat),
                                                                        tools, variables
    TOKENIZER   key                                                     tokenizer.json
    ENCODE      key                                                     JSON [[is first, text], ...]

    DONE        of ENCODE: u32 a segment, how many tokens; of TOKENIZER: JSON of a SplitPlan
                                                    rendered text, or packed little-endian u32
    FAILED      a short reason
    UNKNOWN     the key is not loaded here (any more)
    TOO_LARGE   the text or the tokens are above their ceiling
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct
from typing import Final, NamedTuple

PREFIX: Final = Struct("<IBI")
LENGTH_BYTES: Final = 4
RENDER_HEAD: Final = Struct("<BII")
_REST: Final = Struct("<BI")


class Kind(IntEnum):
    """What a frame is. From 16 on: answers."""

    TEMPLATE = 1
    RENDER = 2
    TOKENIZER = 3
    ENCODE = 4
    DONE = 16
    FAILED = 17
    UNKNOWN = 18
    TOO_LARGE = 19


class RenderFlag(IntFlag):
    """Of a RENDER frame, as in RenderInput."""

    ADDS_PROMPT = 1
    CONTINUES = 2
    IS_PLAIN = 4
    IS_SIMPLE = 8


class Frame(NamedTuple):
    """A received frame."""

    kind: Kind
    head: bytes
    body: bytes


class FrameBroken(Exception):
    """The bytes are no frame, or one above its ceiling."""


def prefix_of(kind: Kind, head: bytes, body_bytes: int) -> bytes:
    """What goes before the body: prefix and head."""
    return PREFIX.pack(_REST.size + len(head) + body_bytes, kind, len(head)) + head


def length_of(data: bytes | bytearray | memoryview, bytes_max: int) -> int:
    """Bytes that follow the first four. Raises FrameBroken above bytes_max."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if not _REST.size <= length <= bytes_max:
        raise FrameBroken("a frame of another size")
    return length


def frame_of(rest: bytes | bytearray | memoryview) -> Frame:
    """The frame whose bytes behind the length these are. Raises FrameBroken."""
    kind, head_bytes = _REST.unpack_from(rest)
    split = _REST.size + head_bytes
    if split > len(rest):
        raise FrameBroken("a head beyond its frame")
    try:
        return Frame(Kind(kind), bytes(rest[_REST.size : split]), bytes(rest[split:]))
    except ValueError:
        raise FrameBroken("a frame of no kind") from None
