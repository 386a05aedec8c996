"""Panels and dashboards as values, and the JSON that Grafana reads of them.

A panel is a title, a unit and expressions with their legends; everything else of Grafana's
JSON is the same for all. `$instance` is the variable at the top of each dashboard,
`$__rate_interval` is Grafana's own.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

COLUMNS: Final = 24  # of Grafana's grid
HEIGHT: Final = 8
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
CHOSEN: Final = 'instance=~"$instance"'
RATE: Final = "[$__rate_interval]"


class Query(NamedTuple):
    """An expression and the name of its series; `{{label}}` is replaced by Grafana."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """One picture. kind, unit: Grafana's names. width: of 24 columns. note: what it tells."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    note: str = ""
    is_stacked: bool = False


class Board(NamedTuple):
    """One dashboard. uid: also its file's name."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


def rates(name: str, labels: str, *matchers: str) -> str:
    """Additions a second of a counter, one series for each combination of these labels."""
    return f"sum by ({labels}) (rate({name}{{{','.join((CHOSEN, *matchers))}}}{RATE}))"


def quantile(share: float, name: str, labels: str = "le") -> str:
    """A quantile of a histogram over the chosen instances."""
    return f"histogram_quantile({share}, sum by ({labels}) (rate({name}_bucket{{{CHOSEN}}}{RATE})))"


def busiest(name: str) -> str:
    """The 20 highest ranks of a gauge of the fleet, each once whatever the number of routers."""
    return f"topk(20, max by (namespace, worker, dp_rank) ({name}{{{CHOSEN}}}))"


def quantiles(name: str) -> tuple[Query, ...]:
    return tuple(Query(quantile(share, name), f"p{share * 100:.0f}") for share in (0.5, 0.9, 0.99))


def document(board: Board) -> dict[str, Any]:
    """Grafana's JSON of a dashboard."""
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["picklog"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _instance()]},
        "panels": _placed(board.panels),
    }


def text_of(board: Board) -> str:
    return json.dumps(document(board), indent=1, ensure_ascii=False) + "\n"


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _instance() -> dict[str, Any]:
    asked = "label_values(picklog_build_info, instance)"
    return {
        "name": "instance",
        "label": "Process",
        "type": "query",
        "datasource": DATASOURCE,
        "definition": asked,
        "query": {"query": asked, "refId": "instance"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """From left to right, a new row where the next does not fit."""
    made = []
    x = y = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > COLUMNS:
            x, y = 0, y + HEIGHT
        place = {"x": x, "y": y, "w": panel.width, "h": HEIGHT}
        made.append({"id": number, "gridPos": place, **_drawn(panel)})
        x += panel.width
    return made


def _drawn(panel: Panel) -> dict[str, Any]:
    stacking = {"mode": "normal" if panel.is_stacked else "none"}
    custom = {"fillOpacity": 25 if panel.is_stacked else 8, "stacking": stacking, "showPoints": "never"}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.note,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(65 + position),
                "datasource": DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for position, query in enumerate(panel.queries)
        ],
    }
