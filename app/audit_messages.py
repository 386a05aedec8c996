"""Messages of the topic `picklog.audit`: rows of the audit as JSON, one record of the log at a time.

A message has the rows that one record of the log leaves under one key: of a pick itself and its
candidates, of an end itself, of discovery those of one worker. The key is what the rows are about
(`audit_message`), so that what concerns one pick or worker lies in one partition, in order. A record with
very many rows is cut into several messages: rows are independent of each other.

    {"version": 1, "log_id": HEX, "offset": N, "at": US, "rows": [{"table": NAME, ...columns}, ...]}

`rows` are rows of the tables of the same name; besides, `worker_ends`, `replica_changes`, `suspect_picks`
and `gaps` tell what changes rows that may stand elsewhere, since a message can only add. A mark has
`check` and no rows: all that the log says up to its offset was sent before it. Marks go to every partition.

Encoding and decoding are functions of their arguments. Whatever does not fit is refused, so that what was
decoded can be written: types, 64 bits, text that a database takes. Unknown members and tables of a later
release are passed over; a later `version` is not.

Sources: decision 48; docs/sql-audit.md, "Audit messages".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Table

from app.audit_rows import AuditRows, Change, GapNoticed, SinkMark
from app.sql_tables import configs, dispatch_ends, pick_candidates, picks, replicas, workers
from projections.audit.rows import (
    ConfigRow,
    PicksSuspected,
    ReplicaHeard,
    ReplicaLeft,
    ReplicaRow,
    WorkerBegan,
    WorkerEnded,
)
from projections.audit.translation import WHOLE_MAX, audit_message
from projections.bounds import MIB
from projections.events.envelope import LANE

VERSION = 1
MESSAGE_BYTES_MAX = 8 * MIB
ROWS_PER_MESSAGE = 500

WORKER_ENDS = ("namespace", "worker", "lane", "to_offset", "to_at", "end_cause")
REPLICA_CHANGES = ("replica_id", "lane", "changed_offset", "gone_at")
SUSPECT_PICKS = ("replica_id", "lane", "after_offset", "upto_offset", "log_offset")
GAPS = ("lane", "from_offset", "to_offset", "at", "cause")
GAP_KEY = "gap"


class MessageRefused(ValueError):
    """It is no audit message of ours; says why, with nothing of its content."""


class MessageNewer(MessageRefused):
    """A later release wrote it: passing it over would lose its rows."""


class AuditMessage(NamedTuple):
    """One message. rows: (table, values in the order of its columns). check: of a mark, None otherwise.

    offset: of the record that it tells of. at: newest log time that its sender had read, microseconds.
    """

    log_id: bytes
    offset: int
    at: int
    check: int | None
    rows: list[tuple[str, tuple[Any, ...]]]


class _Column(NamedTuple):
    name: str
    types: tuple[type, ...]
    may_be_null: bool


def _columns(table: Table) -> tuple[_Column, ...]:
    return tuple(
        _Column(str(column.name), _TYPES[type(column.type).__name__], bool(column.nullable))
        for column in table.columns
    )


_TYPES: dict[str, tuple[type, ...]] = {
    "Text": (str,),
    "BigInteger": (int,),
    "UtcTime": (int,),
    "Boolean": (bool,),
    "Double": (float, int),
}
_TABLES: dict[str, tuple[_Column, ...]] = {
    table.name: _columns(table)
    for table in (picks, pick_candidates, dispatch_ends, configs, workers, replicas)
} | {
    "worker_ends": tuple(
        _Column(name, (str,) if name in ("namespace", "worker", "end_cause") else (int,), False)
        for name in WORKER_ENDS
    ),
    "replica_changes": tuple(
        _Column(name, (str,) if name == "replica_id" else (int,), name == "gone_at")
        for name in REPLICA_CHANGES
    ),
    "suspect_picks": tuple(
        _Column(name, (str,) if name == "replica_id" else (int,), False) for name in SUSPECT_PICKS
    ),
    "gaps": tuple(_Column(name, (str,) if name == "cause" else (int,), False) for name in GAPS),
}
_NAMES = {table: tuple(column.name for column in columns) for table, columns in _TABLES.items()}


def encode_rows(rows: AuditRows, log_id: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of every message that the rows make, in log order."""
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for table, offset, row in sorted(_flat(rows), key=lambda one: one[1]):
        key, value = (
            (GAP_KEY, _named(table, row)) if table == "gaps" else audit_message(table, row, _NAMES[table])
        )
        found.setdefault((offset, key), []).append(value)
    for (offset, key), values in found.items():
        for first in range(0, len(values), ROWS_PER_MESSAGE):
            document = {
                "version": VERSION,
                "log_id": log_id.hex(),
                "offset": offset,
                "at": rows.at,
                "rows": values[first : first + ROWS_PER_MESSAGE],
            }
            yield key.encode(), orjson.dumps(document)


def encode_mark(mark: SinkMark, at: int) -> bytes:
    """The value of a mark: everything up to its offset was sent."""
    return orjson.dumps(
        {
            "version": VERSION,
            "log_id": mark.log_id.hex(),
            "offset": mark.offset,
            "at": at,
            "check": str(mark.check),
            "rows": [],
        }
    )


def decode(value: bytes | None) -> AuditMessage:
    """Raises MessageNewer, MessageRefused."""
    if value is None or len(value) > MESSAGE_BYTES_MAX:
        raise MessageRefused(f"has no value, or one beyond {MESSAGE_BYTES_MAX} bytes")
    try:
        document = orjson.loads(value)
    except ValueError:
        raise MessageRefused("is no JSON") from None
    if not isinstance(document, dict):
        raise MessageRefused("is no JSON object")
    version = document.get("version")
    if not isinstance(version, int):
        raise MessageRefused("has no version")
    if version > VERSION:
        raise MessageNewer(f"has version {version}, this release reads up to {VERSION}: update it")
    rows = document.get("rows")
    if (
        not isinstance(rows, list)
        or not _is_whole(document.get("offset"))
        or not _is_whole(document.get("at"))
    ):
        raise MessageRefused("lacks offset, at or rows")
    return AuditMessage(
        _log_id(document.get("log_id")),
        document["offset"],
        document["at"],
        _check(document.get("check")),
        [row for row in map(_row, rows) if row is not None],
    )


def _flat(rows: AuditRows) -> Iterator[tuple[str, int, tuple[Any, ...]]]:
    """Table, offset and values of everything that there is to tell."""
    for pick in rows.picks:
        yield "picks", pick.log_offset, pick
    for candidate in rows.candidates:
        yield "pick_candidates", candidate[2], candidate
    for end in rows.ends:
        yield "dispatch_ends", end.log_offset, end
    for offset, change in rows.changes:
        table, row = _changed(offset, change)
        yield table, offset, row


def _changed(offset: int, change: Change) -> tuple[str, tuple[Any, ...]]:
    if isinstance(change, WorkerBegan):
        return "workers", (*change.version, LANE, change.offset, change.at, None, None, None)
    if isinstance(change, WorkerEnded):
        return "worker_ends", (
            change.namespace,
            change.worker,
            LANE,
            change.offset,
            change.at,
            change.cause,
        )
    if isinstance(change, ConfigRow):
        return "configs", change
    if isinstance(change, ReplicaRow):
        head, place = change[:-2], change[-2:]
        return "replicas", (*head, None, None, *place, offset)
    if isinstance(change, ReplicaLeft):
        return "replica_changes", (change.replica_id, LANE, offset, change.at)
    if isinstance(change, ReplicaHeard):
        return "replica_changes", (change.replica_id, LANE, offset, None)
    if isinstance(change, PicksSuspected):
        return "suspect_picks", (change.replica_id, LANE, change.after, change.upto, offset)
    assert isinstance(change, GapNoticed)
    return "gaps", (LANE, change.first, change.last, change.at, change.cause)


def _named(table: str, row: tuple[Any, ...]) -> dict[str, Any]:
    return {"table": table, **dict(zip(_NAMES[table], row, strict=True))}


def _row(row: Any) -> tuple[str, tuple[Any, ...]] | None:
    """A row of a table that this release knows, None of another one."""
    if not isinstance(row, dict) or not isinstance(row.get("table"), str):
        raise MessageRefused("has a row without a table")
    columns = _TABLES.get(row["table"])
    if columns is None:
        return None
    return row["table"], tuple(_value(row["table"], column, row.get(column.name)) for column in columns)


def _value(table: str, column: _Column, value: Any) -> Any:
    if value is None and column.may_be_null:
        return None
    fits = isinstance(value, column.types) and (isinstance(value, bool) == (bool in column.types))
    if fits and isinstance(value, str):
        fits = "\0" not in value
    elif fits and isinstance(value, int):
        fits = -WHOLE_MAX <= value <= WHOLE_MAX
    if not fits:
        raise MessageRefused(f"has a row of {table} with an unfit {column.name}")
    return float(value) if float in column.types else value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -WHOLE_MAX <= value <= WHOLE_MAX


def _log_id(text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError):
        raise MessageRefused("names no log") from None


def _check(text: Any) -> int | None:
    if text is None:
        return None
    if not isinstance(text, str) or not text.isdecimal() or len(text) > 20:
        raise MessageRefused("has a check word that is none")
    return int(text)
