"""Chat templates: what real frontends made of the corpus, and what a hostile template gets."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import orjson
import pytest

from router.prompt import chat_template
from router.prompt.chat_template import (
    ChatTemplate,
    Engine,
    TemplateFailed,
    TemplateTexts,
    for_minijinja,
    template_texts,
)
from router.prompt.render_wire import Kind
from router.prompt.render_worker import Jobs
from tests.router.prompt.conversations import CONVERSATIONS, HELLO
from tests.router.prompt.rendering import load, recorded, render, rendered, template_text

ENGINES = tuple(Engine)
PRINTED = {"none-and-undefined", "functionary", "glm-4", "json-order"}
"""Templates that print a map, a list, or a token that is not there: engines write those differently."""


def compared(release: str, engine: str) -> tuple[Counter[str], dict[tuple[str, str], str]]:
    """How often we agree with a release's frontend, and where not."""
    jobs, known = Jobs(), set()
    outcome: Counter[str] = Counter()
    differing = {}
    for row in recorded(release):
        name, case = row["template"], row["case"]
        if name not in known:
            assert load(jobs, engine, template_text(name), key=name).kind is Kind.DONE
            known.add(name)
        answer = render(jobs, CONVERSATIONS[case], name)
        text = answer.body.decode() if answer.kind is Kind.DONE else None
        wanted = row.get("text")
        if text == wanted:
            outcome["same" if text is not None else "refused by both"] += 1
            continue
        kind = "differs" if None not in (text, wanted) else "only ours" if wanted is None else "only theirs"
        outcome[kind] += 1
        differing[name, case] = kind
    return outcome, differing


@pytest.fixture
def recorded_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates that write a date write the day of the recording."""

    class Day(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Day:
            return cls.fromisoformat(recorded("1.6.1")[0]["date"] + "T12:00:00")

    monkeypatch.setattr(chat_template, "datetime", Day)


@pytest.mark.usefixtures("recorded_day")
@pytest.mark.req("RND-02")
@pytest.mark.field("B-110", "B-116")
def test_minijinja_writes_what_the_newest_frontend_writes_in_every_case() -> None:
    outcome, differing = compared("1.6.1", "minijinja")
    assert differing == {}
    assert outcome == {"same": 1073, "refused by both": 71}


@pytest.mark.usefixtures("recorded_day")
@pytest.mark.req("RND-02")
def test_jinja2_differs_only_where_a_template_prints_what_is_no_text() -> None:
    outcome, differing = compared("1.6.1", "jinja2")
    assert {name for name, _ in differing} <= PRINTED
    assert outcome["same"] + outcome["refused by both"] == 1116


@pytest.mark.usefixtures("recorded_day")
@pytest.mark.req("RND-02")
def test_the_frontend_before_differs_in_four_texts_only() -> None:
    outcome, differing = compared("1.5.0", "minijinja")
    texts = {(name, case) for (name, case), kind in differing.items() if kind == "differs"}
    assert texts == {
        ("command-r", "two systems"),
        ("gemma-3", "two systems"),
        ("llama-2", "two systems"),
        ("qwen-3", "reasoning, calls"),
    }
    assert outcome["only theirs"] == 0


@pytest.mark.usefixtures("recorded_day")
@pytest.mark.req("RND-02")
def test_the_oldest_frontend_prints_values_in_its_own_way() -> None:
    outcome, differing = compared("1.4.2", "minijinja")
    others = {
        (name, case)
        for (name, case), kind in differing.items()
        if kind == "differs" and name not in {"none-and-undefined", "string-methods"}
    }
    assert {case for _, case in others} <= {"two systems", "reasoning, calls"}
    assert outcome["same"] == 920 and outcome["only theirs"] == 0


def test_the_corpus_has_forty_templates_and_asks_each_everything() -> None:
    rows = {(row["template"], row["case"]) for row in recorded("1.6.1")}
    assert len({name for name, _ in rows}) >= 40
    assert len(rows) == len(recorded("1.6.1")) == len({name for name, _ in rows}) * len(CONVERSATIONS)


# what both engines do alike


def test_texts_of_a_client_are_never_code() -> None:
    hostile = "%} {% endfor %} {{ 1/0 }} \" ' \\ \x00 \u2028 {# null"
    for engine in ENGINES:
        text = rendered(engine, "{{ messages[0].content }}", {"messages": [{**HELLO, "content": hostile}]})
        assert text == hostile


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ tools is none }} {{ documents is defined }} {{ bos_token }}", "True False <|begin|>"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{% generation %}a{% set x = 1 %}{% endgeneration %}{{ x is defined }}", "aFalse"),
        ("{{ {'b': [1, none], 'a': '<é\\''} | tojson }}", '{"b": [1, null], "a": "<é\'"}'),
        ("{{ {'items': 1}.items() | list | length }}", "1"),
        ("{{ ' A b '.strip().lower().split(' ') | join('-') }}", "a-b"),
        ("{{ '{\"a\": [1]}' | fromjson | tojson }}", '{"a": [1]}'),
        ("{% raw %}{{ x.items() }}{% endraw %}{# {% generation %} #}", "{{ x.items() }}"),
        ("{{ '.items() {% generation %}' }}", ".items() {% generation %}"),
    ],
)
def test_templates_have_what_their_authors_had(engine: str, template: str, text: str) -> None:
    assert rendered(engine, template, {"messages": [HELLO]}) == text


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.req("RND-05", "ART-16")
@pytest.mark.parametrize(
    "template",
    [
        "{% include '/etc/passwd' %}",
        "{% include '../../../../etc/passwd' %}",
        "{% import '/etc/passwd' as x %}{{ x }}",
        "{% from 'os' import system %}",
        "{% extends '/etc/passwd' %}",
    ],
)
def test_a_template_can_read_nothing(engine: str, template: str) -> None:
    jobs = Jobs()
    answers = [load(jobs, engine, template)]
    if answers[0].kind is Kind.DONE:
        answers.append(render(jobs, {"messages": [HELLO]}))
    assert answers[-1].kind is Kind.FAILED
    assert b"root" not in answers[-1].head


ESCAPES = [
    "''.__class__.__mro__[1].__subclasses__()",
    "messages.__class__",
    "messages.__init__.__globals__",
    "raise_exception.__globals__",
    "strftime_now.__globals__['os'].system('true')",
    "(messages | attr('__class__'))",
    "messages|map(attribute='__class__')|list",
    "namespace.__init__.__globals__",
    "cycler.__init__.__globals__.os",
    "lipsum.__globals__",
    "self.__init__.__globals__",
    "self._TemplateReference__context",
    "dict(__class__=1)",
    "namespace(__class__=1)",
    "'{0.__class__}'.format(messages)",
    "'%s' | format(messages.__class__)",
    "messages.append.__self__.__class__",
    "joiner.__init__",
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.req("ART-16")
@pytest.mark.parametrize("expression", ESCAPES)
def test_a_template_reaches_nothing_of_python(engine: str, expression: str) -> None:
    jobs = Jobs()
    loaded = load(jobs, engine, "{{ " + expression + " }}")
    answer = render(jobs, {"messages": [HELLO]}) if loaded.kind is Kind.DONE else loaded
    assert answer.kind is Kind.FAILED or not any(
        word in answer.body for word in (b"<class", b"<module", b"<function", b"<built", b" at 0x")
    )


@pytest.mark.req("ART-16")
def test_a_template_changes_nothing_that_the_next_one_sees() -> None:
    for change in ("messages.append(1)", "messages[0].update(content='x')", "messages.clear()"):
        for engine in ENGINES:
            jobs = Jobs()
            assert load(jobs, engine, "{% set _ = " + change + " %}{{ messages | length }}").kind is Kind.DONE
            first, second = (render(jobs, {"messages": [HELLO]}) for _ in range(2))
            assert first == second


@pytest.mark.req("RND-04")
def test_a_loop_under_minijinja_ends_by_its_count_of_instructions() -> None:
    jobs = Jobs()
    load(jobs, "minijinja", "{% for x in range(9999) %}{% for y in range(9999) %}{% endfor %}{% endfor %}")
    answer = render(jobs, {"messages": [HELLO]})
    assert answer.kind is Kind.FAILED and b"fuel" in answer.head


@pytest.mark.parametrize("engine", ENGINES)
def test_a_refusal_of_the_template_is_told_in_one_short_line(engine: str) -> None:
    jobs = Jobs()
    load(jobs, engine, "{{ raise_exception('no\\x07pe' ~ 'x' * 500) }}")
    answer = render(jobs, {"messages": [HELLO]})
    assert answer.kind is Kind.FAILED
    assert answer.head == b"the template refuses these messages"
    assert all(0x20 <= byte < 0x7F for byte in answer.head)


# what the files of a model say


def config(**members: Any) -> bytes:
    return orjson.dumps(members)


def test_a_template_of_its_own_goes_before_the_configuration() -> None:
    assert template_texts(config(chat_template="old"), b"new").default == "new"
    assert template_texts(None, b"new") == TemplateTexts("new", "new", {})


@pytest.mark.parametrize(
    "value",
    [
        [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}],
        [{"default": "D"}, {"tool_use": "T"}],
    ],
)
def test_a_list_of_templates_has_one_for_tools(value: object) -> None:
    texts = template_texts(config(chat_template=value), None)
    assert (texts.default, texts.tool_use) == ("D", "T")


def test_special_tokens_are_texts_or_objects_with_content() -> None:
    texts = template_texts(
        config(
            chat_template="x", bos_token="<s>", eos_token={"content": "</s>", "lstrip": False}, unk_token=None
        ),
        None,
    )
    assert texts.tokens == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("data", "own"),
    [
        (b"{", None),
        (b"[]", None),
        (b"{}", None),
        (config(chat_template=5), None),
        (config(chat_template=[{"name": "rag", "template": "x"}]), None),
        (config(chat_template=[1, None]), None),
        (None, None),
        (None, b"\xff\xfe"),
        (b"[" * 100_000, None),
    ],
)
def test_files_without_a_template_are_told_apart(data: bytes | None, own: bytes | None) -> None:
    with pytest.raises(TemplateFailed):
        template_texts(data, own)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('no ' ~ messages[0].content) }}",
        "{{ messages[0].content.encode(messages[0].content) }}",
        "{{ {}[messages[0].content].x }}",
        "{{ strftime_now(messages[0].content * 99) }}",
        "{% include messages[0].content %}",
    ],
)
def test_what_does_not_render_is_told_without_a_word_of_the_messages(engine: Engine, text: str) -> None:
    template = ChatTemplate(engine, TemplateTexts(text, text, {}))
    messages = b'[{"role":"user","content":"my secret\\nmy secret: invalid operation\\ncaused by: secret"}]'
    with pytest.raises(TemplateFailed) as told:
        template.render(messages, b"", {"my secret": 1}, True)
    assert "secret" not in str(told.value)
    assert 3 < len(str(told.value)) < 60


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", ["{% if %}", "{{", "{% endfor %}", "{% nothing %}", "{{ a b }}"])
def test_what_does_not_compile_is_refused(engine: Engine, text: str) -> None:
    with pytest.raises(TemplateFailed):
        ChatTemplate(engine, TemplateTexts(text, text, {}))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("{%- generation -%}a{%- endgeneration -%}", "{%- with -%}a{%- endwith -%}"),
        ("{% for k, v in m.items() %}", "{% for k, v in m|items %}"),
        ("{{ m.items()|list }} m.items()", "{{ m|items|list }} m.items()"),
        ("{{ '%}' ~ m.items() }}", "{{ '%}' ~ m|items }}"),
        (
            "{# m.items() #}{% raw %}{{ m.items() }}{% endraw %}",
            "{# m.items() #}{% raw %}{{ m.items() }}{% endraw %}",
        ),
        ('{{ "a.items()" }}', '{{ "a.items()" }}'),
        ("{% if x == {'a': 1}.items() %}", "{% if x == {'a': 1}|items %}"),
        ("open {{ m.items()", "open {{ m.items()"),
    ],
)
def test_only_code_is_put_in_minijinjas_words(text: str, written: str) -> None:
    assert for_minijinja(text) == written
