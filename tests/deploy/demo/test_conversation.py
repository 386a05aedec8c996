"""A conversation repeats what was said, stops where a turn fails, and knows whether it stayed."""

from __future__ import annotations

import pytest

from deploy.demo import chats, conversation
from deploy.demo.chats import Answer, Chat
from deploy.demo.conversation import ACTS, SYSTEM_PROMPT, TURNS, cached_share, is_stuck, talk


def answer(worker: str, cached: int | None, text: str = "words") -> Answer:
    served = {"decode_worker_id": int(worker), "prefill_worker_id": int(worker)}
    headers = {"x-continuum-decode-worker": f"dynamo/{worker}#0"}
    return Answer(200, headers, text, served, "", 400, cached)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Chat]:
    """What was sent; the router behind it answers from `answers` by turns."""
    found: list[Chat] = []

    def send(_: str, chat: Chat) -> Answer:
        found.append(chat)
        return answers[len(found) - 1]

    answers = [answer("7", 0), answer("7", 300), answer("8", 100), answer("8", 100, "")]
    monkeypatch.setattr(chats, "send", send)
    monkeypatch.setattr(conversation, "READING_S", 0)
    return found


def test_each_turn_repeats_all_before_it_and_a_failed_one_is_the_last(sent: list[Chat]) -> None:
    turns = talk("http://router", "x", "tiny-solo", "pilot", lambda name: {"name": name})
    assert [chat.identifier for chat in sent] == ["x-1", "x-2", "x-3", "x-4"]
    assert [len(chat.before) for chat in sent] == [1, 3, 5, 7]
    assert sent[2].before[:2] == (
        {"role": "system", "content": SYSTEM_PROMPT.format(trade="pilot")},
        {"role": "user", "content": TURNS[0]},
    )
    assert [turn.explained for turn in turns] == [{"name": f"x-{n}"} for n in (1, 2, 3)] + [{}]
    assert turns[-1].verdict.complaint == "the answer has no words"
    assert not is_stuck(turns)
    assert is_stuck(turns[:2])
    assert cached_share(turns) == 500 / 1200


def test_share_is_unknown_where_an_answer_does_not_tell(sent: list[Chat]) -> None:
    turns = talk("http://router", "x", "tiny-solo", "pilot", lambda _: {})
    silent = [turns[0], conversation.Turn(turns[1].chat, answer("7", None), turns[1].verdict, {})]
    assert cached_share(silent) is None
    assert cached_share(turns[:1]) is None


def test_no_two_acts_share_a_beginning() -> None:
    prompts = [SYSTEM_PROMPT.format(trade=trade) for _, trade, _ in ACTS]
    assert len({prompt[:48] for prompt in prompts}) == len(ACTS)
    assert len(TURNS) >= 4
