"""Reports are drawn into PNG and SVG files, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.audit_query import Answer, ask, run
from app.audit_report_plots import BARS_MAX, SERIES_MAX, draw
from app.sql_queries import REPORTS, Report, sql_of
from tests.app.audit_site import eventful, sqlite_url, write

BEGINNINGS = {".png": b"\x89PNG", ".svg": b"<?xml"}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    url = sqlite_url(tmp_path_factory.mktemp("plots"))
    run(write(eventful().log, url, candidates=8))
    return {name: run(ask(url, sql_of(report))) for name, report in REPORTS.items()}


@pytest.mark.parametrize("suffix", BEGINNINGS)
@pytest.mark.parametrize("report", REPORTS.values(), ids=lambda report: report.name)
def test_every_report_is_drawn(
    report: Report, suffix: str, answers: dict[str, Answer], tmp_path: Path
) -> None:
    file = tmp_path / f"plot{suffix}"
    draw(report, answers[report.name], file)
    assert file.read_bytes().startswith(BEGINNINGS[suffix])
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_odd_and_many_values_are_drawn(tmp_path: Path) -> None:
    columns = ("minute", "phase", "namespace", "worker", "reason", "picks")
    rows: list[tuple[object, ...]] = [
        (f"2026-11-29 18:{number:02}", "decode", "$x$ \x1b \U0001d54f", str(number), "load", number)
        for number in range(SERIES_MAX + 5)
    ]
    draw(REPORTS["workers"], Answer(columns, rows, False), tmp_path / "minutes.svg")
    assert (
        "others" in (tmp_path / "minutes.svg").read_text()
        or (tmp_path / "minutes.svg").stat().st_size > 10_000
    )
    slowest = [(f"{number:064}", number) for number in range(BARS_MAX + 5)]
    draw(REPORTS["slowest"], Answer(("request_id", "first_byte_us"), slowest, False), tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 1_000


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        draw(REPORTS["shadow"], Answer((), [], False), tmp_path / "none" / "x.png")
    assert list(tmp_path.iterdir()) == []
