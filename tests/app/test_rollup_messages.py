"""The key says which window, the value is its row."""

from __future__ import annotations

import orjson

from app.rollup_messages import rollup_message
from projections.audit.rollups import MINUTE_US, roll_up


def test_a_message_is_the_row_under_its_minute_and_model() -> None:
    row = roll_up(61 * MINUTE_US, "tiny|odd", [])
    key, value = rollup_message(row)
    assert key == b"1970-01-01T01:01|tiny|odd"
    assert orjson.loads(value) == {"version": 1, "table": "rollups", **row._asdict()}
