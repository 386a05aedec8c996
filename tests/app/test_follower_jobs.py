"""What the follower asks goes to the audit's database, or to a file where there is none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.config_load import check_data, load_config
from app.config_model import Config
from app.follower_jobs import ask_again, row_sink
from app.log_places import open_log
from app.shadow_file import JsonLinesSink
from app.shadow_sql import SqlSink
from tests.app.log_on_disk import some_picks, written


def config(**audit: object) -> Config:
    return check_data({"audit": audit} if audit else {})[0]


async def test_rows_go_to_the_audit_s_database_or_to_a_file(tmp_path: Path) -> None:
    sinks = [row_sink(config(), tmp_path), row_sink(config(enabled=False), tmp_path)]
    assert [type(sink) for sink in sinks] == [SqlSink, JsonLinesSink]
    for sink in sinks:
        await sink.close()


async def test_it_follows_a_data_directory_until_it_is_cancelled(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.follower_figures.EVERY_S", 0.0)
    data = written(some_picks(), tmp_path / "data")
    file = tmp_path / "config.yaml"
    file.write_text("audit: {enabled: false}\n")
    with open_log(data) as opened:
        asking = asyncio.create_task(ask_again(load_config(file), data, opened, lambda: {"sent": 5}))
        told = b""
        for _ in range(100_000):
            told += capsysbinary.readouterr().out
            if b'"lag_records":' in told:
                break
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert b'"is_shadowed":false' in told
    assert b'"standing":{"sent":5}}\n' in told
