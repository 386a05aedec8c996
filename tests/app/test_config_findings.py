"""Findings: how they are told, and where a key is found to stand."""

from app.config_findings import FINDINGS_SHOWN_MAX, ConfigError, Finding, Place, Places, key_text, value_at


def test_finding_says_where_what_and_what_to_do() -> None:
    finding = Finding(("backends", 0, "url"), "has no port", "add one", Place("c.yaml", 7))
    assert str(finding) == "c.yaml:7: backends[0].url: has no port; add one"
    assert finding.to_json() == {
        "path": "backends[0].url",
        "message": "has no port",
        "hint": "add one",
        "source": "c.yaml",
        "line": 7,
    }


def test_strange_keys_stay_on_one_short_line() -> None:
    assert "\n" not in key_text(("a\nb",))
    assert len(key_text(("x" * 10_000,))) < 200


def test_stronger_source_takes_the_place_of_everything_below_a_key() -> None:
    places = Places({(): Place("f", 1), ("a",): Place("f", 2), ("a", "b"): Place("f", 3)})
    places.forget_below(("a",))
    places.put(("a",), Place("environment X"))
    assert str(places.of(("a", "b"))) == "environment X"
    assert str(places.of(("c",))) == "f:1"


def test_findings_are_told_in_the_order_of_the_file_and_bounded() -> None:
    places = Places({("a",): Place("f", 9), ("b",): Place("f", 2)})
    assert [found.path for found in places.located([Finding(("a",), "x"), Finding(("b",), "y")])] == [
        "b",
        "a",
    ]
    assert len(places.located([Finding(("a",), "x")] * 99)) == FINDINGS_SHOWN_MAX
    assert len(ConfigError([Finding(("a",), "x")] * 99).findings) == FINDINGS_SHOWN_MAX


def test_value_at_leads_nowhere_without_raising() -> None:
    data = {"a": [{"b": 1}]}
    assert value_at(data, ("a", 0, "b")) == 1
    assert value_at(data, ("a", 5, "b")) is None
    assert value_at(data, ("a", "b")) is None
