"""What a frontend makes of a request's body before it renders: the part that no template decides.

A frontend reads the body into typed messages and writes them anew, so that a template sees
the members that it knows, in its own order, and nothing else. The same is done here, on a copy.
What depends on the template (parts or text, arguments as text or as an object, reasoning) is
done beside the template, see `message_shape`.

A body that a frontend refuses, or whose meaning is not known here (images, batches, roles that
we do not know), is Unsupported: no prefix term is better than one for another prompt (B-118).

`nvext.token_data` of a client never reaches a frontend, so it is not looked at.

Sources: measured on Dynamo 1.6.1, docs/kv.md "From a prompt to blocks"; requirement rows
RND-06, RND-07, RND-11; field reports B-110, B-117, B-118; decision 40.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from projections.bounds import (
    PROMPT_MESSAGES_MAX,
    PROMPT_PARTS_MAX,
    PROMPT_TEXT_BYTES_MAX,
    PROMPT_TOKENS_MAX,
)

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"
TENANT_HEADER: Final = "x-tenant-id"

_TEXT_ROLES: Final = frozenset({"system", "developer", "user", "tool", "function"})
_SIMPLE_ROLES: Final = ("user", "assistant", "system", "developer")
_SHAPED: Final = frozenset({"tool_calls", "function_call", "reasoning_content"})
_LISTS: Final = ("content", "tool_calls", "reasoning", "reasoning_content")
_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
_TYPES_OF_THINKING: Final = {"enabled": True, "disabled": False}
_THINKING: Final = ("thinking", "enable_thinking")
_NOT_KEPT: Final = frozenset({"tools", "tool_choice", "messages", "add_generation_prompt"})


class Unsupported(NamedTuple):
    """No prompt that we can predict. detail: a short sentence without any text of the body."""

    detail: str


class TooLarge(NamedTuple):
    """More text or tokens than a prompt may have (RND-06)."""

    detail: str


class TokensGiven(NamedTuple):
    """The prompt as token ids, packed little-endian u32."""

    tokens: bytes


class TextGiven(NamedTuple):
    """The prompt as text that is encoded as it is."""

    text: str


class RenderInput(NamedTuple):
    """What a chat template is rendered with.

    messages, tools: as a frontend writes them anew; tools None for none. variables: what else
    the client gives to the template. continues: the text ends within the last message.
    is_plain: contents are texts, and there are neither calls nor reasoning. is_simple: each message
    is a role and a text, in this order, and nothing else.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    variables: dict[str, Any]
    adds_generation_prompt: bool
    continues: bool
    is_plain: bool
    is_simple: bool


class _Refused(Exception):
    """A shape that a frontend refuses or that we do not know; the text is the detail."""


Given = RenderInput | TextGiven | TokensGiven | TooLarge | Unsupported


def render_input(path: str, body: Mapping[str, Any], *, hides_unwanted_tools: bool = True) -> Given:
    """What to render or encode for a body.

    path: of the request; everything but chat completions and completions is Unsupported.
    hides_unwanted_tools: of the card, `tool_choice: none` takes the tools away (its default).
    The body is not changed. Total: no shape raises.
    """
    try:
        if path == CHAT_PATH:
            return _chat(body, hides_unwanted_tools)
        if path == COMPLETIONS_PATH:
            return _completion(body.get("prompt"))
        return Unsupported("another path")
    except _Refused as problem:
        return Unsupported(str(problem))


def salt_of(headers: Mapping[str, str], body: Mapping[str, Any]) -> str | None:
    """The cache salt of a request: header, `nvext.cache_salt`, `cache_salt`, the first that has text.

    headers: names in any case. Source: requirement row RND-11.
    """
    nvext = body.get("nvext")
    header = headers.get(TENANT_HEADER)
    if header is None:
        header = next((text for name, text in headers.items() if name.lower() == TENANT_HEADER), None)
    wishes = (header, nvext.get("cache_salt") if isinstance(nvext, Mapping) else None, body.get("cache_salt"))
    return next((salt for salt in wishes if isinstance(salt, str) and salt), None)


# chat completions


def _chat(body: Mapping[str, Any], hides_unwanted_tools: bool) -> Given:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _Refused("no messages")
    if len(messages) > PROMPT_MESSAGES_MAX:
        return TooLarge("too many messages")
    tools = body.get("tools")
    parts = PROMPT_PARTS_MAX - (len(tools) if isinstance(tools, list) else 0)
    written, left, is_plain, is_simple = [], PROMPT_TEXT_BYTES_MAX, True, True
    for message in messages:
        if isinstance(message, dict) and len(message) == 2:
            role, content = message.get("role"), message.get("content")
            if isinstance(content, str) and role in _SIMPLE_ROLES and next(iter(message)) == "role":
                written.append(message)  # as it would be written
                left -= len(content)
                continue
        parts -= _parts_of(message)
        if parts < 0:
            break
        one, size = _message(message)
        written.append(one)
        is_plain = is_plain and isinstance(one.get("content"), str) and _SHAPED.isdisjoint(one)
        is_simple = is_plain and is_simple and len(one) == 2
        left -= size
    if parts < 0:
        return TooLarge("too many parts")
    if left < 0:
        return TooLarge("too much text")
    adds, continues = _ending(body)
    return RenderInput(
        written, _tools(body, hides_unwanted_tools), _variables(body), adds, continues, is_plain, is_simple
    )


def _parts_of(message: object) -> int:
    """How many members of lists would be written anew."""
    if not isinstance(message, dict):
        return 0
    lists = [message.get(name) for name in _LISTS]
    return sum(len(one) for one in lists if isinstance(one, list))


def _message(message: object) -> tuple[dict[str, Any], int]:
    """A message written anew, and the characters of its content."""
    if not isinstance(message, dict):
        raise _Refused("a message is no object")
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        return _assistant(message)
    if not isinstance(role, str) or role not in _TEXT_ROLES:
        raise _Refused("a role that is not known")
    content, size = _content(content)
    written = {"role": role, "content": content}
    if role == "tool":
        written["tool_call_id"] = _text(message.get("tool_call_id"), "tool_call_id")
    elif message.get("name") is not None:
        written["name"] = _text(message["name"], "name")
    elif role == "function":
        raise _Refused("a function without a name")
    return written, size


def _assistant(message: dict[str, Any]) -> tuple[dict[str, Any], int]:
    written: dict[str, Any] = {"role": "assistant"}
    size = 0
    if message.get("content") is not None:
        written["content"], size = _content(message["content"])
    if "reasoning" in message and "reasoning_content" in message:
        raise _Refused("reasoning is given twice")
    reasoning = message.get("reasoning_content", message.get("reasoning"))
    if reasoning is not None:
        written["reasoning_content"] = _reasoning(reasoning)
        size += len(reasoning) if isinstance(reasoning, str) else sum(map(len, reasoning))
    for name in ("refusal", "name"):
        if message.get(name) is not None:
            written[name] = _text(message[name], name)
    if message.get("audio") is not None:
        raise _Refused("a message with audio")
    if message.get("tool_calls") is not None:
        written["tool_calls"] = [_tool_call(call) for call in _list(message["tool_calls"], "tool_calls")]
    if message.get("function_call") is not None:
        written["function_call"] = _call(message["function_call"])
    return written, size


def _content(content: object) -> tuple[Any, int]:
    """Text, or parts of text, and its characters; anything else in it is not predicted."""
    if isinstance(content, str):
        return content, len(content)
    if not isinstance(content, list):
        raise _Refused("content is neither text nor parts")
    parts, size = [], 0
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise _Refused("a part that is no text")
        text = _text(part.get("text"), "text")
        parts.append({"type": "text", "text": text})
        size += len(text)
    return parts, size


def _reasoning(reasoning: object) -> str | list[str]:
    if isinstance(reasoning, list):
        return [_text(segment, "reasoning") for segment in reasoning]
    return _text(reasoning, "reasoning")


def _tool_call(call: object) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise _Refused("a tool call is no object")
    return {"id": _text(call.get("id"), "id"), "type": "function", "function": _call(call.get("function"))}


def _call(call: object) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise _Refused("a function call is no object")
    arguments = call.get("arguments")
    if isinstance(arguments, dict):
        arguments = _compact(arguments)
    elif not isinstance(arguments, str):
        raise _Refused("arguments are neither text nor an object")
    return {"name": _text(call.get("name"), "name"), "arguments": arguments}


def _tools(body: Mapping[str, Any], hides_unwanted: bool) -> list[dict[str, Any]] | None:
    tools = body.get("tools")
    if tools is None:
        return None
    written = [_tool(tool) for tool in _list(tools, "tools")]
    is_unwanted = hides_unwanted and body.get("tool_choice") == "none"
    return None if is_unwanted or not written else written


def _tool(tool: object) -> dict[str, Any]:
    """A tool as frontends write it: known members alone, a schema with type and properties."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(function, dict):
        raise _Refused("a tool that is no function")
    written: dict[str, Any] = {"name": _text(function.get("name"), "name")}
    if function.get("description") is not None:
        written["description"] = _text(function["description"], "description")
    parameters = function.get("parameters")
    if parameters is not None:
        if not isinstance(parameters, dict):
            raise _Refused("parameters are no object")
        written["parameters"] = {**parameters}
        written["parameters"].setdefault("type", "object")
        written["parameters"].setdefault("properties", {})
    if function.get("strict") is not None:
        written["strict"] = _flag(function["strict"], "strict")
    written.setdefault("description", "")
    return {"type": "function", "function": written}


def _ending(body: Mapping[str, Any]) -> tuple[bool, bool]:
    """add_generation_prompt and continue_final_message, which exclude each other."""
    adds, continues = body.get("add_generation_prompt"), body.get("continue_final_message")
    adds = True if adds is None else _flag(adds, "add_generation_prompt")
    continues = False if continues is None else _flag(continues, "continue_final_message")
    if adds and continues:
        raise _Refused("both add_generation_prompt and continue_final_message")
    return adds, continues


def _variables(body: Mapping[str, Any]) -> dict[str, Any]:
    """Variables that the client sets for the template, with what `thinking` stands for."""
    given = [body[name] for name in ("chat_template_args", "chat_template_kwargs") if name in body]
    if len(given) > 1:
        raise _Refused("variables are given twice")
    variables: dict[str, Any] = {}
    if given and given[0] is not None:
        if not isinstance(given[0], dict):
            raise _Refused("variables are no object")
        variables = {name: value for name, value in given[0].items() if name not in _NOT_KEPT}
    effort = body.get("reasoning_effort")
    if effort is not None:
        if not isinstance(effort, str) or effort not in _EFFORTS:
            raise _Refused("reasoning_effort of another kind")
        variables["reasoning_effort"] = effort
    return _with_thinking(variables, body.get("thinking"))


def _with_thinking(variables: dict[str, Any], wish: object) -> dict[str, Any]:
    """One wish under all the names that templates ask it by."""
    if isinstance(wish, dict):
        kind = wish.get("type")
        if kind == "adaptive":
            others = {name: value for name, value in variables.items() if name not in _THINKING}
            return {**others, "thinking_mode": "adaptive"}
        wish = _TYPES_OF_THINKING.get(kind) if isinstance(kind, str) else None
        if wish is None:
            raise _Refused("thinking of another kind")
    for name in _THINKING:
        if wish is None and name in variables:
            wish = variables[name]
            if not isinstance(wish, bool):
                raise _Refused(f"{name} is no boolean")
    if wish is None and isinstance(variables.get("reasoning_effort"), str):
        wish = variables["reasoning_effort"] != "none"
    if wish is None:
        return variables
    if not isinstance(wish, bool):
        raise _Refused("thinking of another kind")
    mode = "enabled" if wish else "disabled"
    return {**variables, "thinking": wish, "enable_thinking": wish, "thinking_mode": mode}


# completions


def _completion(prompt: object) -> Given:
    """A prompt as text or token ids; a batch of one counts as its prompt, others are not predicted."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        if not prompt:
            raise _Refused("an empty prompt")
        return TextGiven(prompt) if len(prompt) <= PROMPT_TEXT_BYTES_MAX else TooLarge("too much text")
    if not isinstance(prompt, list) or not prompt:
        raise _Refused("no prompt")
    if len(prompt) > PROMPT_TOKENS_MAX:
        return TooLarge("too many tokens")
    try:
        if any(map(bool.__instancecheck__, prompt)):
            raise _Refused("a prompt of neither text nor token ids")
        return TokensGiven(array("I", prompt).tobytes())
    except (TypeError, OverflowError):
        raise _Refused("a prompt of neither text nor token ids") from None


# single values


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise _Refused(f"{name} is no text")
    return value


def _compact(value: dict[str, Any]) -> str:
    try:
        return orjson.dumps(value).decode()
    except (orjson.JSONEncodeError, RecursionError):
        raise _Refused("arguments that JSON cannot hold") from None


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise _Refused(f"{name} is no boolean")
    return value


def _list(value: object, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise _Refused(f"{name} is no list")
    return value
