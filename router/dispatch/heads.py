"""Heads of a backend's answers, and the framing of what follows them.

Strict where leniency would let one answer be read as two: both framings at once, two
different lengths, a chunk size that is no plain hex number and a bare line feed are
refused, and the connection with them (RFC 9112, 6.3 and 7.1). Everything is bounded.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from projections.bounds import KIB

HEAD_BYTES_MAX: Final = 64 * KIB
HEADERS_MAX: Final = 256
CHUNK_LINE_BYTES_MAX: Final = 1 * KIB
TRAILER_BYTES_MAX: Final = 16 * KIB
LINES_REMEMBERED: Final = 512  # header lines; each is within HEAD_BYTES_MAX
SIZES_REMEMBERED: Final = 4096  # chunk sizes as they are spelled

_OF_FRAMING: Final = frozenset((b"content-length", b"transfer-encoding", b"connection"))

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n\0]*)?\Z")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*\Z")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_PLAIN_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}\Z")
_PLAIN_SIZE_BYTES_MAX: Final = 17  # with its line end


class HeadRefused(Exception):
    """A backend's answer is not readable HTTP/1.1. Says which rule, no content."""


class Framing(Enum):
    """How the end of a body is known."""

    NONE = 1
    LENGTH = 2
    CHUNKED = 3
    UNTIL_CLOSE = 4


class AnswerHead(NamedTuple):
    """Status, headers as they came, and the body's framing. length: for LENGTH only."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    framing: Framing
    length: int
    keep_alive: bool

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by lower case name."""
        for key, value in self.headers:
            if len(key) == len(name) and key.lower() == name:
                return value
        return None


def parse_head(data: bytes, *, bodiless: bool = False) -> AnswerHead:
    """The head in `data`, the bytes before the blank line. bodiless: answer to a HEAD.

    Raises HeadRefused.
    """
    first, *lines = data.split(b"\r\n")
    status_line = _STATUS.match(first)
    if status_line is None:
        raise HeadRefused("status line")
    if len(lines) > HEADERS_MAX:
        raise HeadRefused("too many headers")
    status = int(status_line[2])
    headers = []
    lengths: set[bytes] = set()
    codings: list[bytes] = []
    tokens = b""
    for line in lines:
        header, lower = _header(line)
        headers.append(header)
        if lower is None:
            continue
        value = header[1]
        if lower == b"content-length":
            lengths.add(value)
        elif lower == b"transfer-encoding":
            codings.append(value.lower())
        elif lower == b"connection":
            tokens += b"," + value.lower()
    framing, length = _framing(status, lengths, codings, bodiless)
    named = {token.strip() for token in tokens.split(b",")}
    keep_alive = b"close" not in named and (status_line[1] == b"1" or b"keep-alive" in named)
    return AnswerHead(
        status, tuple(headers), framing, length, keep_alive and framing is not Framing.UNTIL_CLOSE
    )


@lru_cache(LINES_REMEMBERED)
def _header(line: bytes) -> tuple[tuple[bytes, bytes], bytes | None]:
    """A header line taken apart, and its lower case name where it speaks of framing.

    The lines of one backend's answers are alike, so most are remembered. Raises HeadRefused.
    """
    match = _HEADER.match(line)
    if match is None:
        raise HeadRefused("header line")
    name, value = match.groups()
    lower = name.lower()
    return (name, value), lower if lower in _OF_FRAMING else None


def _framing(status: int, lengths: set[bytes], codings: list[bytes], bodiless: bool) -> tuple[Framing, int]:
    if codings and lengths:
        raise HeadRefused("length beside transfer coding")
    if codings and codings != [b"chunked"]:
        raise HeadRefused("transfer coding")
    if len(lengths) > 1:
        raise HeadRefused("two lengths")
    length = 0
    for text in lengths:
        if not text.isdigit() or len(text) > 15:
            raise HeadRefused("length")
        length = int(text)
    if bodiless or status in (204, 304) or status < 200:
        return Framing.NONE, 0
    if codings:
        return Framing.CHUNKED, 0
    return (Framing.LENGTH, length) if lengths else (Framing.UNTIL_CLOSE, 0)


class ChunkDecoder:
    """Takes the chunk framing off a body, fed in any cut.

    `feed` returns the body bytes in the data, in order. `done` is set at the end of the
    trailers; bytes after it are in `surplus` (a backend that sends any is not kept).
    """

    __slots__ = ("_ending", "_held", "_left", "_trailers", "done", "surplus")

    def __init__(self) -> None:
        self._held = b""  # an incomplete line
        self._left = 0  # bytes of the current chunk still to come
        self._ending = 0  # 1: the line end after a chunk is due; 2: in the trailers
        self._trailers = 0  # bytes of trailers seen
        self.done = False
        self.surplus = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Body bytes in `data`. Raises HeadRefused at broken framing."""
        if self._held:
            data = self._held + data
            self._held = b""
        found: list[bytes] = []
        place, size, left = 0, len(data), self._left
        if not left and not self._ending:
            place = _whole_chunks(data, found)
        while place < size:
            if not left:
                match = None if self._ending else _SIZE.match(data, place)
                if match is None:
                    moved = self._line(data, place)
                    if moved == place:
                        self._hold(data[place:])
                        break
                    place = moved
                    if self.done:
                        self.surplus = data[place:]
                        break
                    continue
                place = match.end()
                left = int(match[1], 16)
                if not left:
                    self._ending = 2
                    continue
            end = place + left
            if data[end : end + 2] == b"\r\n":  # all of a chunk is here, the usual case
                found.append(data[place:end])
                place, left = end + 2, 0
                continue
            end = min(end, size)
            if place < end:
                found.append(data[place:end])
                left -= end - place
                place = end
            if not left:
                self._ending = 1
        self._left = left
        return found

    def _line(self, data: bytes, place: int) -> int:
        """Take a line that is no chunk's size; the place after it, or `place` where it is incomplete."""
        if self._ending == 1:
            if data[place : place + 2] == b"\r\n":
                self._ending = 0
                return place + 2
            if data[place:] == b"\r":
                return place
            raise HeadRefused("chunk end")
        if self._ending == 2:
            return self._trailer(data, place)
        if len(data) - place > CHUNK_LINE_BYTES_MAX or b"\n" in data[place:]:
            raise HeadRefused("chunk size")
        return place

    def _trailer(self, data: bytes, place: int) -> int:
        end = data.find(b"\r\n", place)
        if end < 0:
            return place
        if end == place:
            self.done = True
        self._trailers += end - place
        if self._trailers > TRAILER_BYTES_MAX:
            raise HeadRefused("trailers")
        return end + 2

    def _hold(self, rest: bytes) -> None:
        if len(rest) > TRAILER_BYTES_MAX:
            raise HeadRefused("trailers")
        self._held = rest


def _whole_chunks(data: bytes, found: list[bytes]) -> int:
    """Take the chunks at the beginning of `data` that are all there, as usual ones are; the place after.

    Stops before whatever is not a plain size with all of its chunk, the last chunk included.
    """
    place, size_all = 0, len(data)
    while place < size_all:
        line_end = data.find(b"\r\n", place, place + _PLAIN_SIZE_BYTES_MAX)
        size = _plain_size(data[place:line_end]) if line_end > 0 else 0
        begin = line_end + 2
        end = begin + size
        if not size or data[end : end + 2] != b"\r\n":
            return place
        found.append(data[begin:end])
        place = end + 2
    return place


@lru_cache(SIZES_REMEMBERED)
def _plain_size(text: bytes) -> int:
    """A chunk size without extension or blanks; 0 for any other text."""
    return int(text, 16) if _PLAIN_SIZE.match(text) else 0


class CountedDecoder:
    """A body of a known length; `surplus` is what is beyond it."""

    __slots__ = ("_left", "done", "surplus")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = not length
        self.surplus = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Body bytes in `data`."""
        left = self._left
        if len(data) < left:
            self._left = left - len(data)
            return [data]
        self._left = 0
        self.done = True
        self.surplus = data[left:]
        return [data[:left]] if left else []


class OpenDecoder:
    """A body that ends with the connection."""

    __slots__ = ("done", "surplus")

    def __init__(self) -> None:
        self.done = False
        self.surplus = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Body bytes in `data`: all of them."""
        return [data]


BodyDecoder = ChunkDecoder | CountedDecoder | OpenDecoder


def body_decoder(head: AnswerHead) -> BodyDecoder:
    """What takes the body of an answer apart."""
    if head.framing is Framing.CHUNKED:
        return ChunkDecoder()
    if head.framing is Framing.UNTIL_CLOSE:
        return OpenDecoder()
    return CountedDecoder(head.length)
