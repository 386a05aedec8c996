"""Messages of the compacted topic `picklog.rollups`: the newest row of each minute and model.

The key is `MINUTE|MODEL`, the minute in ISO form, UTC; the value the row by column name as JSON, times in
microseconds since 1970. A window that got late rows is told again: of two messages with a key the one with
the higher `to_offset` holds.
"""

from __future__ import annotations

import orjson

from app.sql_tables import moment
from projections.audit.rollups import RollupRow

VERSION = 1


def rollup_message(row: RollupRow) -> tuple[bytes, bytes]:
    """Key and value."""
    key = f"{moment(row.minute).isoformat(timespec='minutes')}|{row.model}"
    return key.encode(), orjson.dumps({"version": VERSION, "table": "rollups", **row._asdict()})
