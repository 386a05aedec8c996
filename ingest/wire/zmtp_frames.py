"""What ZMTP 3.0 peers write: greeting, commands, frames of messages, and the metadata of READY.

Plain functions and constants that both the subscriber machine and the peers in tests use.
Nothing here decides what is allowed; `ingest.wire.zmtp` does.

A frame is one octet of flags, a size of one octet or (LONG) eight in network order, and the
body. A command is one frame: length of its name, name, data. Source: RFC 37/ZMTP, "Framing".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

GREETING_BYTES: Final = 64
PONG_CONTEXT_BYTES_MAX: Final = 16  # RFC 37, "Connection Heartbeating"

# Flags of a frame; all other bits must be zero.
MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4

GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY: Final = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"

Message = tuple[bytes, ...]


def encode_frame(body: bytes, flags: int = 0) -> bytes:
    """One frame: flags, size in its shortest form, body. LONG is added where it is needed."""
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | LONG,)) + len(body).to_bytes(8, "big") + body


def encode_message(frames: Sequence[bytes]) -> bytes:
    """The frames of one message as a publisher writes them; at least one frame."""
    *leading, last = frames
    return b"".join([encode_frame(body, MORE) for body in leading]) + encode_frame(last)


def decode_message(data: bytes) -> Message | None:
    """The frames that `encode_message` wrote as `data`, None where it is no one whole message.

    A frame is bounded by the data it must lie in, whatever its size field says.
    """
    frames: list[bytes] = []
    position = 0
    flags = MORE
    while flags & MORE:
        if position >= len(data):
            return None
        flags = data[position]
        body_at = position + (9 if flags & LONG else 2)
        stop = body_at + int.from_bytes(data[position + 1 : body_at], "big")
        if flags & ~(MORE | LONG) or stop > len(data) or body_at > len(data):
            return None
        frames.append(data[body_at:stop])
        position = stop
    return tuple(frames) if position == len(data) else None


def encode_command(name: bytes, data: bytes = b"") -> bytes:
    """One command frame; `name` is 1 to 255 letters."""
    return encode_frame(bytes((len(name),)) + name + data, COMMAND)


def encode_ready(socket_type: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """A READY with its Socket-Type first; `more` are further (name, value) properties."""
    data = b""
    for name, value in ((b"Socket-Type", socket_type), *more):
        data += bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value
    return encode_command(b"READY", data)


def metadata_of(data: bytes) -> dict[bytes, bytes] | None:
    """Properties of a READY, names in lower case, or None where they do not parse.

    data: what follows the command's name, already below its ceiling. A value is bounded by
    the data it must lie in, whatever its length field says. A name given twice is refused,
    as two readers could take two different meanings from it.
    """
    properties: dict[bytes, bytes] = {}
    position = 0
    while position < len(data):
        name_end = position + 1 + data[position]
        value_at = name_end + 4
        stop = value_at + int.from_bytes(data[name_end:value_at], "big")
        name = data[position + 1 : name_end].lower()
        if not name or stop > len(data) or name in properties:
            return None
        properties[name] = data[value_at:stop]
        position = stop
    return properties
