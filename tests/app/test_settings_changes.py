"""What changed between two settings documents."""

import orjson
import pytest

from app.settings_changes import CHANGES_MAX, settings_changes


def changes(before: object, after: object) -> str:
    return settings_changes(orjson.dumps(before).decode(), orjson.dumps(after).decode())


def test_keys_are_named_with_both_values() -> None:
    before = {"dynamo": {"picker": "load_based", "shim": {"backends": ["a"]}}, "backends": [{"url": "x"}]}
    after = {
        "dynamo": {"picker": "kv", "shim": {"backends": ["a", "b"]}},
        "backends": [{"url": "y"}, {"url": "z"}],
    }
    assert changes(before, after).split("\n") == [
        'backends[0].url: "x" -> "y"',
        'backends[1].url: absent -> "z"',
        'dynamo.picker: "load_based" -> "kv"',
        'dynamo.shim.backends: ["a"] -> ["a","b"]',
    ]


def test_the_first_version_and_equal_ones_are_said_to_be() -> None:
    assert settings_changes(None, "{}") == "first version"
    assert "nothing that is shown" in changes({"a": 1}, {"a": 1})
    assert changes({"a": None, "b": 1}, {"b": 1}) == "a: null -> absent"


def test_many_changes_are_counted() -> None:
    told = changes({"a": 1}, {"a": 1} | {str(number): number for number in range(CHANGES_MAX + 5)}).split(
        "\n"
    )
    assert len(told) == CHANGES_MAX + 1
    assert told[-1] == "and 5 more"


@pytest.mark.parametrize("text", ["", "{", "\x00"])
def test_text_that_is_no_json_is_told_of(text: str) -> None:
    assert settings_changes(text, "{}") == "settings that cannot be read"
