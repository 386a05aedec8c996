"""Row types and tables have the same columns; times travel as microseconds."""

from datetime import datetime

import pytest
from sqlalchemy import Table

from app.sql_tables import (
    UtcTime,
    configs,
    dispatch_ends,
    metadata,
    moment,
    pick_candidates,
    picks,
    replicas,
    shadow_picks,
    verifications,
    workers,
)
from projections.audit.rows import (
    CANDIDATE_COLUMNS,
    ConfigRow,
    EndRow,
    PickRow,
    ReplicaRow,
    ShadowRow,
    VerificationRow,
    WorkerVersion,
)

END_OF_WORKER = ("lane", "from_offset", "from_at", "to_offset", "to_at", "end_cause")


@pytest.mark.parametrize(
    ("table", "fields"),
    [
        (picks, PickRow._fields),
        (pick_candidates, CANDIDATE_COLUMNS),
        (dispatch_ends, EndRow._fields),
        (configs, ConfigRow._fields),
        (shadow_picks, ShadowRow._fields),
        (verifications, VerificationRow._fields),
        (workers, (*WorkerVersion._fields, *END_OF_WORKER)),
        (
            replicas,
            (*ReplicaRow._fields[:-2], "gone_at", "gone_offset", *ReplicaRow._fields[-2:], "changed_offset"),
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Table) else "",
)
def test_a_row_has_the_columns_of_its_table_in_order(table: Table, fields: tuple[str, ...]) -> None:
    assert tuple(column.name for column in table.columns) == fields


def test_every_table_is_keyed_by_log_positions() -> None:
    keys = {name: {column.name for column in table.primary_key} for name, table in metadata.tables.items()}
    assert keys.pop("stream_positions") == {"topic", "partition"}, "a place in a topic, of no row of the log"
    assert [name for name, key in keys.items() if "lane" not in key] == []


@pytest.mark.parametrize("at_us", [0, 1, 1_795_977_660_068_130, -1])
def test_a_time_comes_back_as_it_went(at_us: int) -> None:
    column = UtcTime()
    assert column.process_result_value(column.process_bind_param(at_us, None), None) == at_us


def test_a_time_beyond_the_calendar_is_its_last_day() -> None:
    assert moment(1 << 62) == datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001
