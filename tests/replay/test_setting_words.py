"""Versions of the settings are compared key by key."""

import orjson

from projections.events.control import ConditionalSettings, KvPickSettings
from projections.events.held import SettingsHeld
from replay.setting_words import SETTINGS_NAMED_MAX, settings_changes, settings_words, value_text
from tests.replay.recorded_log import SETTINGS


def held(text: str, staleness_us: int) -> SettingsHeld:
    pick = SETTINGS._replace(max_staleness_us=staleness_us)
    return SettingsHeld(1, "x", b"", text, pick, True, 0, 0)


def test_settings_are_compared_key_by_key_and_by_what_picks_read_where_there_is_no_text() -> None:
    assert settings_changes(held('{"a":{"b":1,"c":[2]}}', 1), held('{"a":{"b":3,"c":[2]}}', 1)) == {
        "a.b": (1, 3)
    }
    assert settings_changes(held("{}", 1), held("no JSON", 2)) == {"max_staleness_us": (1, 2)}
    assert settings_changes(None, None) == {}


def test_changed_weights_of_a_redacted_log_are_told_by_name_and_can_be_written() -> None:
    kv = KvPickSettings(1.0, 1.0, 0.0)
    other = kv._replace(conditional=ConditionalSettings("isl_bounding", 1, 0.5, None, None))
    one, two = (held("", 1)._replace(pick=SETTINGS._replace(kv=term)) for term in (kv, other))
    names = ("eff_isl_ratio", "eff_isl_tokens", "policy")
    assert list(settings_changes(one, two)) == [f"kv.conditional.{name}" for name in names]
    for before, after in ((one, two), (held("", 1), one), (two, held("", 1))):
        assert orjson.dumps(settings_changes(before, after))


def test_words_name_the_keys_and_say_how_many_more() -> None:
    assert settings_words(held('{"a":"1s"}', 1), held('{"a":"2s"}', 1)) == "a 1s -> 2s"
    assert settings_words(None, held("{}", 1)) == ""
    many = "{" + ",".join(f'"k{n}":{n}' for n in range(SETTINGS_NAMED_MAX + 2)) + "}"
    assert settings_words(held('{"z":0}', 1), held(many, 1)).endswith(" and 3 more")


def test_a_long_value_is_cut() -> None:
    assert len(value_text("x" * 500)) == 80
