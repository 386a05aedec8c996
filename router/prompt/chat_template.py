"""A model's chat template, compiled: two engines behind one door. For the render process only.

minijinja is what frontends render with, so it is the default; a count of instructions ends
its loops. jinja2 is what the template's author ran, for fleets whose frontends render in
Python; it has no count, so only the limits of the process end it. Both see the same variables:
messages, tools, special tokens, what the client set, and add_generation_prompt.

A template can load nothing: there is no loader, and include, import and extends name files
that are not there. jinja2 runs in its sandbox, where nothing can be changed and no attribute
that begins with an underscore is seen.

Templates come from the fleet and are hostile until an operator has pinned them (ART-16), and
even then a client's text can make them slow: whatever is here ends with the process's limits.

Sources: requirement rows RND-02, RND-04, RND-05, ART-16; decision 61; field report B-116.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from projections.bounds import RENDER_FUEL
from router.prompt.chat_beginnings import Beginnings
from router.prompt.simple_chat import SimpleChat

DEFAULT: Final = "default"
TOOL_USE: Final = "tool_use"
_DATE_FORMAT_CHARACTERS_MAX: Final = 256
_FRONTENDS_TOKENS: Final = ("bos_token", "eos_token", "unk_token")
_TOKENS: Final = (*_FRONTENDS_TOKENS, "pad_token", "sep_token", "cls_token", "mask_token")
_TAG: Final = re.compile(
    r"""\{\#.*?\#\}
      | \{%[-+]?\s*raw\s*[-+]?%\}.*?\{%[-+]?\s*endraw\s*[-+]?%\}
      | \{(?P<block>%)(?:[^"'%]|%(?!\})|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')*%\}
      | \{\{(?:[^"'}]|\}(?!\})|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')*\}\}""",
    re.DOTALL | re.VERBOSE,
)
_TEXT_OR_ITEMS: Final = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\.items\(\)""", re.DOTALL)
_KINDS: Final = (  # of minijinja's errors, as their texts begin
    "bad escape",
    "could not serialize to value",
    "could not unpack value",
    "engine ran out of fuel",
    "invalid operation",
    "missing argument",
    "too many arguments",
    "template not found",
    "undefined value",
    "unknown filter",
    "unknown function",
    "unknown method",
    "unknown test",
)
_GENERATION: Final = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")


class Engine(StrEnum):
    """What renders. Values are those of the settings."""

    MINIJINJA = "minijinja"
    JINJA2 = "jinja2"


class TemplateFailed(Exception):
    """The template cannot be compiled, or does not render this; the text is short and quotes no message."""


class TemplateTexts(NamedTuple):
    """What the files of a model say. default: for all chats; tool_use: for those with tools.

    tokens: special tokens by name, those that the files name.
    """

    default: str
    tool_use: str
    tokens: Mapping[str, str]


def template_texts(tokenizer_config: bytes | None, chat_template: bytes | None) -> TemplateTexts:
    """The texts of a model's files; a template of its own goes before that in the configuration.

    Raises TemplateFailed where there is none, or what is there is no template.
    """
    config: Any = {}
    if tokenizer_config is not None:
        try:
            config = json.loads(tokenizer_config)
        except (ValueError, RecursionError) as problem:
            raise TemplateFailed("tokenizer_config is no JSON") from problem
    if not isinstance(config, dict):
        raise TemplateFailed("tokenizer_config is no object")
    if chat_template is not None:
        try:
            texts = _named_texts(chat_template.decode())
        except UnicodeDecodeError as problem:
            raise TemplateFailed("the template is no UTF-8") from problem
    else:
        texts = _named_texts(config.get("chat_template"))
    default = texts.get(DEFAULT)
    if default is None:
        raise TemplateFailed("no default template")
    tokens = {name: text for name in _TOKENS if (text := _token(config.get(name))) is not None}
    return TemplateTexts(default, texts.get(TOOL_USE, default), tokens)


def _named_texts(value: object) -> dict[str, str]:
    """Templates by name: one text, or a list of {name, template} or of {its name: text}."""
    if isinstance(value, str):
        return {DEFAULT: value}
    texts: dict[str, str] = {}
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict) and isinstance(item.get("template"), str):
            texts[str(item.get("name"))] = item["template"]
        elif isinstance(item, dict):
            texts.update({name: text for name, text in item.items() if isinstance(text, str)})
    return texts


def _token(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


class ChatTemplate:
    """The templates of one model in one engine.

    Raises TemplateFailed where one does not compile.
    """

    def __init__(self, engine: Engine, texts: TemplateTexts) -> None:
        self.texts = texts
        if engine is Engine.MINIJINJA:
            self._tokens: dict[str, str | None] = {name: texts.tokens.get(name) for name in _FRONTENDS_TOKENS}
            self._render = _minijinja(texts)
        else:
            self._tokens = dict(texts.tokens)
            self._render = _jinja2(texts)

    def render(
        self,
        messages: bytes | SimpleChat,
        tools: bytes,
        variables: Mapping[str, Any],
        adds_generation_prompt: bool,
    ) -> str:
        """The text. messages, tools: JSON, the former perhaps with texts apart, the latter empty for none.

        Raises TemplateFailed, whose text quotes nothing of the messages; MemoryError.
        """
        others = {**variables, **self._tokens, "add_generation_prompt": adds_generation_prompt}
        return self._render(messages, tools, others)


# minijinja


_Render = Callable[[bytes | SimpleChat, bytes, dict[str, Any]], str]


def _minijinja(texts: TemplateTexts) -> _Render:
    from minijinja import Environment, TemplateError

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, fuel=RENDER_FUEL, debug=False, auto_escape_callback=_no_escape
    )
    environment.add_filter("tojson", _tojson)
    environment.add_filter("fromjson", _fromjson)
    environment.add_filter("from_json", _fromjson)
    environment.add_filter("length", _length)
    environment.add_global("raise_exception", _raise_exception)
    environment.add_global("strftime_now", _strftime_now)
    try:
        for name, text in ((DEFAULT, texts.default), (TOOL_USE, texts.tool_use)):
            environment.add_template(name, for_minijinja(text))
    except TemplateError as problem:
        raise TemplateFailed(_short(problem)) from problem

    beginnings = Beginnings(environment, DEFAULT, TOOL_USE)

    def render(messages: bytes | SimpleChat, tools: bytes, others: dict[str, Any]) -> str:
        try:
            return beginnings.render(messages, tools, others)
        except MemoryError:
            raise
        except TemplateFailed:
            raise
        except Exception as problem:  # of filters too: whatever a template makes of its arguments
            raise TemplateFailed(_kind(problem)) from problem

    return render


def for_minijinja(text: str) -> str:
    """The template's text in minijinja's words.

    `.items()` of a map that has a member `items` would call the member, so it becomes a filter;
    a generation block, a mark of trainers, becomes a scope without effect. Literal text,
    comments, raw blocks and quoted text stay.
    """
    return _TAG.sub(_tag_for_minijinja, text)


def _tag_for_minijinja(found: re.Match[str]) -> str:
    tag = found[0]
    if tag.startswith("{#") or (found["block"] is None and tag.startswith("{%")):
        return tag
    if found["block"]:
        tag = _GENERATION.sub(lambda part: f"{part[1]}{part[2] or ''}with{part[3]}", tag)
    return _TEXT_OR_ITEMS.sub(lambda part: "|items" if part[0] == ".items()" else part[0], tag)


def _no_escape(name: str) -> bool:
    return False


def _length(value: Any) -> int:
    """Frontends' own: what has no length counts as empty."""
    try:
        return len(value)
    except TypeError:
        return 0


# jinja2


def _jinja2(texts: TemplateTexts) -> _Render:
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node, Scope
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """A generation block, a mark of trainers, renders as what is in it."""

        tags = {"generation"}  # noqa: RUF012 - typed so by the library

        def parse(self, parser: Parser) -> Node | list[Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return Scope(body, lineno=line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], autoescape=False
    )
    environment.filters["tojson"] = _tojson
    environment.filters["fromjson"] = environment.filters["from_json"] = _fromjson
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=_strftime_now,
        dict=_limited(dict),
        namespace=_limited(Namespace),
    )
    for name in ("lipsum", "cycler", "joiner"):
        environment.globals.pop(name)
    try:
        compiled = {
            DEFAULT: environment.from_string(texts.default),
            TOOL_USE: environment.from_string(texts.tool_use),
        }
    except MemoryError:
        raise
    except Exception as problem:  # constant folding runs the template's own operations
        raise TemplateFailed(_short(problem)) from problem

    def render(messages: bytes | SimpleChat, tools: bytes, others: dict[str, Any]) -> str:
        if isinstance(messages, SimpleChat):
            others["messages"] = messages.messages()
        else:
            others["messages"] = orjson.loads(messages)
        others["tools"] = orjson.loads(tools) if tools else None
        try:
            return compiled[TOOL_USE if tools else DEFAULT].render(others)
        except MemoryError:
            raise
        except TemplateFailed:
            raise
        except Exception as problem:  # as above
            raise TemplateFailed(type(problem).__name__) from problem

    return render


def _limited(make: Callable[..., Any]) -> Callable[..., Any]:
    """As `make`, but no name that it is given may begin with an underscore."""

    def limited(*given: Any, **named: Any) -> Any:
        names = [*named, *(name for one in given if isinstance(one, Mapping) for name in one)]
        if any(isinstance(name, str) and name.startswith("_") for name in names):
            raise ValueError("a name begins with an underscore")
        return make(*given, **named)

    return limited


# what both give to templates


def _tojson(value: Any, indent: Any = None, **_: Any) -> str:
    """JSON as Python writes it, text as it is; frontends take no other option than `indent`."""
    return json.dumps(value, ensure_ascii=False, indent=indent if isinstance(indent, int) else None)


def _fromjson(value: Any) -> Any:
    return orjson.loads(value) if isinstance(value, str) else value


def _raise_exception(message: Any = "") -> str:
    raise TemplateFailed("the template refuses these messages")  # its words may quote them


def _strftime_now(form: Any) -> str:
    """Now in this machine's zone: near midnight a frontend may write another day (B-118)."""
    if not isinstance(form, str) or len(form) > _DATE_FORMAT_CHARACTERS_MAX:
        raise TemplateFailed("a date's form that is none")
    return datetime.now().astimezone().strftime(form)


def _short(problem: object) -> str:
    """The innermost cause of what did not compile: it may be a template's own words, so it is cut."""
    text = str(problem).strip() or type(problem).__name__
    return re.sub(r"[^ -~]", "?", text.splitlines()[-1].removeprefix("caused by: "))[:120]


def _kind(problem: Exception) -> str:
    """The kind of the innermost error of minijinja. What follows it may be text of a client."""
    for line in reversed(str(problem).splitlines()):
        said = line.removeprefix("caused by: ")
        for kind in _KINDS:
            if said.startswith(kind):
                return kind
    return type(problem).__name__
