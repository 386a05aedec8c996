"""The last changes to messages: what a template takes, and how messages are written for it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from router.prompt.message_shape import (
    CONTINUE_TAG,
    CannotContinue,
    TemplateTraits,
    cut_at_mark,
    mark_end,
    shaped,
    traits_of,
)
from router.prompt.render_worker import Jobs
from tests.router.prompt.conversations import CALL, HELLO, SYSTEM, assistant, parts, user
from tests.router.prompt.rendering import load, template_text


def traits(template: str) -> TemplateTraits:
    jobs = Jobs()
    load(jobs, "minijinja", template)
    return jobs._models["k"].plain


def after(messages: list[dict[str, Any]], **takes: bool) -> list[dict[str, Any]]:
    return shaped(copy.deepcopy(messages), TemplateTraits(**takes))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("chatml", TemplateTraits()),
        ("parts-only", TemplateTraits(wants_parts=True)),
        ("qwen-3", TemplateTraits(keeps_arguments=True, shows_reasoning=True, joins_reasoning=True)),
        ("hermes-2-pro-tools", TemplateTraits(keeps_arguments=True)),
        ("llama-2", TemplateTraits(one_system=True, users_alternate=True)),
        ("gemma-3", TemplateTraits(one_system=True, users_alternate=True)),
        ("gemma-1", TemplateTraits()),
        ("nemotron-nano-thinking", TemplateTraits(shows_reasoning=True, joins_reasoning=True)),
    ],
)
def test_probes_find_what_a_template_takes(name: str, found: TemplateTraits) -> None:
    assert traits(template_text(name)) == found


def test_arguments_stay_text_only_where_the_template_shows_the_text() -> None:
    shows = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.function.arguments is string %}"
    shows += "{{ c.function.arguments }}{% endif %}{% endfor %}{% endfor %}"
    rejects = shows.replace("{{ c.function.arguments }}", "{{ raise_exception('text') }}")
    assert traits(shows).keeps_arguments
    assert not traits(rejects).keeps_arguments
    assert not traits("{# arguments is string #}").keeps_arguments


def test_a_template_that_refuses_everything_has_no_rules() -> None:
    assert traits_of("x", lambda messages, adds: None) == TemplateTraits()


def test_parts_of_text_become_lines_of_one_text() -> None:
    assert after([user(parts("a ", "", "b"))]) == [user("a \n\nb")]
    assert after([user([])]) == [user([])]


def test_text_becomes_a_part_where_parts_are_wanted() -> None:
    assert after([HELLO, user(parts("a", "b"))], wants_parts=True) == [
        user(parts(HELLO["content"])),
        user(parts("a", "b")),
    ]


def test_arguments_become_objects_unless_they_are_kept_or_no_json() -> None:
    message = assistant(None, tool_calls=[CALL])
    message.pop("content")
    parsed = after([message])[0]["tool_calls"][0]["function"]["arguments"]
    assert parsed == {"town": "Oslo", "days": [1, 2], "n": 1.5}
    assert after([message], keeps_arguments=True) == [message]
    broken = {"role": "assistant", "function_call": {"name": "f", "arguments": ""}}
    assert after([broken]) == [broken]


def test_reasoning_goes_before_the_content_where_the_template_does_not_show_it() -> None:
    assert after([assistant("4", reasoning_content="hm")]) == [assistant("<think>hm</think>4")]
    assert after([assistant("4", reasoning_content=["a", "", "b"])]) == [
        assistant("<think>a</think><think>b</think>4")
    ]
    assert after([{"role": "assistant", "reasoning_content": "hm"}]) == [assistant("<think>hm</think>")]
    assert after([assistant("4", reasoning_content="")]) == [assistant("4", reasoning_content="")]


def test_the_gap_that_reasoning_leaves_is_closed_by_the_last_member() -> None:
    message = assistant("c", reasoning_content="t", refusal="r", name="n", tool_calls=[])
    assert list(after([message])[0]) == ["role", "content", "tool_calls", "refusal", "name"]
    assert list(after([{"role": "assistant", "reasoning_content": "t", "name": "n"}])[0]) == [
        "role",
        "content",
        "name",
    ]


def test_reasoning_stays_where_the_template_shows_it() -> None:
    message = assistant("4", reasoning_content=["a", "", "b"])
    assert after([message], shows_reasoning=True) == [message]
    joined = after([message], shows_reasoning=True, joins_reasoning=True)
    assert joined == [assistant("4", reasoning_content="a\nb")]


def test_system_messages_at_the_front_become_one_and_later_ones_the_users() -> None:
    later = {"role": "system", "content": "later"}
    assert after([SYSTEM, {"role": "system", "content": "b"}, HELLO, later], one_system=True) == [
        {"role": "system", "content": SYSTEM["content"] + "\n\nb"},
        HELLO,
        user("later"),
    ]
    assert after([HELLO, later], one_system=True) == [HELLO, user("later")]


def test_users_in_a_row_become_one_where_they_have_to_alternate() -> None:
    assert after([user("a"), user(""), user("b"), assistant("c"), user("d")], users_alternate=True) == [
        user("a\n\nb"),
        assistant("c"),
        user("d"),
    ]
    assert after([user("a"), user(parts("b", "c"))], users_alternate=True) == [user("a\nb\nc")]


def test_a_prompt_that_continues_ends_with_the_last_messages_text() -> None:
    messages = [assistant("The answer ")]
    mark_end(messages)
    assert messages == [assistant("The answer " + CONTINUE_TAG)]
    assert cut_at_mark(f"x The answer {CONTINUE_TAG}<end>") == "x The answer "
    assert cut_at_mark(f"x The answer  {CONTINUE_TAG.strip()}<end>") == "x The answer"


def test_the_mark_goes_behind_the_last_part_that_has_text() -> None:
    messages = [assistant(parts("a", "b", ""))]
    mark_end(messages)
    assert messages[0]["content"][1]["text"] == "b" + CONTINUE_TAG


@pytest.mark.parametrize("content", ["", None, [], parts("")])
def test_a_message_without_text_cannot_be_continued(content: Any) -> None:
    with pytest.raises(CannotContinue):
        mark_end([assistant(content)])


def test_a_template_that_hides_the_last_message_cannot_continue_it() -> None:
    with pytest.raises(CannotContinue):
        cut_at_mark("nothing of it")
