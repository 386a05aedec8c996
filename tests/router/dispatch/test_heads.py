"""Heads and chunk framing of backend answers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.heads import (
    CHUNK_LINE_BYTES_MAX,
    HEADERS_MAX,
    TRAILER_BYTES_MAX,
    ChunkDecoder,
    Framing,
    HeadRefused,
    body_decoder,
    parse_head,
)


def test_head_keeps_headers_as_they_came() -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\nContent-Type:  text/x \r\nX-A: 1\r\nx-a: 2\r\ncontent-length: 5")
    assert head.status == 200
    assert head.headers == (
        (b"Content-Type", b"text/x"),
        (b"X-A", b"1"),
        (b"x-a", b"2"),
        (b"content-length", b"5"),
    )
    assert (head.framing, head.length, head.keep_alive) == (Framing.LENGTH, 5, True)
    assert head.header(b"x-a") == b"1"
    assert head.header(b"x-b") is None


@pytest.mark.parametrize(
    ("head", "framing", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked", Framing.CHUNKED, True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nConnection: close", Framing.CHUNKED, False),
        (b"HTTP/1.1 200 OK\r\nconnection: x, Close\r\ncontent-length: 0", Framing.LENGTH, False),
        (b"HTTP/1.1 200", Framing.UNTIL_CLOSE, False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2", Framing.LENGTH, False),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive", Framing.LENGTH, True),
        (b"HTTP/1.1 204 No Content", Framing.NONE, True),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7", Framing.NONE, True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\ncontent-length: 7", Framing.LENGTH, True),
    ],
)
def test_framing_of_a_body(head: bytes, framing: Framing, keep_alive: bool) -> None:
    parsed = parse_head(head)
    assert (parsed.framing, parsed.keep_alive) == (framing, keep_alive)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/2 200 OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 099 OK",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6",
        b"HTTP/1.1 200 OK\r\ncontent-length: +5",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5, 5",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999999999",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked",
        b"HTTP/1.1 200 OK\r\nx-a : 1",
        b"HTTP/1.1 200 OK\r\n x-a: 1",
        b"HTTP/1.1 200 OK\r\nx-a: 1\nx-b: 2",
        b"HTTP/1.1 200 OK\r\nx-a: 1\rx-b: 2",
        b"HTTP/1.1 200 OK\r\nx-a: \0",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK" + b"\r\nx: y" * (HEADERS_MAX + 1),
    ],
)
def test_ambiguous_or_broken_heads_are_refused(head: bytes) -> None:
    with pytest.raises(HeadRefused):
        parse_head(head)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_head_or_refused(data: bytes) -> None:
    try:
        assert 100 <= parse_head(b"HTTP/1.1 200 OK\r\n" + data).status <= 999
    except HeadRefused:
        pass


WIRE = b'4;name="x"\r\nabcd\r\n00A \r\n0123456789\r\n1\r\n\n\r\n0\r\nTrailer: x\r\n\r\n'
BODY = b"abcd0123456789\n"


@given(cuts=st.lists(st.integers(0, len(WIRE)), max_size=12))
def test_chunks_come_apart_in_any_cut(cuts: list[int]) -> None:
    decoder = ChunkDecoder()
    places = [0, *sorted(cuts), len(WIRE)]
    found = b""
    for begin, end in pairwise(places):
        assert not decoder.done or begin == end
        found += b"".join(decoder.feed(WIRE[begin:end]))
    assert (found, decoder.done, decoder.surplus) == (BODY, True, b"")


def test_byte_by_byte_is_the_same_and_surplus_is_told() -> None:
    decoder = ChunkDecoder()
    found = b"".join(piece for place in range(len(WIRE)) for piece in decoder.feed(WIRE[place : place + 1]))
    assert found == BODY
    decoder = ChunkDecoder()
    decoder.feed(WIRE + b"HTTP/1.1 200")
    assert decoder.surplus == b"HTTP/1.1 200"


@pytest.mark.parametrize(
    "wire",
    [
        b"x\r\n",
        b"-1\r\n",
        b"+1\r\na\r\n",
        b"0x1\r\na\r\n",
        b"1_0\r\n",
        b" 1\r\na\r\n",
        b"1\na\r\n",
        b"1;a\nb\r\nx\r\n",
        b"\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1" * 16 + b"\r\n",
        b"1;" + b"x" * CHUNK_LINE_BYTES_MAX,
        b"0\r\n" + b"t: " + b"x" * (TRAILER_BYTES_MAX + 1),
        b"0\r\n" + (b"t: " + b"x" * 1000 + b"\r\n") * 20,
    ],
)
def test_broken_chunk_framing_is_refused(wire: bytes) -> None:
    with pytest.raises(HeadRefused):
        ChunkDecoder().feed(wire)


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_any_bytes_are_chunks_or_refused(pieces: list[bytes]) -> None:
    decoder = ChunkDecoder()
    try:
        found = [piece for data in pieces for piece in decoder.feed(data)]
    except HeadRefused:
        return
    assert sum(map(len, found)) <= sum(map(len, pieces))


@given(cuts=st.lists(st.integers(0, 14), max_size=5))
def test_counted_body_ends_at_its_length_in_any_cut(cuts: list[int]) -> None:
    decoder = body_decoder(parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: 10"))
    found, surplus = b"", b""
    for begin, end in pairwise([0, *sorted(cuts), 14]):
        if decoder.done:
            surplus += b"0123456789more"[begin:end]
            continue
        found += b"".join(decoder.feed(b"0123456789more"[begin:end]))
        surplus += decoder.surplus
    assert (found, decoder.done, surplus) == (b"0123456789", True, b"more")


def test_body_of_no_length_is_done_at_once_and_an_open_one_never() -> None:
    nothing = body_decoder(parse_head(b"HTTP/1.1 204 No Content"))
    assert (nothing.done, nothing.feed(b"x"), nothing.surplus) == (True, [], b"x")
    without_end = body_decoder(parse_head(b"HTTP/1.0 200 OK"))
    assert (without_end.feed(b"x"), without_end.done, without_end.surplus) == ([b"x"], False, b"")
