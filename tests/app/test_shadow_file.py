"""Rows of the shadow as lines: appended whole, turned over in time, found again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app.shadow import Rows, SinkAway
from app.shadow_file import FILE_NAME, JsonLinesSink
from projections.audit.rows import ShadowRow, VerificationRow


def rows(*offsets: int, config: str = "d") -> Rows:
    found = Rows()
    for offset in offsets:
        head = ("p", 0, offset, 5, config, "load_based", "dynamo")
        found.shadow.append(
            ShadowRow(*head, "7", 0, "load", None, None, "no_prefill_pool", None, None, 3, True, None)
        )
    return found


async def test_each_row_is_a_line_that_names_its_table(tmp_path: Path) -> None:
    found = rows(4)
    found.verifications.append(VerificationRow("p", 0, 4, 6, "equal", None, "0.1"))
    await JsonLinesSink(tmp_path).write(found)
    lines = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert [line["table"] for line in lines] == ["shadow_picks", "verifications"]
    assert (lines[0]["log_offset"], lines[0]["moved"], lines[1]["verdict"]) == (4, True, "equal")
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


async def test_the_newest_offset_of_a_shadow_is_found_also_behind_a_torn_line(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path)
    assert await sink.mark("d") == -1
    await sink.write(rows(4, 9))
    await sink.write(rows(30, config="other"))
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"table": "shadow_pi')
    assert (await sink.mark("d"), await sink.mark("other"), await sink.mark("none")) == (9, 30, -1)
    await sink.close()


async def test_rows_behind_a_torn_line_stand_on_lines_of_their_own(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path)
    await sink.write(rows(4, 9))
    file = tmp_path / FILE_NAME
    file.write_bytes(file.read_bytes()[:-80])
    await sink.write(rows(9, 12))
    first, torn, *others = file.read_text().splitlines()
    assert json.loads(first)["log_offset"] == 4
    with pytest.raises(json.JSONDecodeError):
        json.loads(torn)
    assert [json.loads(line)["log_offset"] for line in others] == [9, 12]


@pytest.mark.parametrize(
    "odd", ["[1]", "null", "5", '"x"', '{"table": "shadow_picks", "shadow_config": "d"}']
)
async def test_lines_that_are_no_rows_are_passed_over(tmp_path: Path, odd: str) -> None:
    sink = JsonLinesSink(tmp_path)
    (tmp_path / FILE_NAME).write_text(odd + "\n")
    assert await sink.mark("d") == -1
    await sink.write(rows(4))
    assert await sink.mark("d") == 4


async def test_two_files_are_kept_and_no_more(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path, bytes_max=2000)
    for offset in range(40):
        await sink.write(rows(offset))
    assert sorted(os.listdir(tmp_path)) == [FILE_NAME, FILE_NAME + ".1"]
    sizes = [os.stat(tmp_path / name).st_size for name in os.listdir(tmp_path)]
    assert sum(sizes) < 5000


async def test_a_folder_that_cannot_be_written_to_is_a_sink_that_is_away(tmp_path: Path) -> None:
    with pytest.raises(SinkAway, match="No such file"):
        await JsonLinesSink(tmp_path / "gone").write(rows(1))
