"""The what-if report as one self-contained HTML page: nothing is loaded from elsewhere, no script.

Text from the log (models, request ids, names of namespaces) is escaped wherever it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from app.page_plots import Line, lines, paired_bars, points, shades, steps
from app.page_style import STYLE
from app.whatif_document import sweep_row
from replay.spread import lorenz
from replay.whatif import WhatIf, WhatIfs

BARS_MAX = 24
MODELS_MAX = 6


def whatif_page(found: WhatIfs, document: dict[str, Any], title: str, log_name: str) -> str:
    """The page. document: of `whatif_document`, whose figures it shows."""
    result = found.results[0]
    several = len(found.results) > 1
    parts = [_sweep(found)] if several else []
    parts += [
        _tiles(document),
        _section("Where picks go", _workers(document), _legend("as recorded", "under the other settings")),
        _section("When picks move", _times(result, document)),
        _section("How evenly", _even(result, document)),
        _section("What choices cost", _costs(result, document)),
        _section("Why", _reasons(document)),
        _section("The largest moves", _largest(document["largest"])),
        _section("What this cannot tell", "".join(f"<p>{escape(text)}</p>" for text in document["limits"])),
    ]
    when = " to ".join(document["span"]) if document["span"] else "no picks"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f'<header><p class="kicker">Picklog what-if</p><h1>{escape(title)}</h1>'
        f'<p class="sub">{escape(log_name)} · {escape(when)} · {document["records"]:,} records</p></header>'
        f"{''.join(parts)}</main></body></html>\n"
    )


def _section(title: str, body: str, beside: str = "") -> str:
    return f"<section><div class='head'><h2>{escape(title)}</h2>{beside}</div>{body}</section>"


def _legend(before: str, after: str) -> str:
    keys = f'<i class="key before"></i>{escape(before)}<i class="key after"></i>{escape(after)}'
    return f'<p class="legend">{keys}</p>'


def _tiles(document: dict[str, Any]) -> str:
    spreads = list(document["spread"].values())
    worst = max(spreads, key=lambda row: row["gini"][1], default=None)
    decode = document["cost"]["decode"]
    tiles = [
        (f"{document['share']:.1%}", "of picks move", f"{document['moved']:,} of {document['picks']:,}"),
        _pair_tile(
            decode["before"], decode["after"], "average decode cost", f"{decode['picks']:,} picks have one"
        ),
    ]
    if worst is not None:
        tiles.append(
            _pair_tile(
                worst["gini"][0], worst["gini"][1], "Gini of picks by rank", "0 is even; the least even model"
            )
        )
        tiles.append(
            _pair_tile(
                worst["max_share"][0], worst["max_share"][1], "largest share of a rank", "of that model", "%"
            )
        )
    if document["not_asked"]:
        tiles.append((f"{document['not_asked']:,}", "could not be asked", _reasons_text(document)))
    cells = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span>'
        f"<small>{escape(small)}</small></div>"
        for value, name, small in tiles
    )
    return f'<div class="tiles">{cells}</div>'


def _pair_tile(
    before: float | None, after: float | None, name: str, small: str, style: str = ""
) -> tuple[str, str, str]:
    if before is None or after is None:
        return "–", name, "no cost decided anything here"
    both = f"{before:.1%} → {after:.1%}" if style == "%" else f"{before:.3f} → {after:.3f}"
    return both, name, small


def _reasons_text(document: dict[str, Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in document["not_asked_reasons"].items())


def _workers(document: dict[str, Any]) -> str:
    rows = sorted(document["by_worker"], key=lambda row: -max(row["before"], row["after"]))
    shown = [
        (f"{row['namespace']}/{row['worker']} · {row['dp_rank']}", row["before"], row["after"])
        for row in rows[:BARS_MAX]
    ]
    more = (
        f"<p class='note'>{len(rows) - BARS_MAX} further ranks are in the JSON.</p>"
        if len(rows) > BARS_MAX
        else ""
    )
    models = "".join(
        f"<tr><td>{escape(name)}</td><td>{row['picks']:,}</td><td>{row['moved']:,}</td>"
        f"<td>{_meter(row['share'])}</td></tr>"
        for name, row in list(document["by_model"].items())[:20]
    )
    table = (
        "<table><thead><tr><th>model</th><th>picks</th><th>moved</th><th>share</th></tr></thead>"
        f"<tbody>{models}</tbody></table>"
    )
    return paired_bars(shown, "picks by rank, before and after") + more + table


def _times(result: WhatIf, document: dict[str, Any]) -> str:
    """Shares along log time, in stretches from the first one on; 0 where nothing was picked."""
    held, step = result.times.rows(), result.times.step_us
    if len(held) < 2:
        return "<p class='note'>All picks lie within one stretch of time.</p>"
    first = held[0][0]
    rows: list[tuple[float, float]] = []
    for place, (at, picks, moved) in enumerate(held):
        x = float((at - first) // step)
        rows.append((x, moved / picks))
        if place + 1 < len(held) and held[place + 1][0] > at + step:
            rows.append((x + 1, 0.0))
    labels: list[tuple[float, str]] = []
    last = rows[-1][0]
    for row, (at, _, _) in zip(document["times"], held, strict=True):
        x = float((at - first) // step)
        if not labels or x - labels[-1][0] >= max(1.0, last / 4):
            labels.append((x, row["at"][11:19]))
    note = "<p class='note'>Stretches without a pick are drawn as 0.</p>" if len(rows) > len(held) else ""
    return steps(rows, labels, "share of picks that move, over time") + note


def _even(result: WhatIf, document: dict[str, Any]) -> str:
    parts = []
    ranked = [(model, spread) for model, spread in result.spreads.items() if spread.before]
    busiest = sorted(ranked, key=lambda item: -sum(item[1].before.values()))
    labels = [(step / 4, f"{step * 25}% of ranks") for step in range(5)]
    for model, spread in busiest[:MODELS_MAX]:
        row = document["spread"][model]
        held = [
            Line("as recorded", "before", lorenz(list(spread.before.values()))),
            Line("otherwise", "after", lorenz(list(spread.after.values()))),
        ]
        figures = (
            f"<p class='note'><b>{escape(model)}</b>: {row['ranks']} ranks; Gini {row['gini'][0]:.3f} → "
            f"{row['gini'][1]:.3f} by picks, {row['gini_tokens'][0]:.3f} → "
            f"{row['gini_tokens'][1]:.3f} by tokens; "
            f"largest share {row['max_share'][0]:.1%} → {row['max_share'][1]:.1%}</p>"
        )
        plot = lines(
            held, "share of picks", labels, f"spread of {model}", y_high=1.0, y_style="%", diagonal=True
        )
        parts.append(figures + plot)
    return "".join(parts)


def _costs(result: WhatIf, document: dict[str, Any]) -> str:
    table = "".join(
        f"<tr><td>{phase}</td><td>{row['picks']:,}</td><td>{_cost(row['before'])}</td><td>{_cost(row['after'])}</td></tr>"
        for phase, row in document["cost"].items()
    )
    head = "<th>phase</th><th>picks with costs</th><th>average before</th><th>average after</th>"
    plot = points(
        result.costs_sampled,
        "decode cost of the recorded choice",
        "of the other choice",
        "costs of both choices",
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{table}</tbody></table>{plot}"


def _cost(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _reasons(document: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr class='{'changed' if row['before'] != row['after'] else ''}'><td>{row['phase']}</td>"
        f"<td>{row['before']}</td><td>{row['after']}</td><td>{row['picks']:,}</td></tr>"
        for row in document["reasons"]
    )
    head = "<th>phase</th><th>reason then</th><th>reason otherwise</th><th>picks</th>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _largest(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "<p class='note'>No pick moves.</p>"
    return "".join(
        f"<article><h3>{escape(row['request_id'])}"
        f"<small>{escape(row['asked_at'])} · {escape(row['model'])} · {row['estimated_tokens']:,} tokens"
        f" · offset {row['log_offset']}</small></h3>"
        f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in row['why'])}</ul></article>"
        for row in rows
    )


def _meter(share: float) -> str:
    return f"<span class='meter'><i style='width:{share:.1%}'></i></span>{share:.1%}"


def _sweep(found: WhatIfs) -> str:
    """Plots over the values of one or two settings."""
    rows = [sweep_row(result) for result in found.results]
    keys = list(rows[0]["values"])
    head = "".join(f"<th>{escape(key)}</th>" for key in keys)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(text)}</td>" for text in row["values"].values())
        + f"<td>{_meter(row['share'])}</td><td>{row['max_share']:.1%}</td><td>{row['gini']:.3f}</td>"
        f"<td>{_cost(row['cost']['decode']['after'])}</td></tr>"
        for row in rows
    )
    table = (
        f"<table class='wide'><thead><tr>{head}<th>moved</th><th>largest share</th><th>Gini</th>"
        f"<th>decode cost</th></tr></thead><tbody>{body}</tbody></table>"
    )
    note = f"<p class='note'>What follows speaks of the first row, {escape(rows[0]['alternative'])}.</p>"
    return _section("The sweep", _sweep_plot(rows, keys) + f"<div class='scroll'>{table}</div>{note}")


def _sweep_plot(rows: Sequence[dict[str, Any]], keys: Sequence[str]) -> str:
    texts = [tuple(row["values"].values()) for row in rows]
    if len(keys) == 2:
        firsts, seconds = list(dict.fromkeys(t[0] for t in texts)), list(dict.fromkeys(t[1] for t in texts))
        held = {text: row["share"] for text, row in zip(texts, rows, strict=True)}
        grid = [[held[(first, second)] for second in seconds] for first in firsts]
        across = [f"{keys[1]} {text}" for text in seconds]
        down = [f"{keys[0]} {text}" for text in firsts]
        return shades(across, down, grid, "share of picks moved")
    labels = [(float(place), text[0]) for place, text in enumerate(texts)]
    moved = Line("moved", "one", [(float(n), row["share"]) for n, row in enumerate(rows)])
    largest = Line("largest share of a rank", "two", [(float(n), r["max_share"]) for n, r in enumerate(rows)])
    even = Line("Gini", "three", [(float(n), row["gini"]) for n, row in enumerate(rows)])
    legend = (
        '<p class="legend"><i class="key one"></i>moved<i class="key two"></i>largest share'
        '<i class="key three"></i>Gini</p>'
    )
    plot = lines([moved, largest, even], keys[0], labels, "sweep", y_high=1.0, y_style="%", dots=True)
    return legend + plot
