"""Settings that travel in the log hold nothing but what a pick may read."""

from __future__ import annotations

import typing

from projections.events.control import ConditionalSettings, ConfigAdopted, KvPickSettings, PickSettings


def test_pick_settings_have_no_room_for_secrets_or_addresses() -> None:
    """Every field of PickSettings is known here by name: a new one is looked at before it is logged."""
    assert PickSettings._fields == (
        "picker",
        "source",
        "namespaces",
        "model_map",
        "max_staleness_us",
        "ledger",
        "kv",
    )
    hints = typing.get_type_hints(PickSettings)
    assert hints["ledger"] is bool and hints["kv"] == KvPickSettings | None
    inside = typing.get_type_hints(KvPickSettings)
    assert {hint for name, hint in inside.items() if name != "conditional"} == {int, float}
    assert set(typing.get_type_hints(ConditionalSettings).values()) == {str, int, float, float | None}


def test_settings_are_enabled_unless_they_say_otherwise() -> None:
    pick = PickSettings("load_based", "etcd", ("dynamo",), (), 3_000_000)
    assert pick.ledger and ConfigAdopted(1, "file", b"", "{}", pick).enabled
