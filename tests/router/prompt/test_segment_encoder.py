"""Text in segments has the very tokens that it has whole, with every kind of tokenizer."""

from __future__ import annotations

from array import array
from functools import cache

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.prompt import segment_encoder
from router.prompt.segment_encoder import SegmentEncoder, TokenizerRefused
from router.prompt.segment_memo import SegmentMemo, Splitter
from tests.router.prompt.tokenizer_files import KINDS, SPECIAL, plain_tokenizer, tokenizer_file

NOT_SPLIT = {"tokens_that_are_words", "no_special_token"}
"""Kinds whose text cannot be cut for sure, or has no place for it."""

TOKENS = [
    *SPECIAL,
    "[CLS]",
    "[SEP]",
    "<|end|>",
    "<|user|>",
    "<mask>",
    "<|endoftext|>",
    "<|x|>",
    "<|x|>y",
    "word",
]
TEXTS = st.lists(
    st.sampled_from(TOKENS)
    | st.sampled_from(
        ["the quick", " ", "  ", "\n", "▁", "user\n", "fox ", " QUICK fox", "<", "<|", "|>", "é☕"]
    )
    | st.text(max_size=6),
    max_size=14,
).map("".join)


@cache
def encoder(kind: str) -> SegmentEncoder:
    return SegmentEncoder(tokenizer_file(kind))


@cache
def splitter(kind: str) -> Splitter:
    return Splitter(encoder(kind).plan)


def whole(kind: str, text: str) -> bytes:
    ids = plain_tokenizer(kind).encode(text, add_special_tokens=False).ids
    return array("I", ids).tobytes()


def in_segments(kind: str, text: str, memo: SegmentMemo) -> bytes:
    """As a router does it: split, looked up, the rest encoded and kept."""
    cut = splitter(kind)
    segments = cut.segments(text.encode())
    found = memo.find(kind, segments, cut.known)
    wanted = [(not place, segments[place]) for place, ids in enumerate(found) if ids is None]
    encoded = encoder(kind).encode([(is_first, piece.decode()) for is_first, piece in wanted])
    at = 0
    for (is_first, piece), count in zip(wanted, encoded.counts, strict=True):
        memo.keep(kind, is_first, piece, encoded.tokens[at : at + 4 * count])
        at += 4 * count
    assert at == len(encoded.tokens)
    again = memo.find(kind, segments, cut.known)
    assert None not in again
    return b"".join(ids for ids in again if ids is not None)


MEMO = SegmentMemo(1 << 24)


@pytest.mark.req("RND-06")
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_split_where_that_is_exact(kind: str) -> None:
    assert bool(encoder(kind).plan.tokens) is (kind not in NOT_SPLIT)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(KINDS)), TEXTS)
def test_segments_have_the_tokens_of_the_whole_text(kind: str, text: str) -> None:
    assert in_segments(kind, text, MEMO) == whole(kind, text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_at_the_front_is_not_taken_for_one_behind_a_token(kind: str) -> None:
    memo = SegmentMemo(1 << 20)
    tokens = encoder(kind).plan.tokens or ("",)
    for text in (f"{tokens[0]}hello world", "hello world", f"hello world{tokens[0]}hello world"):
        assert in_segments(kind, text, memo) == whole(kind, text)


def test_tokens_that_take_blanks_along_are_no_places_to_cut() -> None:
    plan = encoder("tokens_that_take_blanks").plan
    assert "<|im_start|>" in plan.tokens
    assert not {"<|end|>", "<|user|>", "<mask>"} & set(plan.tokens)


def test_others_have_a_turn_between_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    monkeypatch.setattr("os.sched_yield", lambda: turns.append(1))
    size = segment_encoder.BATCH_CHARACTERS
    texts = ["x" * (size // 2), "y " * size, "", "z", "z" * size, "end"]
    one = encoder("byte_level")
    encoded = one.encode([(False, text) for text in texts])
    assert len(turns) == 3
    alone = [one.encode([(False, text)]) for text in texts]
    assert encoded.tokens == b"".join(piece.tokens for piece in alone)
    assert encoded.counts == array("I", [piece.counts[0] for piece in alone])


def test_truncation_and_padding_of_the_file_do_not_count() -> None:
    data = orjson.loads(tokenizer_file("byte_level"))
    data["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    data["padding"] = {
        "strategy": {"Fixed": 40},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    text = "one two three four five six"
    encoded = SegmentEncoder(orjson.dumps(data)).encode([(True, text)])
    assert encoded.tokens == whole("byte_level", text)


def test_a_tokenizer_that_draws_its_merges_is_not_split() -> None:
    data = orjson.loads(tokenizer_file("byte_level"))
    data["model"]["dropout"] = 0.5
    assert SegmentEncoder(orjson.dumps(data)).plan.tokens == ()


@pytest.mark.parametrize(
    "data", [b"", b"{", b"{}", b"[]", b"null", b"\xff", b'{"model": {"type": "BPE"}}', b"[" * 9999]
)
def test_what_is_no_tokenizer_is_refused(data: bytes) -> None:
    with pytest.raises(TokenizerRefused):
        SegmentEncoder(data)
