"""The narrowed YAML loader: lines of keys, ceilings, and that nothing but ConfigError leaves it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.config_findings import ConfigError
from app.config_yaml import DEPTH_MAX, EVENTS_MAX, FILE_BYTES_MAX, parse_scalar, parse_yaml


def refusal(text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text.encode() if isinstance(text, str) else text, "f.yaml")
    return caught.value


def test_every_key_keeps_its_line() -> None:
    data, places = parse_yaml(b"a: 1\nb:\n  - c: x\n  - d:\n      e: null\n", "f.yaml")
    assert data == {"a": 1, "b": [{"c": "x"}, {"d": {"e": None}}]}
    assert str(places.of(("b", 1, "d", "e"))) == "f.yaml:5"
    assert str(places.of(("b", 0, "unknown"))) == "f.yaml:3"


def test_duplicate_key_is_refused_with_its_line_and_path() -> None:
    finding = refusal("a:\n  b: 1\n  b: 2\n").findings[0]
    assert (finding.path, finding.line, finding.message) == ("a.b", 3, "the key is written twice")


def test_alias_bomb_is_refused_before_it_is_expanded() -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [" + ", ".join([f"*l{n - 1}"] * 10) + "]" for n in range(1, 10)]
    assert "aliases expand" in str(refusal("\n".join(lines)))


def test_alias_that_holds_itself_is_refused() -> None:
    assert "refers to itself" in str(refusal("a: &x [*x]"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"a: " + b"[" * (DEPTH_MAX + 1), "deep"),
        (b"[" + b"a," * EVENTS_MAX + b"]", "more than"),
        (b"#" * (FILE_BYTES_MAX + 1), "larger than"),
        (b"a: \xff\xfe", "not UTF-8"),
        (b"a: \x00", "characters that YAML does not allow"),
        (b"a: 1\n---\nb: 2\n", "not valid YAML"),
        (b"a: !!python/object/apply:os.system [ls]", "tag"),
        (b"a: !secret x", "tag"),
        (b"a: !!binary aGk=", "tag"),
        (b"a: !!int x", "does not fit"),
        (b"? [a, b]\n: c", "plain text"),
        (b"a: *nothing", "not valid YAML"),
        (b"<<: 3", "mapping"),
    ],
)
def test_hostile_or_broken_text_is_refused(text: bytes, words: str) -> None:
    assert words in str(refusal(text))


@pytest.mark.parametrize(
    "text", ["password: *hunter2", "password: hunter2: x", "password: 'hunter2", "p: %hunter2"]
)
def test_refusal_never_quotes_the_text(text: str) -> None:
    assert "hunter2" not in str(refusal(text))


def test_times_and_base_sixty_numbers_stay_text() -> None:
    data, _ = parse_yaml(b"a: 2030-01-01\nb: 12:30\nc: 1:30.5\n2: two\n", "f.yaml")
    assert data == {"a": "2030-01-01", "b": "12:30", "c": "1:30.5", "2": "two"}


def test_merge_key_is_filled_in_below_own_keys() -> None:
    data, _ = parse_yaml(b"base: &b {x: 1, y: 2}\none: {<<: *b, y: 3}\ntwo: {<<: [{x: 9}, *b]}\n", "f.yaml")
    assert data == {"base": {"x": 1, "y": 2}, "one": {"x": 1, "y": 3}, "two": {"x": 9, "y": 2}}


@pytest.mark.parametrize("text", ["", "# only words\n", "---\n...\n", "null"])
def test_empty_document_is_an_empty_mapping(text: str) -> None:
    assert parse_yaml(text.encode(), "f.yaml")[0] == {}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12345", "12345"),
        ("true", "true"),
        ("[a, 1]", ["a", 1]),
        ("{a: b}", {"a": "b"}),
        ("~", None),
        ("null", None),
        ('"[x]"', "[x]"),
        ("a: b", "a: b"),
        ("", ""),
    ],
)
def test_environment_value_is_yaml_only_when_bracketed_or_quoted(text: str, value: object) -> None:
    assert parse_scalar(text, "environment X") == value


YAML_PIECES = st.sampled_from(
    [
        "a",
        "b",
        ": ",
        "\n",
        "  ",
        "- ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "&x ",
        "*x",
        "<<: ",
        "!!int ",
        "!t ",
        "'",
        '"',
        "|\n",
        "? ",
        "#",
        "---\n",
        "...",
        "%",
        "\t",
        "1",
        "0x",
        "1e999",
        ".inf",
        "2030-01-01",
        "\u2028",
        "\x85",
        "\ufeff",
        "null",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(YAML_PIECES, max_size=40).map("".join).map(str.encode), st.binary(max_size=200)))
def test_any_bytes_give_data_or_a_config_error(text: bytes) -> None:
    outcome = data_or_error(text)
    if isinstance(outcome, ConfigError):
        assert outcome.findings
        assert all("\n" not in str(finding) for finding in outcome.findings)
    else:
        assert outcome is not None


def data_or_error(text: bytes) -> object:
    try:
        return parse_yaml(text, "f.yaml")[0]
    except ConfigError as error:
        return error
