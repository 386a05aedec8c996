"""Messages come back as they were sent; whatever is odd is refused, and nothing odd gets through."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.audit_messages import (
    MESSAGE_BYTES_MAX,
    ROWS_PER_MESSAGE,
    VERSION,
    MessageNewer,
    MessageRefused,
    decode,
    encode_mark,
    encode_rows,
)
from app.audit_rows import AuditRows, SinkMark
from projections.audit.rows import ConfigRow, EndRow, ReplicaLeft
from tests.app.stream_site import LOG, Story

END = EndRow("ab", 5, "ok", "none", 200, "a", 7, 9, 60, 5, None, 0, 12)


def encoded(*ends: EndRow) -> dict[str, Any]:
    rows = AuditRows()
    rows.ends += ends
    ((_, value),) = encode_rows(rows, LOG)
    document: dict[str, Any] = orjson.loads(value)
    return document


def test_a_message_is_the_row_by_column_name() -> None:
    document = encoded(END)
    (row,) = document.pop("rows")
    assert document == {"version": VERSION, "log_id": LOG.hex(), "offset": 12, "at": 0}
    assert row == {"table": "dispatch_ends", **END._asdict()}


@given(st.integers(0, 1 << 32))
def test_every_row_comes_back_under_its_table(seed: int) -> None:
    rows = Story(seed).rows
    found: dict[str, list[tuple[Any, ...]]] = {}
    for _, value in encode_rows(rows, LOG):
        message = decode(value)
        assert (message.log_id, message.check, message.at) == (LOG, None, rows.at)
        for table, row in message.rows:
            found.setdefault(table, []).append(row)
    assert sorted(found.get("picks", [])) == sorted(tuple(row) for row in rows.picks)
    assert sorted(found.get("dispatch_ends", [])) == sorted(tuple(row) for row in rows.ends)
    assert sorted(map(str, found.get("pick_candidates", []))) == sorted(map(str, rows.candidates))
    others = {"picks", "dispatch_ends", "pick_candidates"}
    assert sum(len(table) for name, table in found.items() if name not in others) == len(rows.changes)


def test_what_concerns_one_pick_has_one_key_and_candidates_travel_with_their_pick() -> None:
    rows = Story(3).rows
    keys: dict[str, set[bytes]] = {}
    for key, value in encode_rows(rows, LOG):
        for table, row in decode(value).rows:
            if table in ("picks", "pick_candidates", "dispatch_ends"):
                keys.setdefault(str(row[0]), set()).add(key)
    assert keys and all(found == {pick.encode()} for pick, found in keys.items())


def test_messages_are_in_log_order() -> None:
    offsets = [decode(value).offset for _, value in encode_rows(Story(4).rows, LOG)]
    assert offsets == sorted(offsets)


def test_a_record_with_very_many_rows_is_cut() -> None:
    rows = AuditRows()
    candidate = (
        "ab", 0, 12, "decode", 0, "dynamo", "1", 0, True, 0.5, 3, None, 5, 0, 0, None, "fresh", None,
        2, 1, 1, 4.5,
    )  # fmt: skip
    rows.candidates = [(*candidate[:4], number, *candidate[5:]) for number in range(2 * ROWS_PER_MESSAGE + 1)]
    values = [value for _, value in encode_rows(rows, LOG)]
    assert [len(decode(value).rows) for value in values] == [ROWS_PER_MESSAGE, ROWS_PER_MESSAGE, 1]
    assert max(map(len, values)) < MESSAGE_BYTES_MAX


def test_a_message_of_a_release_before_a_column_came_has_none_of_it() -> None:
    rows = AuditRows()
    rows.candidates = [
        (
            "ab", 0, 12, "decode", 0, "dynamo", "1", 0, True, 0.5, 3, None, 5, 0, 0, None, "fresh", None,
            2, 1, 1, 4.5,
        )
    ]  # fmt: skip
    ((_, value),) = encode_rows(rows, LOG)
    document = orjson.loads(value)
    assert decode(value).rows[0][1][-4:] == (2, 1, 1, 4.5)
    for name in ("host_blocks", "disk_blocks", "predicted_blocks", "credit"):
        del document["rows"][0][name]
    ((table, row),) = decode(orjson.dumps(document)).rows
    assert (table, row[-4:]) == ("pick_candidates", (None,) * 4)


def test_a_mark_has_a_check_word_and_no_rows() -> None:
    message = decode(encode_mark(SinkMark(77, (1 << 64) - 1, LOG), 5))
    assert message == (LOG, 77, 5, (1 << 64) - 1, [])


def test_rows_that_have_no_pick_are_keyed_by_what_they_are_about() -> None:
    rows = AuditRows()
    rows.changes = [
        (3, ReplicaLeft("aa", 3, 1)),
        (4, ConfigRow(9, 1, "admin", "p", True, "ab", "{}", 0, 4)),
    ]
    assert [key for key, _ in encode_rows(rows, LOG)] == [b"aa", b"9"]


def test_a_later_version_is_refused_by_a_name_of_its_own() -> None:
    with pytest.raises(MessageNewer, match="has version 2, this release reads up to 1"):
        decode(orjson.dumps({**encoded(END), "version": 2, "rows": "whatever"}))


def test_what_a_later_release_adds_is_passed_over() -> None:
    document = encoded(END)
    document["more"] = 1
    document["rows"][0]["more"] = 2
    document["rows"].append({"table": "invented", "x": 1})
    assert decode(orjson.dumps(document)).rows == [("dispatch_ends", tuple(END))]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("pick_id", None),
        ("pick_id", 5),
        ("pick_id", "a\0b"),
        ("ended_at", "soon"),
        ("ended_at", True),
        ("ended_at", 1.5),
        ("http_status", 1 << 63),
        ("log_offset", None),
        ("status", ["ok"]),
    ],
)
def test_a_value_that_no_column_takes_is_refused(column: str, value: Any) -> None:
    document = encoded(END)
    document["rows"][0][column] = value
    with pytest.raises(MessageRefused, match=f"dispatch_ends with an unfit {column}"):
        decode(orjson.dumps(document))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"version": "1"}, "has no version"),
        ({"log_id": 5}, "names no log"),
        ({"log_id": "zz"}, "names no log"),
        ({"offset": None}, "lacks offset"),
        ({"at": 1 << 63}, "lacks offset"),
        ({"rows": {}}, "lacks offset"),
        ({"rows": [5]}, "a row without a table"),
        ({"check": 5}, "a check word that is none"),
        ({"check": "9" * 21}, "a check word that is none"),
    ],
)
def test_a_message_without_its_parts_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(MessageRefused, match=told):
        decode(orjson.dumps({**encoded(END), **changed}))


@pytest.mark.parametrize("value", [None, b"", b"{", b"[]", b"\xff", b" " * (MESSAGE_BYTES_MAX + 1)])
def test_bytes_that_are_no_message_are_refused(value: bytes | None) -> None:
    with pytest.raises(MessageRefused):
        decode(value)


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["version", "log_id", "offset", "at", "rows", "table", "check"]), inner
            )
        ),
        max_leaves=12,
    ).map(orjson.dumps)
)
def test_any_bytes_are_read_or_refused(value: bytes) -> None:
    try:
        message = decode(value)
    except MessageRefused:
        return
    assert isinstance(message.log_id, bytes)
