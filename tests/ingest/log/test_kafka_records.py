"""Places of records: their bytes, and what is none."""

from __future__ import annotations

import pytest

from ingest.log.kafka_records import Role, Told, place_header, read_place

LOG_ID = bytes(range(16))


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("number", [0, -1, 1 << 62, -(1 << 62)])
def test_a_place_comes_back_as_it_was_told(role: Role, number: int) -> None:
    name, value = place_header(role, LOG_ID, number)
    assert (name, len(value)) == (role.value, 24)
    assert read_place([("traceparent", b"x"), (name, value)]) == Told(role, LOG_ID, number)


def test_the_bytes_of_a_place_are_the_log_s_id_and_a_big_endian_number() -> None:
    assert place_header(Role.COPIED, LOG_ID, 258) == ("picklog.offset", LOG_ID + b"\0\0\0\0\0\0\1\2")
    assert place_header(Role.APPENDED, LOG_ID, -2)[1][16:] == b"\xff" * 7 + b"\xfe"


@pytest.mark.parametrize(
    "headers", [[], [("picklog.offset", b"")], [("picklog.offset", bytes(25))], [("other", bytes(24))]]
)
def test_anything_else_is_no_place(headers: list[tuple[str, bytes]]) -> None:
    assert read_place(headers) is None


def test_only_an_appended_record_s_offset_depends_on_the_topic_s() -> None:
    assert Told(Role.APPENDED, LOG_ID, -1).offset(10) == 9
    assert Told(Role.COPIED, LOG_ID, 70).offset(10) == 70
