"""Records of a log as JSON lines, in order, with the wall time of each as far as the log tells it.

Log time begins with the first record of an owner. On a topic, processes write before there is one
(pings above all): such records have no time, and none is shown.
"""

from __future__ import annotations

import orjson

from app.marks import Marks
from app.record_text import record_document
from projections.events.codec import RecordRefused, decode_record, owner_stamp, peek_kind
from projections.events.control import ClockTicked, LaneOpened

NEVER = 1 << 64  # later than any log time


class RecordLines:
    """Lines of the records from `offset` on. wanted: the only kind that is shown, None for all."""

    def __init__(self, marks: Marks, offset: int, wanted: int | None) -> None:
        began = marks.beginning()
        self._began_us = NEVER if began is None else began
        self._skew_us = marks.skew_at(offset)  # wall time minus log time
        self._wanted = wanted

    def line(self, offset: int, data: bytes) -> bytes:
        """One record as a line, b"" for one that is not wanted."""
        wanted = self._wanted
        if self._began_us == NEVER:
            self._began_us = owner_stamp(data) or NEVER
        try:
            record = decode_record(offset, data)
        except RecordRefused as refusal:
            if wanted is not None and wanted != peek_kind(data):
                return b""
            line = {"lane": 0, "offset": offset, "at": None, "kind": peek_kind(data), "refused": str(refusal)}
            return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        if isinstance(record.fact, LaneOpened | ClockTicked):
            self._skew_us = record.fact.wall_us - record.time
        if wanted is not None and wanted != record.kind:
            return b""
        document = record_document(record, self._skew_us, self._began_us)
        return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
