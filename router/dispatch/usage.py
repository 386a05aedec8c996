"""Token counts from the tail of an answer, without parsing the answer.

Only the last TAIL_BYTES of a body are kept while it goes by; usage stands at the end of
both a JSON answer and a stream (in its last event before [DONE]). The text of a prompt or
answer may contain the word "usage" too, so what is found must be a JSON object with whole
numbers, and the last such one counts. Nothing here raises: no usage is a common answer
(decision 35).
"""

from __future__ import annotations

from collections import deque
from json import JSONDecoder
from typing import Any, Final, NamedTuple

from projections.bounds import KIB

TAIL_BYTES: Final = 8 * KIB
TOKENS_MAX: Final = 1 << 40
_KEY: Final = '"usage"'
_TRIES_MAX: Final = 8
_decoder = JSONDecoder()


class Usage(NamedTuple):
    """Counts of one answer, None where it has none."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


NO_USAGE: Final = Usage()


class Tail:
    """The last bytes of a body that goes by."""

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Remember what may be of the tail. Holds less than TAIL_BYTES plus one piece."""
        if len(data) >= TAIL_BYTES:
            self._pieces.clear()
            self._pieces.append(data[-TAIL_BYTES:])
            self._size = TAIL_BYTES
            return
        pieces = self._pieces
        pieces.append(data)
        self._size += len(data)
        while self._size - len(pieces[0]) >= TAIL_BYTES:
            self._size -= len(pieces.popleft())

    def ends_event(self) -> bool:
        """Whether what went by ends at the border of an event, or is empty."""
        last = b"".join(list(self._pieces)[-3:])[-4:]
        return not last or last.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))

    def usage(self) -> Usage:
        """The counts that the tail tells."""
        return usage_of(b"".join(self._pieces)[-TAIL_BYTES:])


def usage_of(tail: bytes) -> Usage:
    """The last usage object in the last bytes of a body, NO_USAGE without one."""
    text = tail.decode("utf-8", "replace")
    end = len(text)
    for _ in range(_TRIES_MAX):
        place = text.rfind(_KEY, 0, end)
        if place < 0:
            return NO_USAGE
        found = _object_after(text, place + len(_KEY))
        if found is not None:
            return found
        end = place
    return NO_USAGE


def _object_after(text: str, place: int) -> Usage | None:
    while place < len(text) and text[place] in " :\t\r\n":
        place += 1
    if place >= len(text) or text[place] != "{":
        return None
    try:
        value, _ = _decoder.raw_decode(text, place)
    except (ValueError, RecursionError):
        return None
    prompt, completion = _count(value, "prompt_tokens"), _count(value, "completion_tokens")
    if prompt is None and completion is None:
        return None
    return Usage(prompt, completion, _count(value.get("prompt_tokens_details"), "cached_tokens"))


def _count(value: Any, name: str) -> int | None:
    if not isinstance(value, dict):
        return None
    number = value.get(name)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= TOKENS_MAX:
        return None
    return number
