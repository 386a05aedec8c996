"""The memo of encoded segments: exact keys, a ceiling, and the longest token first."""

from __future__ import annotations

from router.prompt.segment_memo import SegmentMemo, SplitPlan, Splitter


def ids(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


def test_texts_and_tokens_come_in_turn() -> None:
    cut = Splitter(SplitPlan(("<|a|>", "<|b|>"), (7, 8)))
    assert cut.segments("x<|a|><|b|>y") == ["x", "<|a|>", "", "<|b|>", "y"]
    assert cut.segments("") == [""]
    assert cut.known == {"<|a|>": ids(7), "<|b|>": ids(8)}


def test_the_longest_token_at_a_place_is_the_one() -> None:
    cut = Splitter(SplitPlan(("<a>", "<a><a>", "<a>b", "."), (1, 2, 3, 4)))
    assert cut.segments("<a><a><a>b.") == ["", "<a><a>", "", "<a>b", "", ".", ""]


def test_without_tokens_a_text_is_one_segment() -> None:
    assert Splitter(SplitPlan((), ())).segments("a <|b|> c") == ["a <|b|> c"]


def test_one_token_alone_is_a_place_to_cut() -> None:
    assert Splitter(SplitPlan(("</s>",), (2,))).segments("a</s>b") == ["a", "</s>", "b"]


def test_a_beginning_is_kept_apart_from_what_follows() -> None:
    memo = SegmentMemo(1 << 20)
    memo.keep("t", True, "text", ids(1))
    memo.keep("t", False, "text", ids(2))
    known = {"<a>": ids(9)}
    assert memo.find("t", ["text", "<a>", "text"], known) == [ids(1), ids(9), ids(2)]
    assert memo.find("u", ["text", "<a>", "text"], known) == [None, ids(9), None]
    assert memo.find("t", ["", "<a>", ""], known) == [b"", ids(9), b""]


def test_what_is_used_stays_and_the_rest_goes_under_the_ceiling() -> None:
    memo = SegmentMemo(64_000)
    memo.keep("t", False, "used", ids(1))
    for number in range(2_000):
        memo.keep("t", False, f"other {number}", ids(number))
        assert memo.find("t", ["", "<a>", "used"], {"<a>": b""})[2] == ids(1)
        assert memo.size <= 64_000
    assert memo.find("t", ["", "<a>", "other 0"], {"<a>": b""})[2] is None
    assert memo.find("t", ["", "<a>", "other 1999"], {"<a>": b""})[2] == ids(1999)


def test_a_segment_that_would_push_all_others_out_is_not_kept() -> None:
    memo = SegmentMemo(16_000)
    memo.keep("t", False, "x" * 2_000, ids(1))
    assert memo.size == 0


def test_forgetting_a_tokenizer_gives_its_bytes_back() -> None:
    memo = SegmentMemo(64_000)
    for number in range(300):
        memo.keep("t", number % 2 == 0, f"é {number}", ids(number))
        memo.keep("u", False, f"é {number}", ids(number))
    memo.forget("t")
    memo.forget("u")
    assert memo.size == 0
