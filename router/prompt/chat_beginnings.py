"""Small templates that set messages and tools and include the model's: how a chat gets into minijinja.

The engine makes values of its own of a literal. These print as a frontend's do and are read four
times as fast as Python's. JSON is a literal of its language but for `null`. It reads one slowly,
though: 2 ns a byte. So where texts come apart (see `simple_chat`) the literal has places of a
list in their stead, and the engine cuts that list out of one text. What is left of such a
beginning is the same for all chats of the same roles and tools, so the latest small ones are
kept compiled.

Source: measured by `bench/prompt.py`; requirement row RND-04.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import orjson

from router.prompt.simple_chat import SimpleChat

if TYPE_CHECKING:
    from minijinja import Environment

BEGINNINGS_KEPT: Final = 64  # of one model, compiled
BEGINNING_BYTES_MAX: Final = 4096  # of roles and tools; some 100 KB when compiled
_TEXTS: Final = "picklog_texts"
_MARK: Final = "picklog_mark"
_SET_HERE: Final = ("messages", "tools", "null", _TEXTS, _MARK)


class Beginnings:
    """Renders the templates `plain` and, for chats with tools, `with_tools` of an environment."""

    def __init__(self, environment: Environment, plain: str, with_tools: str) -> None:
        self._environment = environment
        self._plain = plain
        self._with_tools = with_tools
        self._names: OrderedDict[tuple[bytes, bytes], str] = OrderedDict()
        self._made = 0

    def render(self, messages: bytes | SimpleChat, tools: bytes, others: dict[str, Any]) -> str:
        """The text. messages, tools: JSON, the former perhaps with texts apart, the latter empty for none.

        others: further variables, which may be changed. Raises what the environment raises.
        """
        for name in _SET_HERE:
            others.pop(name, None)
        others["tools"] = None
        if isinstance(messages, bytes):
            return self._environment.render_str(self._in_json(messages, tools), **others)
        others[_TEXTS], others[_MARK] = messages.texts, messages.mark
        if len(messages.roles) + len(tools) > BEGINNING_BYTES_MAX:
            return self._environment.render_str(self._texts_apart(messages.roles, tools), **others)
        return self._environment.render_template(self._name_of(messages.roles, tools), **others)

    def _name_of(self, roles: bytes, tools: bytes) -> str:
        """The compiled beginning of such chats."""
        name = self._names.get((roles, tools))
        if name is not None:
            self._names.move_to_end((roles, tools))
            return name
        self._made += 1
        name = f"beginning {self._made}"
        self._environment.add_template(name, self._texts_apart(roles, tools))
        self._names[roles, tools] = name
        if len(self._names) > BEGINNINGS_KEPT:
            self._environment.remove_template(self._names.popitem(last=False)[1])
        return name

    def _in_json(self, messages: bytes, tools: bytes) -> str:
        null = b"{% set null=none %}" if b"null" in messages else b""
        parts = null, b"{% set messages=", messages, b" %}", self._ending(tools)
        return b"".join(parts).decode("utf-8", "replace")

    def _texts_apart(self, roles: bytes, tools: bytes) -> str:
        """As _in_json, for texts that are given when it is rendered. Roles are of the few that we know."""
        members = [
            f'{{"role":"{role}","content":{_TEXTS}[{place}]}}'
            for place, role in enumerate(orjson.loads(roles))
        ]
        texts = f"{{% set {_TEXTS}={_TEXTS}|split({_MARK})|list %}}"
        messages = f"{{% set messages=[{','.join(members)}] %}}"
        return texts + messages + self._ending(tools).decode("utf-8", "replace")

    def _ending(self, tools: bytes) -> bytes:
        """Sets the tools, if any, and includes the model's template."""
        if not tools:
            return b'{%% include "%b" %%}' % self._plain.encode()
        null = b"{% set null=none %}" if b"null" in tools else b""
        return b'%b{%% set tools=%b %%}{%% include "%b" %%}' % (null, tools, self._with_tools.encode())
