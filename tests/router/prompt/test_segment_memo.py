"""The memo of encoded segments: exact keys, a ceiling, and the longest token first."""

from __future__ import annotations

from router.prompt.segment_memo import SegmentMemo, SplitPlan, Splitter


def ids(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def test_texts_and_tokens_come_in_turn() -> None:
    cut = Splitter(SplitPlan(("<|a|>", "<|b|>"), (7, 8)))
    assert cut.segments(b"x<|a|><|b|>y") == [b"x", b"<|a|>", b"", b"<|b|>", b"y"]
    assert cut.segments(b"") == [b""]
    assert cut.known == {b"<|a|>": ids(7), b"<|b|>": ids(8)}


def test_the_longest_token_at_a_place_is_the_one() -> None:
    cut = Splitter(SplitPlan(("<a>", "<a><a>", "<a>b", "."), (1, 2, 3, 4)))
    assert cut.segments(b"<a><a><a>b.") == [b"", b"<a><a>", b"", b"<a>b", b"", b".", b""]


def test_without_tokens_a_text_is_one_segment() -> None:
    assert Splitter(SplitPlan((), ())).segments(b"a <|b|> c") == [b"a <|b|> c"]


def test_one_token_alone_is_a_place_to_cut() -> None:
    assert Splitter(SplitPlan(("</s>",), (2,))).segments(b"a</s>b") == [b"a", b"</s>", b"b"]


def test_a_beginning_is_kept_apart_from_what_follows() -> None:
    memo = SegmentMemo(1 << 20)
    memo.keep("t", True, b"text", ids(1))
    memo.keep("t", False, b"text", ids(2))
    known = {b"<a>": ids(9)}
    assert memo.find("t", [b"text", b"<a>", b"text"], known) == [ids(1), ids(9), ids(2)]
    assert memo.find("u", [b"text", b"<a>", b"text"], known) == [None, ids(9), None]
    assert memo.find("t", [b"", b"<a>", b""], known) == [b"", ids(9), b""]


def test_what_is_used_stays_and_the_rest_goes_under_the_ceiling() -> None:
    memo = SegmentMemo(64_000)
    memo.keep("t", False, b"used", ids(1))
    for number in range(2_000):
        memo.keep("t", False, b"other %d" % number, ids(number))
        assert memo.find("t", [b"", b"<a>", b"used"], {b"<a>": b""})[2] == ids(1)
        assert memo.size <= 64_000
    assert memo.find("t", [b"", b"<a>", b"other 0"], {b"<a>": b""})[2] is None
    assert memo.find("t", [b"", b"<a>", b"other 1999"], {b"<a>": b""})[2] == ids(1999)


def test_a_segment_that_would_push_all_others_out_is_not_kept() -> None:
    memo = SegmentMemo(16_000)
    memo.keep("t", False, b"x" * 2_000, ids(1))
    assert memo.size == 0


def test_forgetting_a_tokenizer_gives_its_bytes_back() -> None:
    memo = SegmentMemo(64_000)
    for number in range(300):
        memo.keep("t", number % 2 == 0, f"é {number}".encode(), ids(number))
        memo.keep("u", False, f"é {number}".encode(), ids(number))
    memo.forget("t")
    memo.forget("u")
    assert memo.size == 0
