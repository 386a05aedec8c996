"""Beginnings of chats: both forms render alike, few are kept, and no client gets in."""

from __future__ import annotations

import orjson
import pytest
from minijinja import Environment

from router.prompt.chat_beginnings import BEGINNINGS_KEPT, Beginnings
from router.prompt.simple_chat import new_mark, packed, unpacked

SHOWN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools|tojson }}"
MARK = new_mark()


def environment() -> Environment:
    made = Environment()
    made.add_template("plain", SHOWN)
    made.add_template("tools", SHOWN + " with tools")
    return made


@pytest.mark.parametrize("tools", [b"", b'[{"type":"function","x":null}]', b'["' + b"x" * 5000 + b'"]'])
def test_texts_apart_render_as_texts_in_json_whatever_was_kept(tools: bytes) -> None:
    beginnings = Beginnings(environment(), "plain", "tools")
    for _ in range(2):
        for count in range(1, BEGINNINGS_KEPT + 3):
            messages = [{"role": "user", "content": f"text {number}"} for number in range(count)]
            chat = unpacked(memoryview(packed(messages, MARK)))
            wanted = beginnings.render(orjson.dumps(messages), tools, {})
            assert beginnings.render(chat, tools, {}) == wanted
            assert wanted.endswith(" with tools") is bool(tools)


def test_few_beginnings_are_kept() -> None:
    under_test = environment()
    beginnings = Beginnings(under_test, "plain", "tools")
    for count in range(1, 3 * BEGINNINGS_KEPT):
        chat = unpacked(memoryview(packed([{"role": "user", "content": ""}] * count, MARK)))
        beginnings.render(chat, b"", {})
    assert len(beginnings._names) == BEGINNINGS_KEPT
    with pytest.raises(Exception, match="template not found"):
        under_test.render_template("beginning 1")


def test_a_client_sets_none_of_what_a_beginning_sets() -> None:
    beginnings = Beginnings(environment(), "plain", "tools")
    chat = unpacked(memoryview(packed([{"role": "user", "content": "said"}], MARK)))
    hostile = dict.fromkeys(("messages", "tools", "null", "picklog_texts", "picklog_mark"), "x")
    assert beginnings.render(chat, b"", hostile) == "user: said\nnull"
