"""What the demo says fits on a line and names what a reader can look up."""

from __future__ import annotations

from deploy.demo.chats import Pin
from deploy.demo.narration import pin_words, shortened, what_next, why_words


def test_long_text_is_cut_and_put_on_one_line() -> None:
    assert shortened("a\n b\t c", 20) == '"a b c"'
    assert shortened("word " * 100, 10) == '"word word…"'


def test_pin_is_told_by_name_where_the_worker_is_known() -> None:
    assert pin_words(Pin("dynamo", "42", 1), {"42": "decode-1"}) == "decode-1 (dynamo/42#1)"
    assert pin_words(Pin("dynamo", "43", None), {}) == "a worker of nobody (dynamo/43)"


def test_reason_tells_each_phase_that_chose() -> None:
    document = {
        "phases": {
            "prefill": {
                "winner": {"id": "1"},
                "reason": "round_robin_stale",
                "margin": None,
                "candidates": [1, 2],
            },
            "decode": {
                "winner": {"id": "2"},
                "reason": "load_based",
                "margin": 0.125,
                "candidates": [1, 2, 3],
            },
        },
        "repeated": "equal",
    }
    assert why_words(document) == (
        "prefill round_robin_stale among 2; decode load_based among 3, ahead by 0.125; "
        "repeated from the log: equal"
    )


def test_reason_leaves_out_a_phase_without_winner() -> None:
    document = {"phases": {"prefill": {"winner": None, "reason": "no_prefill_pool"}}, "repeated": "equal"}
    assert "prefill" not in why_words(document)


def test_next_steps_name_the_worker_the_log_and_the_router() -> None:
    text = what_next("http://127.0.0.1:1", "bin/picklog", "run/data", "m", {"name": "decode-1", "pid": 77})
    for part in (
        "kill -9 77",
        "bin/picklog replay verify --log run/data",
        "http://127.0.0.1:1/v1/chat/completions",
    ):
        assert part in text
