"""A chat counts as pinned only when router and frontend name the same workers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from deploy.demo.chats import (
    Answer,
    Chat,
    Pin,
    demo_chats,
    judge,
    served_by_of,
    sse_documents,
    text_of,
    tokens_of,
)

PAIR = Answer(
    200,
    {
        "x-continuum-decode-worker": "dynamo/18111545911546210067#0",
        "x-continuum-prefill-worker": "dynamo/7964042171#1",
    },
    "words",
    {"decode_worker_id": 18111545911546210067, "prefill_worker_id": 7964042171, "prefill_dp_rank": 1},
)
SOLO = Answer(
    200,
    {"x-continuum-decode-worker": "dynamo/42"},
    "words",
    {"decode_worker_id": 42, "prefill_worker_id": 42},
)


def test_pair_named_alike_by_router_and_frontend_is_right() -> None:
    verdict = judge(PAIR, is_paired=True)
    assert verdict.complaint == ""
    assert verdict.decode == Pin("dynamo", "18111545911546210067", 0)
    assert verdict.prefill == Pin("dynamo", "7964042171", 1)


def test_aggregated_worker_is_right_when_the_frontend_names_it_twice() -> None:
    assert judge(SOLO, is_paired=False).complaint == ""


@pytest.mark.parametrize(
    ("answer", "is_paired", "complaint"),
    [
        (replace(PAIR, headers={}), True, "pinned no worker"),
        (replace(PAIR, headers={"x-continuum-decode-worker": "dynamo/1"}), True, "no prefill worker"),
        (PAIR, False, "beside an aggregated one"),
        (
            replace(PAIR, served_by={"decode_worker_id": 1, "prefill_worker_id": 7964042171}),
            True,
            "decode was 1",
        ),
        (replace(PAIR, served_by={"decode_worker_id": 18111545911546210067}), True, "prefill was None"),
        (replace(PAIR, served_by={**PAIR.served_by, "prefill_dp_rank": 0}), True, "rank was 0"),
        (replace(SOLO, served_by={}), False, "decode was None"),
        (replace(SOLO, served_by={"decode_worker_id": 42, "prefill_worker_id": 9}), False, "prefill was 9"),
        (replace(SOLO, text=""), False, "no words"),
        (replace(SOLO, status=503), False, "status 503"),
        (replace(SOLO, problem="ConnectionResetError: reset"), False, "reset"),
    ],
)
def test_any_disagreement_is_a_complaint(answer: Answer, is_paired: bool, complaint: str) -> None:
    assert complaint in judge(answer, is_paired=is_paired).complaint


@pytest.mark.parametrize(
    "text", ["", "dynamo", "dynamo/", "/42", "dynamo/0x2a", "dynamo/42#", "dynamo/42#x", "a/-1"]
)
def test_text_that_is_no_pin_is_none(text: str) -> None:
    if text == "dynamo/42#":
        assert Pin.parse(text) == Pin("dynamo", "42", None)
    else:
        assert Pin.parse(text) is None


def test_stream_is_read_chunk_by_chunk() -> None:
    chunks = [
        {"choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"delta": {"content": "two "}}], "nvext": {"worker_id": {"decode_worker_id": 1}}},
        {"choices": [{"delta": {"content": "words"}}], "nvext": {"worker_id": {"decode_worker_id": 2}}},
        {"choices": [], "nvext": None, "usage": {}},
    ]
    body = (
        b": comment\n\n"
        + b"".join(b"data: %s\n\n" % json.dumps(c).encode() for c in chunks)
        + b"data: [DONE]\n\n"
    )
    documents = list(sse_documents(body))
    assert len(documents) == 4
    assert text_of(documents) == "two words"
    assert served_by_of(documents) == {"decode_worker_id": 2}


def test_demo_sends_enough_chats_of_every_kind() -> None:
    chats = demo_chats(("a", "b"))
    assert len(chats) >= 6
    assert len({chat.identifier for chat in chats}) == len(chats)
    assert {(chat.model, chat.streamed) for chat in chats} == {
        ("a", False),
        ("a", True),
        ("b", False),
        ("b", True),
    }


def test_body_asks_the_frontend_who_served() -> None:
    body = json.loads(Chat("x", "m", "hello", streamed=True).body())
    assert body["nvext"] == {"extra_fields": ["worker_id"]}
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert "stream_options" not in json.loads(Chat("x", "m", "hello", streamed=False).body())


def test_body_repeats_what_was_said_before() -> None:
    before = ({"role": "system", "content": "Be kind."},)
    body = json.loads(Chat("x", "m", "hello", streamed=False, before=before).body())
    assert body["messages"] == [*before, {"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("documents", "told"),
    [
        ([], (None, None)),
        ([{"usage": None}], (None, None)),
        ([{"usage": {"prompt_tokens": 7}}], (7, None)),
        ([{"usage": {"prompt_tokens": 7, "prompt_tokens_details": None}}], (7, None)),
        ([{"usage": {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 32}}}, {}], (40, 32)),
    ],
)
def test_tokens_are_those_of_the_last_usage(
    documents: list[dict[str, object]], told: tuple[int | None, int | None]
) -> None:
    assert tokens_of(documents) == told
