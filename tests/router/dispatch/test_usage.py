"""Usage is found in the tail of an answer, and nowhere else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.usage import NO_USAGE, TAIL_BYTES, Tail, Usage, usage_of

COUNTS = {"prompt_tokens": 39, "completion_tokens": 2, "total_tokens": 41}
CACHED = {**COUNTS, "prompt_tokens_details": {"cached_tokens": 16}}


def stream(usage: Any, text: str = "hi") -> bytes:
    first = json.dumps({"choices": [{"delta": {"content": text}}], "usage": None})
    last = json.dumps({"choices": [], "usage": usage})
    return f"data: {first}\n\ndata: {last}\n\ndata: [DONE]\n\n".encode()


@pytest.mark.parametrize(
    ("tail", "usage"),
    [
        (stream(COUNTS), Usage(39, 2, None)),
        (stream(CACHED), Usage(39, 2, 16)),
        (json.dumps({"usage": CACHED}).encode(), Usage(39, 2, 16)),
        (
            json.dumps({"usage": CACHED, "nvext": {"worker_id": {"decode_worker_id": 7}}}).encode(),
            Usage(39, 2, 16),
        ),
        (stream(None), NO_USAGE),
        (stream({"prompt_tokens": "39"}), NO_USAGE),
        (stream({"prompt_tokens": -1, "completion_tokens": 2}), Usage(None, 2, None)),
        (stream({"prompt_tokens": True, "completion_tokens": 2.5}), NO_USAGE),
        (b'"usage": {"prompt_tokens": 1', NO_USAGE),
        (b'"usage"', NO_USAGE),
        (b"\xff\xfe" + json.dumps({"usage": COUNTS}).encode(), Usage(39, 2, None)),
        (b"", NO_USAGE),
    ],
)
def test_usage_of_a_tail(tail: bytes, usage: Usage) -> None:
    assert usage_of(tail) == usage


def test_the_word_in_an_answer_is_not_taken_for_the_member() -> None:
    assert usage_of(stream(COUNTS, text='say "usage": {"prompt_tokens": 9}')) == Usage(39, 2, None)
    assert usage_of(stream(None, text='say "usage" often')) == NO_USAGE


@given(st.binary(max_size=400))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    found = usage_of(b'{"usage":' + data)
    assert all(value is None or value >= 0 for value in found)


@pytest.mark.field("B-099")
@given(sizes=st.lists(st.integers(1, 5000), max_size=30), final=st.integers(1, len(stream(CACHED))))
def test_tail_stays_small_and_holds_the_end_in_any_cut(sizes: list[int], final: int) -> None:
    tail = Tail()
    for size in sizes:
        tail.feed(b"x" * size)
        assert sum(map(len, tail._pieces)) < TAIL_BYTES + max(sizes)
    data = stream(CACHED)
    tail.feed(data[:final])
    tail.feed(data[final:])
    assert tail.usage() == Usage(39, 2, 16)


def test_one_big_piece_is_cut() -> None:
    tail = Tail()
    tail.feed(b"x" * 10_000_000 + stream(COUNTS))
    assert sum(map(len, tail._pieces)) == TAIL_BYTES
    assert tail.usage() == Usage(39, 2, None)


@pytest.mark.parametrize(
    ("pieces", "between"),
    [
        ([], True),
        ([b"data: 1\n\n"], True),
        ([b"data: 1\n", b"\n"], True),
        ([b"data: 1\r\n", b"\r", b"\n"], True),
        ([b"data: 1\n"], False),
        ([b"data: {"], False),
    ],
)
def test_border_of_an_event_is_known(pieces: list[bytes], between: bool) -> None:
    tail = Tail()
    for piece in pieces:
        tail.feed(piece)
    assert tail.ends_event() is between
