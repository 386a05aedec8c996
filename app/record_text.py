"""A record as a JSON document, as `log cat` prints it.

Ids of workers and publishers, and digests of 64 bits, are decimal strings; bytes are hex,
but a key's value is the text that it is.
"""

from __future__ import annotations

from typing import Any

from app.marks import time_text
from projections.events.envelope import LANE, Record
from projections.events.kinds import FACT_KINDS, Kind

DECIMAL_TEXT_FIELDS = frozenset(
    {
        "instance_id",
        "worker_id",
        "publisher_id",
        "digest",
        "check",
        "check_sum",
        "tick_check_sum",
        "raw_digest",
    }
)
_NAMES = {kind: row.fact.__name__ for kind, row in FACT_KINDS.items()}


def kind_of_text(text: str) -> int | None:
    """The kind that a user names: `PickMade`, `pick_made`, `PICK_MADE` or its number."""
    if text.isascii() and text.isdecimal():
        return int(text) if int(text) in FACT_KINDS else None
    plain = text.replace("_", "").replace("-", "").lower()
    return next((int(kind) for kind, name in _NAMES.items() if name.lower() == plain), None)


def record_document(record: Record, skew_us: int, began_us: int = 1) -> dict[str, Any]:
    """The document of a record. skew_us: wall time minus log time around it.

    began_us: log time of the log's first record of an owner; what comes before has no time.
    """
    return {
        "lane": LANE,
        "offset": record.offset,
        "at": time_text(record.time + skew_us) if record.time >= max(1, began_us) else None,
        "kind": _NAMES.get(record.kind, Kind(record.kind).name),
        "writer": record.writer.hex(),
        "epoch": record.epoch,
        "sequence": record.sequence,
        "fields": plain(record.fact),
    }


def plain(value: Any, name: str = "") -> Any:
    """A field of that name for people: facts become objects, other tuples arrays, bytes text."""
    if isinstance(value, bytes):
        return _text_of(value) if name == "value" else value.hex()
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        if fields is not None:
            return {field: plain(one, field) for field, one in zip(fields, value, strict=True)}
        return [plain(one) for one in value]
    if type(value) is int and name in DECIMAL_TEXT_FIELDS:
        return str(value)
    return value


def _text_of(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()
