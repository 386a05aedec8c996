"""What a frontend makes of a body: the recorded ones, and what cannot be predicted."""

from __future__ import annotations

import copy
import gzip
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.bounds import (
    PROMPT_MESSAGES_MAX,
    PROMPT_PARTS_MAX,
    PROMPT_TEXT_BYTES_MAX,
    PROMPT_TOKENS_MAX,
)
from router.prompt.render_input import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    RenderInput,
    TextGiven,
    TokensGiven,
    TooLarge,
    Unsupported,
    render_input,
    salt_of,
)
from router.prompt.render_wire import Kind
from router.prompt.render_worker import Jobs
from tests.router.prompt.conversations import CALL, CONVERSATIONS, HELLO, SYSTEM, WEATHER, assistant, user
from tests.router.prompt.rendering import load, render_given

RECORDINGS = Path(__file__).resolve().parents[2] / "recordings"
TINY = Path(__file__).resolve().parents[3] / "deploy" / "demo" / "tiny-chat"


def frontend_rows() -> list[dict[str, Any]]:
    with gzip.open(RECORDINGS / "frontend-renders.jsonl.gz", "rt") as rows:
        return list(map(json.loads, rows))


def chat(**body: Any) -> Any:
    return render_input(CHAT_PATH, {"messages": [HELLO], **body})


@pytest.mark.req("RND-02")
@pytest.mark.field("B-110", "B-117")
@pytest.mark.parametrize("release", ["1.4.2", "1.5.0", "1.6.1"])
def test_recorded_bodies_render_to_the_recorded_prompts(release: str) -> None:
    template = json.loads((TINY / "tokenizer_config.json").read_text())["chat_template"]
    jobs, seen = Jobs(), 0
    load(jobs, "minijinja", template)
    for row in frontend_rows():
        if row["release"] != release or row["status"] != 200 or row["path"] != CHAT_PATH:
            continue
        given_input = render_input(CHAT_PATH, row["body"])
        assert isinstance(given_input, RenderInput), row["case"]
        answer = render_given(jobs, given_input)
        assert (answer.kind, answer.body.decode()) == (Kind.DONE, row["formatted_prompt"]), row["case"]
        seen += 1
    assert seen >= 30


def test_the_body_is_not_changed() -> None:
    for body in CONVERSATIONS.values():
        before = copy.deepcopy(body)
        render_input(CHAT_PATH, body)
        assert body == before


def test_messages_are_written_in_the_frontends_order_without_what_it_does_not_know() -> None:
    message = {
        "tool_calls": [{**CALL, "index": 0, "extra": 1}],
        "name": "n",
        "extra": 1,
        "refusal": "r",
        "reasoning": "t",
        "content": "c",
        "role": "assistant",
    }
    written = render_input(CHAT_PATH, {"messages": [message]})
    assert isinstance(written, RenderInput)
    assert list(written.messages[0]) == [
        "role",
        "content",
        "reasoning_content",
        "refusal",
        "name",
        "tool_calls",
    ]
    assert list(written.messages[0]["tool_calls"][0]) == ["id", "type", "function"]


def test_an_empty_list_of_tools_is_no_list() -> None:
    assert chat(tools=[]).tools is None


def test_an_absent_description_comes_last_and_a_schema_gets_type_and_properties() -> None:
    tool = {"type": "function", "function": {"strict": False, "parameters": {"x": 1}, "name": "ping"}}
    written = chat(tools=[tool])
    assert json.dumps(written.tools[0]["function"]) == (
        '{"name": "ping", "parameters": {"x": 1, "type": "object", "properties": {}}, '
        '"strict": false, "description": ""}'
    )


def test_unwanted_tools_are_hidden_unless_the_card_says_otherwise() -> None:
    body = {"messages": [HELLO], "tools": [WEATHER], "tool_choice": "none"}
    hidden = render_input(CHAT_PATH, body)
    shown = render_input(CHAT_PATH, body, hides_unwanted_tools=False)
    assert isinstance(hidden, RenderInput) and hidden.tools is None
    assert isinstance(shown, RenderInput) and shown.tools is not None


@pytest.mark.parametrize(
    ("body", "variables"),
    [
        ({}, {}),
        ({"chat_template_kwargs": {"x": 1}}, {"x": 1}),
        ({"chat_template_args": {"tools": [1], "messages": [], "add_generation_prompt": False}}, {}),
        ({"thinking": True}, {"thinking": True, "enable_thinking": True, "thinking_mode": "enabled"}),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}},
            {"thinking": False, "enable_thinking": False, "thinking_mode": "disabled"},
        ),
        (
            {"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": True, "y": 2}},
            {"y": 2, "thinking_mode": "adaptive"},
        ),
        (
            {"reasoning_effort": "none"},
            {
                "reasoning_effort": "none",
                "thinking": False,
                "enable_thinking": False,
                "thinking_mode": "disabled",
            },
        ),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"thinking": False}},
            {
                "reasoning_effort": "low",
                "thinking": False,
                "enable_thinking": False,
                "thinking_mode": "disabled",
            },
        ),
    ],
)
def test_variables_of_the_client_go_under_every_name_that_templates_ask(
    body: dict[str, Any], variables: dict[str, Any]
) -> None:
    assert chat(**body).variables == variables


@pytest.mark.req("RND-07")
@pytest.mark.field("B-118")
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": []},
        {"messages": "x"},
        {"messages": [1]},
        {"messages": [{"role": "User", "content": "x"}]},
        {"messages": [{"role": ["user"], "content": "x"}]},
        {"messages": [user(None)]},
        {"messages": [user(5)]},
        {"messages": [user([{"type": "image_url", "image_url": {"url": "data:"}}])]},
        {"messages": [user([{"type": "text", "text": "x"}, {"type": "input_audio"}])]},
        {"messages": [user(["x"])]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [assistant("x", reasoning="a", reasoning_content="b")]},
        {"messages": [assistant("x", audio={"id": "a"})]},
        {"messages": [assistant("x", tool_calls=[{**CALL, "function": {"name": "x"}}])]},
        {"messages": [HELLO], "tools": [{"type": "custom"}]},
        {"messages": [HELLO], "tools": [{"type": "function", "function": {"name": "x", "parameters": []}}]},
        {"messages": [HELLO], "continue_final_message": True},
        {"messages": [HELLO], "add_generation_prompt": "x"},
        {"messages": [HELLO], "chat_template_kwargs": {}, "chat_template_args": {}},
        {"messages": [HELLO], "chat_template_kwargs": [1]},
        {"messages": [HELLO], "chat_template_kwargs": {"thinking": "x"}},
        {"messages": [HELLO], "reasoning_effort": "bogus"},
        {"messages": [HELLO], "reasoning_effort": ["low"]},
        {"messages": [HELLO], "thinking": {"type": ["enabled"]}},
        {"messages": [HELLO], "thinking": 1},
    ],
)
def test_what_a_frontend_refuses_or_we_do_not_know_has_no_prompt(body: dict[str, Any]) -> None:
    assert isinstance(render_input(CHAT_PATH, body), Unsupported)


@pytest.mark.req("RND-06")
def test_too_much_text_is_not_even_rendered() -> None:
    fits = render_input(CHAT_PATH, {"messages": [user("x" * PROMPT_TEXT_BYTES_MAX)]})
    assert isinstance(fits, RenderInput)
    assert isinstance(
        render_input(CHAT_PATH, {"messages": [user("x" * PROMPT_TEXT_BYTES_MAX), user("x")]}), TooLarge
    )
    assert isinstance(render_input(CHAT_PATH, {"messages": [HELLO] * (PROMPT_MESSAGES_MAX + 1)}), TooLarge)
    long = "x" * (PROMPT_TEXT_BYTES_MAX + 1)
    assert isinstance(render_input(COMPLETIONS_PATH, {"prompt": long}), TooLarge)
    assert isinstance(render_input(COMPLETIONS_PATH, {"prompt": [1] * (PROMPT_TOKENS_MAX + 1)}), TooLarge)


@pytest.mark.req("RND-06")
@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "a"}] * PROMPT_PARTS_MAX},
        {"role": "assistant", "reasoning": ["a"] * PROMPT_PARTS_MAX},
        {"role": "assistant", "tool_calls": [CALL] * PROMPT_PARTS_MAX},
    ],
    ids=["content", "reasoning", "calls"],
)
def test_more_parts_than_any_chat_has_are_not_even_written_anew(message: dict[str, Any]) -> None:
    assert isinstance(render_input(CHAT_PATH, {"messages": [message]}), RenderInput)
    one_more = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    too_large = TooLarge("too many parts")
    assert render_input(CHAT_PATH, {"messages": [message, one_more]}) == too_large
    tool = {"type": "function", "function": {"name": "f"}}
    assert render_input(CHAT_PATH, {"messages": [message], "tools": [tool]}) == too_large


@pytest.mark.field("B-117")
def test_completions_are_text_or_token_ids() -> None:
    assert render_input(COMPLETIONS_PATH, {"prompt": "a b"}) == TextGiven("a b")
    assert render_input(COMPLETIONS_PATH, {"prompt": ["a b"]}) == TextGiven("a b")
    ids = TokensGiven(array("I", [1, 4294967295]).tobytes())
    assert render_input(COMPLETIONS_PATH, {"prompt": [1, 4294967295]}) == ids
    assert render_input(COMPLETIONS_PATH, {"prompt": [[1, 4294967295]]}) == ids


@pytest.mark.parametrize(
    "prompt", [None, "", [], ["a", "b"], [[1], [2]], [1, "a"], [True], [-1], [1 << 32], [1.5], 5]
)
def test_other_prompts_have_no_blocks(prompt: object) -> None:
    assert isinstance(render_input(COMPLETIONS_PATH, {"prompt": prompt}), Unsupported)


def test_other_paths_have_no_blocks() -> None:
    assert isinstance(render_input("/v1/responses", {"messages": [HELLO]}), Unsupported)


@pytest.mark.req("RND-11")
@pytest.mark.parametrize(
    ("headers", "body", "salt"),
    [
        ({}, {}, None),
        ({"X-Tenant-Id": "t"}, {"cache_salt": "c", "nvext": {"cache_salt": "n"}}, "t"),
        ({"x-tenant-id": "t"}, {"cache_salt": "c"}, "t"),
        ({"x-tenant-id": ""}, {"cache_salt": "c", "nvext": {"cache_salt": "n"}}, "n"),
        ({}, {"cache_salt": "c", "nvext": {"cache_salt": ""}}, "c"),
        ({}, {"cache_salt": "c", "nvext": None}, "c"),
        ({}, {"cache_salt": 5, "nvext": [1]}, None),
    ],
)
def test_the_first_salt_that_has_text_counts(
    headers: dict[str, str], body: dict[str, Any], salt: str | None
) -> None:
    assert salt_of(headers, body) == salt


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["user", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "type",
                    "text",
                    "function",
                    "name",
                    "arguments",
                    "tool_calls",
                    "thinking",
                    "id",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "messages",
                "tools",
                "tool_choice",
                "thinking",
                "reasoning_effort",
                "chat_template_kwargs",
                "prompt",
            ]
        ),
        VALUES,
    ),
    st.sampled_from([CHAT_PATH, COMPLETIONS_PATH]),
)
def test_no_shape_of_a_body_raises(body: dict[str, Any], path: str) -> None:
    render_input(path, body)
    assert salt_of({}, body) is None


def test_plain_messages_go_as_they_are() -> None:
    written = render_input(CHAT_PATH, {"messages": [SYSTEM, HELLO]})
    assert isinstance(written, RenderInput) and written.is_plain
    assert written.messages[0] is SYSTEM
    shaped = render_input(CHAT_PATH, {"messages": [HELLO, assistant("x", reasoning_content="y")]})
    assert isinstance(shaped, RenderInput) and not shaped.is_plain


@pytest.mark.parametrize(
    ("message", "is_simple"),
    [
        ({"content": "x", "role": "user"}, True),
        ({"role": "user", "content": "x", "unknown": 1}, True),
        ({"role": "user", "content": "x", "name": "Ada"}, False),
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, False),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, False),
        ({"role": "assistant", "refusal": "no"}, False),
    ],
)
def test_a_chat_of_roles_and_texts_alone_is_simple(message: dict[str, Any], is_simple: bool) -> None:
    written = render_input(CHAT_PATH, {"messages": [SYSTEM, message, HELLO]})
    assert isinstance(written, RenderInput) and written.is_simple is is_simple
    assert not is_simple or [*written.messages[1]] == ["role", "content"]
