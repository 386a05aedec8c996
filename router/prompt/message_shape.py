"""The last changes that a frontend makes to messages, which depend on the chat template.

Templates differ in what they take: content as text or as parts, arguments of tool calls as
text or as objects, reasoning in a member of its own or not at all, a system message anywhere
or only first. A frontend finds out when it loads a template, partly from its text and partly
by rendering small probes, and then writes messages the way this template takes them. So does
this module. It runs in the render process only: probes run the template's code.

Sources: measured on Dynamo 1.6.1, docs/kv.md "From a prompt to blocks"; field report B-116.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import orjson

Messages = list[dict[str, Any]]
Render = Callable[[Messages, bool], str | None]
"""Renders messages, with or without a generation prompt; None where the template refuses them."""

CONTINUE_TAG: Final = "CONTINUE_FINAL_MESSAGE_TAG "
_WORD: Final = "template_test"
_FIRST: Final = "\x01reasoning first\x01"
_LAST: Final = "\x01reasoning last\x01"
_ARGUMENTS: Final = '{"probe": "value"}'


class CannotContinue(Exception):
    """The last message has no text, or the template did not show it."""


class TemplateTraits(NamedTuple):
    """What a template takes.

    wants_parts: content as parts only. keeps_arguments: a call's arguments as the text that was
    sent. shows_reasoning: it reads `reasoning_content`; joins_reasoning: as text only.
    one_system: a system message stands first or nowhere. users_alternate: no two users in a row.
    """

    wants_parts: bool = False
    keeps_arguments: bool = False
    shows_reasoning: bool = False
    joins_reasoning: bool = False
    one_system: bool = False
    users_alternate: bool = False

    @property
    def takes_plain(self) -> bool:
        """Whether messages without parts, calls and reasoning are taken as they are."""
        return not (self.wants_parts or self.one_system or self.users_alternate)


def traits_of(source: str, render: Render) -> TemplateTraits:
    """What the template of this text takes, found by up to nine small renders."""
    keeps_arguments = "arguments is string" in source and _ARGUMENTS in (
        render(_tool_round(_ARGUMENTS), True) or ""
    )
    shows_reasoning = "reasoning_content" in source
    one_system, users_alternate = _rules_of_order(render)
    return TemplateTraits(
        wants_parts=_wants_parts(render),
        keeps_arguments=keeps_arguments,
        shows_reasoning=shows_reasoning,
        joins_reasoning=shows_reasoning and _joins_reasoning(render, keeps_arguments),
        one_system=one_system,
        users_alternate=users_alternate,
    )


def shaped(messages: Messages, traits: TemplateTraits) -> Messages:
    """The messages as this template takes them. The list and its messages may be changed."""
    if traits.one_system:
        messages = _one_system(messages)
    if traits.users_alternate:
        messages = _joined_users(messages)
    for message in messages:
        _shape_content(message, traits.wants_parts)
        if not traits.keeps_arguments:
            for call in message.get("tool_calls", ()):
                _parse_arguments(call["function"])
        if "function_call" in message:
            _parse_arguments(message["function_call"])
        if "reasoning_content" in message:
            _shape_reasoning(message, traits)
    return messages


def mark_end(messages: Messages) -> None:
    """Put a mark behind the last message's text, so that `cut_at_mark` finds its end.

    Raises CannotContinue for a message without text.
    """
    last = messages[-1]
    content = last.get("content")
    if isinstance(content, str) and content:
        last["content"] = content + CONTINUE_TAG
        return
    for part in reversed(content) if isinstance(content, list) else ():
        if part.get("text"):
            part["text"] += CONTINUE_TAG
            return
    raise CannotContinue("the last message has no text")


def cut_at_mark(text: str) -> str:
    """The text up to the mark; blanks before it go where the template trimmed the mark's own.

    Raises CannotContinue where the mark is not in the text.
    """
    place = text.rfind(CONTINUE_TAG.rstrip())
    if place < 0:
        raise CannotContinue("the template does not show the last message")
    return text[:place] if text.startswith(CONTINUE_TAG, place) else text[:place].rstrip()


# what a template takes


def _wants_parts(render: Render) -> bool:
    parts = render([{"role": "user", "content": [{"type": "text", "text": _WORD}]}], False) or ""
    return _WORD in parts and _WORD not in (render([_user(_WORD)], False) or "")


def _rules_of_order(render: Render) -> tuple[bool, bool]:
    """Whether it refuses a system message behind others, and two users in a row."""
    if render([_system("s"), _user("u")], False) is None:
        return False, False
    later = render([_system("s0"), _user("u"), _system("s1")], False)
    reply = {"role": "assistant", "content": "a"}
    after_reply = render([_system("s0"), _user("u"), reply, _system("s1"), _user("u2")], False)
    users = render([_system("s"), _user("u0"), _user("u1")], False)
    return later is None or after_reply is None, users is None


def _joins_reasoning(render: Render, keeps_arguments: bool) -> bool:
    arguments: Any = "{}" if keeps_arguments else {}
    if _FIRST not in (render(_tool_round(arguments, _FIRST), True) or ""):
        return False
    shown = render(_tool_round(arguments, [_FIRST, _LAST]), True) or ""
    return _FIRST not in shown and _LAST not in shown


def _tool_round(arguments: Any, reasoning: Any = None) -> Messages:
    call = {"id": "call_probe", "type": "function", "function": {"name": "probe", "arguments": arguments}}
    reply: dict[str, Any] = {"role": "assistant", "content": ""}
    if reasoning is not None:
        reply["reasoning_content"] = reasoning
    reply["tool_calls"] = [call]
    return [_user("u"), reply, {"role": "tool", "tool_call_id": "call_probe", "content": "r"}]


def _system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


# how messages change


def _one_system(messages: Messages) -> Messages:
    """System messages at the front become one, later ones become the user's."""
    leading = 0
    while leading < len(messages) and messages[leading]["role"] == "system":
        leading += 1
    for message in messages[1:leading]:
        _append_content(messages[0], message["content"])
    kept = messages[: min(1, leading)]
    for message in messages[leading:]:
        if message["role"] == "system":
            message["role"] = "user"
        kept.append(message)
    return kept


def _joined_users(messages: Messages) -> Messages:
    kept: Messages = []
    for message in messages:
        if kept and message["role"] == "user" == kept[-1]["role"]:
            _append_content(kept[-1], message["content"])
        else:
            kept.append(message)
    return kept


def _append_content(target: dict[str, Any], more: Any) -> None:
    own = target.pop("content")
    if isinstance(own, str) and isinstance(more, str):
        target["content"] = own + ("\n\n" if own and more else "") + more
        return
    parts = own if isinstance(own, list) else _parts(own)
    target["content"] = [*parts, *(more if isinstance(more, list) else _parts(more))]


def _parts(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []


def _shape_content(message: dict[str, Any], wants_parts: bool) -> None:
    content = message.get("content")
    if isinstance(content, str):
        if wants_parts:
            message["content"] = [{"type": "text", "text": content}]
    elif content and not wants_parts:
        message["content"] = "\n".join([part["text"] for part in content])


def _parse_arguments(function: dict[str, Any]) -> None:
    try:
        function["arguments"] = orjson.loads(function["arguments"])
    except orjson.JSONDecodeError:
        return


def _shape_reasoning(message: dict[str, Any], traits: TemplateTraits) -> None:
    reasoning = message["reasoning_content"]
    if traits.shows_reasoning:
        if traits.joins_reasoning and isinstance(reasoning, list):
            message["reasoning_content"] = "\n".join(filter(None, reasoning))
        return
    segments = reasoning if isinstance(reasoning, list) else [reasoning]
    thoughts = "".join(f"<think>{segment}</think>" for segment in segments if segment)
    if not thoughts:
        return
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [{"type": "text", "text": thoughts}, *content]
    else:
        message["content"] = thoughts + (content or "")
    # the frontend's map closes the gap with its last member: seen only where a template prints messages
    members = [name for name in message if name != "reasoning_content"]
    place = list(message).index("reasoning_content")
    if place < len(members):
        members.insert(place, members.pop())
    shaped_message = {name: message[name] for name in members}
    message.clear()
    message.update(shaped_message)
