"""Bounded ZMTP 3.x subscriber as a sans-I/O machine: bytes in, messages and bytes out.

A publisher is not trusted. Whatever it declares is compared with a ceiling first, and only
then is memory taken, and never more than twice what has really arrived: a frame buffer starts
at 512 bytes and doubles while bytes come in. So a length of 2^63 - 1, a multipart message
without an end or a giant READY costs nothing but the connection.

The order on one connection, the peer's side first where both speak:

    GREETING   64 bytes each way; major version 3 or above, mechanism NULL
    HANDSHAKE  READY each way; the peer must be PUB or XPUB
    STREAMING  we send one subscription (the 3.0 form: a message of 0x01 and the topic),
               then receive messages; PING is answered, other commands are ignored

A violation raises `ZmtpRefused` once. From then on the machine is REFUSED: it takes nothing,
sends nothing and holds no memory beyond its idle buffers. Two loops read messages. The quick
one takes whole four-frame messages of our topic straight out of a chunk; whatever it does not
recognise goes to the careful one, which alone decides what is a violation.

Sources: RFC 37/ZMTP (with 23/ZMTP for the 3.0 subscription), requirement rows ZMTP-01..08.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Final

from ingest.wire.zmtp_frames import (
    COMMAND,
    GREETING,
    GREETING_BYTES,
    LONG,
    MORE,
    PONG_CONTEXT_BYTES_MAX,
    READY,
    Message,
    encode_command,
    encode_frame,
    metadata_of,
)
from ingest.wire.zmtp_limits import ID_BYTES, SUBSCRIPTION_BYTES_MAX, ZmtpLimits

_PEER_TYPES: Final = frozenset((b"PUB", b"XPUB"))


class ZmtpReason(Enum):
    """Why a peer was refused; every one closes the connection."""

    SIGNATURE = "greeting without the ZMTP signature"
    VERSION = "protocol version below 3"
    MECHANISM = "security mechanism other than NULL"
    HANDSHAKE = "something other than READY before READY"
    METADATA = "READY whose metadata do not parse"
    SOCKET_TYPE = "peer is neither PUB nor XPUB"
    PEER_ERROR = "peer sent ERROR"
    FLAGS = "reserved flag bits, or a command in several frames"
    COMMAND = "command without a proper name, or a second READY"
    COMMAND_OVERSIZED = "command above its ceiling"
    FRAME_OVERSIZED = "frame above the ceiling of its place"
    TOO_MANY_FRAMES = "message of more frames than allowed"
    MESSAGE_OVERSIZED = "message above its ceiling"


class ZmtpRefused(Exception):
    """The peer broke the protocol or a ceiling. Raised once a machine, which is then dead.

    reason: closed set, fit for a log line and a counter.
    messages: whole messages that came before the violation in the same bytes; deliver them.
    """

    def __init__(self, reason: ZmtpReason, messages: list[Message]) -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.messages = messages


class ZmtpPhase(Enum):
    """Where a connection stands."""

    GREETING = 1
    HANDSHAKE = 2
    STREAMING = 3
    REFUSED = 4


class ZmtpMachine:
    """One connection to one publisher, for one topic.

    The shell must call, in any order that fits it: `bytes_to_send` after construction and
    after every receive, and write what it returns; `receive_bytes` with whatever was read, or
    `read_into` and `receive_read` to read into the machine's own 2 KiB without a copy.
    """

    __slots__ = (
        "_body_at", "_buffer", "_command", "_filled", "_frames", "_header", "_in_body", "_lead", "_limits",
        "_message_bytes", "_more", "_outgoing", "_quick_body_max", "_read_buffer", "_size", "_topic",
        "phase", "pongs_dropped", "reason",
    )  # fmt: skip

    def __init__(self, limits: ZmtpLimits, topic: bytes) -> None:
        """topic: the bare topic, up to SUBSCRIPTION_BYTES_MAX, also the usual first frame; empty for all."""
        assert len(topic) <= SUBSCRIPTION_BYTES_MAX
        self.phase: ZmtpPhase = ZmtpPhase.GREETING
        self.reason: ZmtpReason | None = None
        self.pongs_dropped = 0
        self._limits = limits
        self._topic = topic
        self._outgoing = bytearray(GREETING)
        self._read_buffer = bytearray(limits.read_bytes)
        self._buffer = bytearray(limits.frame_buffer_bytes)
        self._filled = 0  # bytes of `_buffer` in use: a greeting, a frame's header, or its body
        self._in_body = False
        self._more = self._command = False  # of the frame whose body is awaited
        self._size = 0
        self._frames: list[bytes] = []
        self._message_bytes = 0  # declared bodies of the message under way
        # Quick loop: topic frame and the header of the id frame as one constant, then id, header, id.
        self._lead = encode_frame(topic, MORE) + bytes((MORE, ID_BYTES))
        self._header = struct.Struct(f"{len(self._lead)}s8s2s8sBB")
        self._body_at = self._header.size
        room = limits.message_bytes_max - len(topic) - 2 * ID_BYTES
        quick = len(limits.frame_bytes_max) == 4 and limits.frame_bytes_max[1:3] == (ID_BYTES, ID_BYTES)
        self._quick_body_max = min(limits.frame_bytes_max[-1], room) if quick else -1

    @property
    def buffered_bytes(self) -> int:
        """Memory held for this connection's bytes: the three buffers and the kept frames."""
        waiting = max(self._limits.write_bytes, len(self._outgoing))
        return len(self._buffer) + len(self._read_buffer) + waiting + sum(map(len, self._frames))

    @property
    def is_between_messages(self) -> bool:
        """True where an end of the stream would cut nothing."""
        return not (self._frames or self._filled or self._in_body)

    def bytes_to_send(self) -> bytes:
        """All bytes that are to be written now, in order; b"" when there are none."""
        if not self._outgoing:
            return b""
        sent = bytes(self._outgoing)
        self._outgoing = bytearray()
        return sent

    def read_into(self) -> memoryview:
        """Room for one read step. Follow with `receive_read`; the view is valid until then."""
        return memoryview(self._read_buffer)

    def receive_read(self, count: int) -> list[Message]:
        """As `receive_bytes`, for the first `count` bytes of the room that `read_into` gave."""
        return self.receive_bytes(memoryview(self._read_buffer)[:count])

    def receive_bytes(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """The whole messages that `data` completes, oldest first.

        A message has one to four frames; fewer than four is the reader's to judge (D 62).
        Raises `ZmtpRefused` at the first violation. A refused machine answers [].
        """
        messages: list[Message] = []
        if self.phase is ZmtpPhase.REFUSED:
            return messages
        chunk = data if isinstance(data, bytes) else bytes(data)
        position, end = 0, len(chunk)
        try:
            while position < end:
                if self._in_body:
                    position = self._take_body(chunk, position, messages)
                elif self.phase is ZmtpPhase.GREETING:
                    position = self._take_greeting(chunk, position)
                else:
                    if self.phase is ZmtpPhase.STREAMING and not self._filled and not self._frames:
                        position = self._take_whole_messages(chunk, position, messages)
                    position = self._take_header(chunk, position, messages)
        except _Violation as violation:
            self._refuse(violation.reason)
            raise ZmtpRefused(violation.reason, messages) from None
        return messages

    def _take_whole_messages(self, chunk: bytes, position: int, messages: list[Message]) -> int:
        """Quick loop: append every leading whole message of the usual shape; return where it stopped."""
        unpack, lead, body_at = self._header.unpack_from, self._lead, self._body_at
        body_max = self._quick_body_max
        topic, append, end = self._topic, messages.append, len(chunk)
        last = end - body_at
        while position <= last:
            begin, publisher, between, sequence, flags, size = unpack(chunk, position)
            if begin != lead or between != b"\x01\x08":
                break
            start = position + body_at
            if flags == LONG:
                start += 7  # beyond the end, `stop` is so too and the message is not whole
                size = int.from_bytes(chunk[start - 8 : start], "big")
            elif flags:
                break
            stop = start + size
            if size > body_max or stop > end:
                break
            append((topic, publisher, sequence, chunk[start:stop]))
            position = stop
        return position

    def _take_greeting(self, chunk: bytes, position: int) -> int:
        """Collect the 64 bytes; refuse as soon as a byte rules the peer out."""
        taken = chunk[position : position + GREETING_BYTES - self._filled]
        self._buffer[self._filled : self._filled + len(taken)] = taken
        self._filled += len(taken)
        greeting, filled = self._buffer, self._filled
        if greeting[0] != 0xFF or (filled > 9 and not greeting[9] & 1):
            raise _Violation(ZmtpReason.SIGNATURE)
        if filled > 10 and greeting[10] < 3:
            raise _Violation(ZmtpReason.VERSION)
        if filled == GREETING_BYTES:
            if greeting[12:32] != GREETING[12:32]:
                raise _Violation(ZmtpReason.MECHANISM)
            self._filled = 0
            self._outgoing += READY
            self.phase = ZmtpPhase.HANDSHAKE
        return position + len(taken)

    def _take_header(self, chunk: bytes, position: int, messages: list[Message]) -> int:
        """Collect flags and size of a frame, 2 or 9 bytes; admit the frame when they are whole."""
        end, buffer = len(chunk), self._buffer
        while position < end:
            buffer[self._filled] = chunk[position]
            self._filled += 1
            position += 1
            flags = buffer[0]
            if self._filled == (9 if flags & LONG else 2):
                size = int.from_bytes(buffer[1:9], "big") if flags & LONG else buffer[1]
                self._admit_frame(flags, size)
                if not size:  # an empty body needs no further byte
                    self._take_body(chunk, position, messages)
                break
        return position

    def _admit_frame(self, flags: int, size: int) -> None:
        """Compare a declared frame with every ceiling; nothing was allocated for it so far."""
        if flags > COMMAND | LONG or (flags & COMMAND and flags & MORE):
            raise _Violation(ZmtpReason.FLAGS)
        limits = self._limits
        if flags & COMMAND:
            if size > limits.command_bytes_max:
                raise _Violation(ZmtpReason.COMMAND_OVERSIZED)
        else:
            if self.phase is not ZmtpPhase.STREAMING:
                raise _Violation(ZmtpReason.HANDSHAKE)
            place = len(self._frames)
            if size > limits.frame_bytes_max[place]:
                raise _Violation(ZmtpReason.FRAME_OVERSIZED)
            if flags & MORE and place + 1 == len(limits.frame_bytes_max):
                raise _Violation(ZmtpReason.TOO_MANY_FRAMES)
            self._message_bytes += size
            if self._message_bytes > limits.message_bytes_max:
                raise _Violation(ZmtpReason.MESSAGE_OVERSIZED)
        self._more, self._command = bool(flags & MORE), bool(flags & COMMAND)
        self._size, self._filled, self._in_body = size, 0, True

    def _take_body(self, chunk: bytes, position: int, messages: list[Message]) -> int:
        """Collect a frame's body and finish the frame when it is whole."""
        size, filled = self._size, self._filled
        stop = position + size - filled
        if not filled and stop <= len(chunk):
            body = chunk[position:stop]
        else:
            stop = min(stop, len(chunk))
            self._filled = filled + stop - position
            self._grow(self._filled)
            self._buffer[filled : self._filled] = memoryview(chunk)[position:stop]
            if self._filled < size:
                return stop
            body = bytes(memoryview(self._buffer)[:size])
            if len(self._buffer) > self._limits.frame_buffer_bytes:
                self._buffer = bytearray(self._limits.frame_buffer_bytes)
        self._filled, self._in_body = 0, False
        if self._command:
            self._obey(body)
        else:
            self._frames.append(body)
            if not self._more:
                messages.append(tuple(self._frames))
                self._frames = []
                self._message_bytes = 0
        return stop

    def _grow(self, needed: int) -> None:
        """Make room for bytes that have arrived: the next power of two, never by what was declared."""
        if needed > len(self._buffer):
            grown = bytearray(1 << (needed - 1).bit_length())
            grown[: len(self._buffer)] = self._buffer
            self._buffer = grown

    def _obey(self, body: bytes) -> None:
        """Act on a command. Unknown ones are ignored; what is malformed or an ERROR is a violation."""
        if not body or not 0 < body[0] < len(body) or not body[1 : 1 + body[0]].isalpha():
            raise _Violation(ZmtpReason.COMMAND)
        name, data = body[1 : 1 + body[0]], body[1 + body[0] :]
        if name == b"ERROR":
            raise _Violation(ZmtpReason.PEER_ERROR)
        if self.phase is ZmtpPhase.HANDSHAKE:
            if name != b"READY":
                raise _Violation(ZmtpReason.HANDSHAKE)
            metadata = metadata_of(data)
            if metadata is None:
                raise _Violation(ZmtpReason.METADATA)
            if metadata.get(b"socket-type") not in _PEER_TYPES:
                raise _Violation(ZmtpReason.SOCKET_TYPE)
            self._outgoing += encode_frame(b"\x01" + self._topic)
            self.phase = ZmtpPhase.STREAMING
        elif name == b"READY":
            raise _Violation(ZmtpReason.COMMAND)
        elif name == b"PING":
            self._answer_ping(data)

    def _answer_ping(self, data: bytes) -> None:
        """Queue a PONG with the peer's context.

        A flood must not fill memory while the peer does not read: a PONG that finds no room among
        the waiting bytes is dropped, which is harmless, as any traffic is a sign of life.
        """
        if not 2 <= len(data) <= 2 + PONG_CONTEXT_BYTES_MAX:
            raise _Violation(ZmtpReason.COMMAND)
        pong = encode_command(b"PONG", data[2:])
        if len(self._outgoing) + len(pong) > self._limits.write_bytes:
            self.pongs_dropped += 1
        else:
            self._outgoing += pong

    def _refuse(self, reason: ZmtpReason) -> None:
        self.phase, self.reason = ZmtpPhase.REFUSED, reason
        self._buffer = bytearray(self._limits.frame_buffer_bytes)
        self._outgoing = bytearray()
        self._frames = []
        self._filled, self._in_body = 0, False


class _Violation(Exception):
    """Carries a reason from the place that saw it to `receive_bytes`."""

    def __init__(self, reason: ZmtpReason) -> None:
        self.reason = reason
