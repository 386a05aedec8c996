"""Rows of the shadow in the audit's database: twice is once, and each shadow has its mark."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.audit_database import database_url
from app.audit_query import ask
from app.shadow import Rows, SinkAway
from app.shadow_sql import SqlSink
from projections.audit.rows import ShadowRow, VerificationRow


def rows(*offsets: int, config: str = "d") -> Rows:
    found = Rows()
    for offset in offsets:
        head = (f"p{offset}", 0, offset, 5_000_000, config, "load_based", "dynamo")
        found.shadow.append(
            ShadowRow(*head, "7", 0, "load", None, None, "no_prefill_pool", None, None, 3, True, None)
        )
        found.verifications.append(VerificationRow(f"p{offset}", 0, offset, 6, "equal", None, "0.1"))
    return found


@pytest.mark.req("DYN-12")
async def test_rows_are_written_once_however_often_they_are_given(tmp_path: Path) -> None:
    url = database_url(str(tmp_path / "audit.sqlite"))
    sink = SqlSink(url)
    assert await sink.mark("d") == -1
    await sink.write(rows(3, 8))
    await sink.write(rows(8, 11))
    await sink.write(rows(40, config="e"))
    assert (await sink.mark("d"), await sink.mark("e")) == (11, 40)
    await sink.close()
    answer = await ask(url, "SELECT log_offset, shadow_config, moved FROM shadow_picks ORDER BY log_offset")
    assert [tuple(row)[:2] for row in answer.rows] == [(3, "d"), (8, "d"), (11, "d"), (40, "e")]


async def test_a_database_that_is_away_is_told_as_such(tmp_path: Path) -> None:
    sink = SqlSink(database_url(str(tmp_path / "no" / "audit.sqlite")))
    with pytest.raises(SinkAway):
        await sink.mark("d")
    with pytest.raises(SinkAway):
        await sink.write(rows(1))
    await sink.close()
