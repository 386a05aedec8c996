"""What the demo says fits on a line and names what a reader can look up."""

from __future__ import annotations

from typing import Any

from deploy.demo.chats import Answer, Chat, Pin, Verdict
from deploy.demo.conversation import Turn
from deploy.demo.narration import (
    pin_words,
    prefix_words,
    shortened,
    talk_words,
    turn_words,
    what_next,
    why_words,
)

PREFIX = {"raw_blocks": 27.375, "credit": 23.0, "decode_blocks": 5}
WINNER = {"cost": 9.375, "overlap_blocks": 23, "prefix": PREFIX}


def explained(**winner: Any) -> dict[str, Any]:
    """The document of a pick for an aggregated worker."""
    decode = {"winner": {**WINNER, **winner}, "runner_up": {"cost": 55.4}, "reason": "kv_aware"}
    return {"phases": {"prefill": {"winner": None, "reason": "no_prefill_pool"}, "decode": decode}}


def turn(worker: str, cached: int | None, prefill: str | None = None) -> Turn:
    pins = [Pin("dynamo", name, 0) for name in (worker, prefill) if name is not None]
    verdict = Verdict(pins[0], pins[1] if prefill else None, "")
    answer = Answer(200, {}, "words", {}, "", 400, cached)
    return Turn(Chat("x-1", "m", "hello", streamed=False), answer, verdict, explained())


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


def test_turn_tells_its_tokens_its_worker_and_the_terms_of_its_cost() -> None:
    words = " ".join(turn_words(turn("42", 368), {"42": "agg-1"}).split())
    assert words == (
        "x-1 400 tokens, 368 cached agg-1 kv_aware: max(0, 27.4 to compute - 23 for 23 held) "
        "+ 5 new = 9.4, the next 55.4"
    )
    assert ", - cached a worker of nobody " in " ".join(turn_words(turn("42", None), {}).split())


def test_prefill_of_a_pair_is_told_without_blocks_to_keep() -> None:
    document = explained()
    document["phases"]["prefill"] = {
        "winner": {**WINNER, "cost": 4.375, "prefix": {**PREFIX, "decode_blocks": None}},
        "runner_up": None,
        "reason": "kv_aware",
    }
    assert prefix_words(document) == "kv_aware: 27.4 to compute - 23 for 23 held = 4.4"


def test_pick_without_prefixes_is_told_by_its_reason() -> None:
    assert prefix_words(explained(prefix=None)) == "kv_aware"
    assert prefix_words({}) == "not explained"


def test_conversation_is_told_by_its_workers_and_what_they_found() -> None:
    assert talk_words([turn("1", 0), turn("1", 300)]) == (
        "one worker computed all turns, and found 75% of the later ones cached"
    )
    assert talk_words([turn("1", None), turn("2", None)]) == "2 workers computed the turns"
    assert talk_words([turn("1", 0, "7"), turn("2", 0, "7")]).startswith("one worker computed all turns (")
