"""Held facts restore what a fact of the lane put: the shared fields have the same names and order."""

from __future__ import annotations

import pytest

from projections.events import control, discovery, held, signals


@pytest.mark.parametrize(
    ("fact", "restored"),
    [
        (discovery.KeyPut, held.KeyHeld),
        (signals.SubscriptionChanged, held.PublisherHeld),
        (control.ConfigAdopted, held.SettingsHeld),
        (control.ReplicaStarted, held.ReplicaHeld),
    ],
)
def test_a_held_fact_begins_with_the_fields_of_the_fact_that_put_it(fact: type, restored: type) -> None:
    fields = fact._fields  # type: ignore[attr-defined]
    assert restored._fields[: len(fields)] == fields  # type: ignore[attr-defined]
