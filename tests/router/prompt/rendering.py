"""Renders bodies in this process, as a render process would: for tests that look at texts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import orjson

from router.prompt.render_input import CHAT_PATH, RenderInput, render_input
from router.prompt.render_wire import RENDER_HEAD, Frame, Kind, RenderFlag
from router.prompt.render_worker import Jobs
from router.prompt.simple_chat import new_mark, packed
from tests.router.prompt.conversations import TEMPLATES

TOKENS = {"bos_token": "<|begin|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
RELEASES = ("1.6.1", "1.5.0", "1.4.2")
MARK = new_mark()


def load(jobs: Jobs, engine: str, template: str, key: str = "k", **config: Any) -> Frame:
    """Compile a template under a key, with the demo's special tokens."""
    data = orjson.dumps({**TOKENS, **config, "chat_template": template})
    head = orjson.dumps({"key": key, "engine": engine, "config": len(data), "template": None})
    return Frame(*jobs.run(Frame(Kind.TEMPLATE, head, data)))


def render(jobs: Jobs, body: Mapping[str, Any], key: str = "k", path: str = CHAT_PATH) -> Frame:
    """The answer for a body that is predicted."""
    given = render_input(path, body)
    assert isinstance(given, RenderInput), given
    return render_given(jobs, given, key)


def render_given(jobs: Jobs, given: RenderInput, key: str = "k") -> Frame:
    messages = packed(given.messages, MARK) if given.is_simple else orjson.dumps(given.messages)
    tools = orjson.dumps(given.tools) if given.tools else b""
    flags = RenderFlag.ADDS_PROMPT if given.adds_generation_prompt else RenderFlag(0)
    flags |= RenderFlag.CONTINUES if given.continues else RenderFlag(0)
    flags |= RenderFlag.IS_PLAIN if given.is_plain else RenderFlag(0)
    flags |= RenderFlag.IS_SIMPLE if given.is_simple else RenderFlag(0)
    head = RENDER_HEAD.pack(flags, len(messages), len(tools)) + key.encode()
    return Frame(*jobs.run(Frame(Kind.RENDER, head, messages + tools + orjson.dumps(given.variables))))


def rendered(engine: str, template: str, body: Mapping[str, Any], **config: Any) -> str | None:
    """The text of a body, None where the template refuses it."""
    jobs = Jobs()
    loaded = load(jobs, engine, template, **config)
    assert loaded.kind is Kind.DONE, loaded.head
    answer = render(jobs, body)
    return answer.body.decode() if answer.kind is Kind.DONE else None


def template_text(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text()


@cache
def recorded(release: str) -> tuple[dict[str, Any], ...]:
    """What a release's frontend made of every template and conversation."""
    with gzip.open(TEMPLATES.parent / f"renders-{release}.jsonl.gz", "rt") as rows:
        return tuple(map(json.loads, rows))
