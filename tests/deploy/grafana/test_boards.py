"""Every panel asks for what the router exports, in PromQL that its grammar takes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.check import install_tools
from deploy.grafana import boards
from deploy.grafana.panels import COLUMNS, Board, text_of
from tests.deploy.exported import everything
from tests.deploy.tools import asked

PROMQL = install_tools.PINS.parent / "promql.py"
GRAFANA = boards.FOLDER.parent


def expressions() -> list[str]:
    """Of all panels, with Grafana's variables filled in."""
    found = [query.expression for board in boards.BOARDS for panel in board.panels for query in panel.queries]
    return [text.replace("$instance", ".*").replace("$__rate_interval", "1m") for text in found]


def panels_of(board: Board) -> list[dict[str, Any]]:
    document = json.loads((boards.FOLDER / f"{board.uid}.json").read_text())
    panels: list[dict[str, Any]] = document["panels"]
    return panels


@pytest.mark.parametrize("board", boards.BOARDS, ids=lambda board: board.uid)
def test_the_file_that_grafana_reads_is_what_the_table_says(board: Board) -> None:
    written = (boards.FOLDER / f"{board.uid}.json").read_text(encoding="utf-8")
    assert written == text_of(board), "python -m deploy.grafana.boards"


def test_no_other_file_lies_beside_them() -> None:
    assert {path.stem for path in boards.FOLDER.iterdir()} == {board.uid for board in boards.BOARDS}


async def test_every_name_and_label_of_every_panel_is_exported() -> None:
    known = await everything()
    for text, found in zip(expressions(), asked(PROMQL, expressions()), strict=True):
        assert "error" not in found, (text, found)
        assert found["selectors"], text
        for selector in found["selectors"]:
            assert known.faults(selector["name"], selector["matchers"]) == [], text
        assert set(found["labels"]) <= known.labels(), text


async def test_a_misspelt_name_label_or_word_would_be_found() -> None:
    known = await everything()
    wrong = [
        'rate(picklog_answer_total{status="2xx"}[1m])',
        'rate(picklog_answers_total{state="2xx"}[1m])',
        'rate(picklog_answers_total{status="200"}[1m])',
        "rate(picklog_answers_total[1m]",
    ]
    *found, broken = asked(PROMQL, wrong)
    assert [
        len(known.faults(one["selectors"][0]["name"], one["selectors"][0]["matchers"])) for one in found
    ] == [1, 1, 1]
    assert "error" in broken


async def test_legends_name_labels_that_their_series_keep() -> None:
    known = await everything()
    for board in boards.BOARDS:
        for panel in board.panels:
            for query in panel.queries:
                for label in re.findall(r"{{(\w+)}}", query.legend):
                    assert label in known.labels(), (panel.title, label)
                    by = re.search(r"(?:by|count by) \(([^)]*)\)", query.expression)
                    assert by is None or label in by[1].split(", "), (panel.title, label)


@pytest.mark.parametrize("board", boards.BOARDS, ids=lambda board: board.uid)
def test_panels_stand_side_by_side_without_overlap(board: Board) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels_of(board):
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("board", boards.BOARDS, ids=lambda board: board.uid)
def test_each_panel_has_a_title_and_a_number_of_its_own(board: Board) -> None:
    panels = panels_of(board)
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)


def test_provisioning_brings_the_source_and_the_folder_that_compose_mounts() -> None:
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/picklog.yml").read_text())
    compose = yaml.safe_load((Path(GRAFANA).parent / "compose.yaml").read_text())
    mounts = " ".join(compose["services"]["grafana"]["volumes"])
    assert source["datasources"][0]["isDefault"]
    assert f":{provider['providers'][0]['options']['path']}:ro" in mounts
    assert "./grafana/provisioning:/etc/grafana/provisioning:ro" in mounts
