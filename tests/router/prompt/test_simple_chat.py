"""Chats of roles and texts: packed and unpacked without a loss, rendered as in any other form."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.prompt.chat_template import ChatTemplate, Engine, TemplateTexts
from router.prompt.simple_chat import MARK_CHARACTERS, SimpleChat, new_mark, packed, unpacked

PRINTS_ALL = "{% for m in messages %}{{ m }}{{ m.role }}={{ m.content|length }}:{{ m.content }};{% endfor %}"
MESSAGES = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant", "system", "developer"]),
        st.text(max_size=40),
    ),
    min_size=1,
    max_size=6,
)


@given(MESSAGES)
def test_what_was_packed_is_unpacked(messages: list[dict[str, str]]) -> None:
    assert unpacked(memoryview(packed(messages, new_mark()))).messages() == messages


def test_marks_are_long_and_not_the_same_twice() -> None:
    marks = {new_mark() for _ in range(100)}
    assert len(marks) == 100 and {len(mark) for mark in marks} == {MARK_CHARACTERS}


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        packed([{"role": "user", "content": "\ud800"}], new_mark())


@settings(max_examples=150, deadline=None)
@given(MESSAGES)
@pytest.mark.parametrize("engine", list(Engine))
def test_texts_apart_render_as_texts_in_json(engine: Engine, messages: list[dict[str, str]]) -> None:
    template = ChatTemplate(engine, TemplateTexts(PRINTS_ALL, PRINTS_ALL, {}))
    apart = unpacked(memoryview(packed(messages, new_mark())))
    assert isinstance(apart, SimpleChat)
    assert template.render(apart, b"", {}, True) == template.render(orjson.dumps(messages), b"", {}, True)
