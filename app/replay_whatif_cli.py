"""`picklog replay whatif`: the same questions under other settings, or on load decoded anew.

Only what a pick may read counts (see `PickSettings`); everything else of the other
configuration changes no pick. Files are written under a temporary name and renamed. Exit
status 0 also when picks moved; 2 bad usage or an invalid configuration; 3 the log cannot be
read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table

from app.cli_errors import EXIT_UNREACHABLE, EXIT_USAGE, fail, printable, refusals_told
from app.cli_output import (
    FromOption,
    JsonOption,
    LogOption,
    ProgressBar,
    ToOption,
    or_dash,
    plain_console,
    print_json,
    range_of,
    say,
)
from app.config_adoption import pick_settings
from app.config_findings import ConfigError, ConfigUnreadable
from app.config_load import load_config
from app.config_rules import PICKER_NAMES
from app.config_units import Duration
from app.log_places import OpenLog, open_log
from app.marks import Marks
from app.redecoding import CheckpointsBefore, RedecodedLog
from app.replay_steps import with_steps
from app.whatif_document import PickRows, whatif_document
from app.whatif_page import whatif_page
from app.whole_file import whole_file
from projections.events.control import PickSettings
from projections.events.ports import CheckpointStore, LogReader
from replay.alternative import Alternative
from replay.whatif import what_if
from router.picker.kv_aware import WEIGHT_MAX

ALTERNATIVES_MAX = 64
SWEEP_KEYS_MAX = 2
WORKERS_SHOWN = 20
REDECODE_LIMIT = (
    "Only frames that became samples or block events are kept, and none of engines without a relay: what was"
    " refused then, or was overtaken by a newer sample before it was logged, cannot be decoded anew."
)

ConfigOption = Annotated[
    Path | None, typer.Option("-c", "--config", metavar="OTHER", help="Another configuration file.")
]
SweepOption = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="KEY=V1,V2,...", help="A setting in several values; twice for a grid."),
]
CsvOption = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="A row for every pick.")]
RedecodeOption = Annotated[
    bool, typer.Option("--redecode", help="Decode the kept raw frames anew instead of taking their samples.")
]
HtmlOption = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="A page with plots.")]


def whatif_command(
    config: ConfigOption = None,
    sweep: SweepOption = None,
    start: FromOption = "begin",
    stop: ToOption = "end",
    log: LogOption = None,
    csv_file: CsvOption = None,
    html_file: HtmlOption = None,
    redecode: RedecodeOption = False,
    as_json: JsonOption = False,
) -> None:
    """The same questions under other settings: which picks would have gone elsewhere, and why."""
    if config is None and not sweep and not redecode:
        fail(EXIT_USAGE, "no other settings are named", "give -c FILE, --sweep KEY=V1,V2,... or --redecode")
    alternatives = _alternatives(config, sweep or [])
    with refusals_told(), open_log(log) as opened, _read_from(opened, redecode) as (reader, checkpoints):
        marks = Marks(opened.reader)
        first, last = range_of(marks, start, stop)
        with _written(csv_file) as out, ProgressBar(first, last, "asking again") as advance:
            each = PickRows(out, marks.time_text).add if out is not None else None
            found = what_if(
                reader,
                checkpoints,
                first,
                last,
                alternatives,
                advance,
                each,
            )
        document = whatif_document(found, marks.time_text)
        if isinstance(reader, RedecodedLog):
            document["redecoded"] = reader.counts.document()
            document["limits"].append(REDECODE_LIMIT)
        if html_file is not None:
            with _written(html_file) as page:
                assert page is not None
                page.write(whatif_page(found, document, _title(alternatives), opened.name))
        if as_json:
            print_json(document)
        else:
            print_whatif(document, plain_console())


@contextmanager
def _read_from(opened: OpenLog, redecode: bool) -> Iterator[tuple[LogReader, CheckpointStore]]:
    """The log as it is, or with its samples decoded anew from the first kept frame on."""
    if not redecode:
        yield opened.reader, with_steps(opened.checkpoints, opened.data)
        return
    if opened.frames is None:
        fail(EXIT_USAGE, f"{opened.name} holds no raw frames", "name a data directory, or kafka:FILE")
    with opened.frames() as frames:
        first = frames.first_offset()
        if first is None:
            fail(
                EXIT_UNREACHABLE,
                f"{opened.name} keeps no raw frames that can be read",
                "they are kept for log.raw.age while log.raw.enabled is true",
            )
        yield RedecodedLog(opened.reader, frames), CheckpointsBefore(opened.checkpoints, first)


def _title(alternatives: list[Alternative]) -> str:
    if len(alternatives) == 1:
        return f"Under {alternatives[0].name}"
    return f"Under several values of {' and '.join(key for key, _ in alternatives[0].labels)}"


def print_whatif(document: dict[str, Any], console: Console) -> None:
    """The terminal face."""
    say(
        console,
        bold=f"{document['moved']} of {document['picks']} picks move",
        after=f" ({document['share']:.1%}) under {document['alternative']}",
    )
    if "redecoded" in document:
        row = document["redecoded"]
        say(
            console,
            f"{row['same'] + row['changed'] + row['refused']} frames decoded anew: {row['changed']} say"
            f" something else, {row['refused']} are refused now; {row['not_kept']} samples whose frame"
            f" is gone and {row['damaged']} whose frame is damaged stay as they are",
        )
    if document["not_asked"]:
        reasons = ", ".join(f"{name} {count}" for name, count in document["not_asked_reasons"].items())
        say(console, f"{document['not_asked']} picks cannot be asked again: {reasons}")
    for phase, row in document["cost"].items():
        if row["picks"]:
            say(
                console,
                f"{phase} cost, average of {row['picks']} picks: {row['before']:.4f} -> {row['after']:.4f}"
                " (by the settings of then)",
            )
    before, after = document["overlap_blocks"]
    if before or after:
        say(console, f"blocks of prompts that the ranks that prefill held: {before} -> {after}")
    for model, row in document["spread"].items():
        say(
            console,
            f"model {model}: {row['ranks']} ranks, largest share {row['max_share'][0]:.1%} ->"
            f" {row['max_share'][1]:.1%}, Gini {row['gini'][0]:.3f} -> {row['gini'][1]:.3f}",
        )
    if "sweep" in document:
        _print_sweep(document["sweep"], console)
    _print_workers("decode picks by rank", document["by_worker"], console)
    if document["by_prefill_worker"]:
        _print_workers("prefill picks by rank", document["by_prefill_worker"], console)
    for row in document["largest"][:3]:
        say(console, bold=f"request {row['request_id']}", after=f" at offset {row['log_offset']}:")
        for text in row["why"]:
            say(console, f"  - {text}")
    say(console, f"note: {document['limits'][0]}")


def _print_sweep(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(title="sweep", title_justify="left")
    for head in ("settings", "moved", "share", "largest share", "Gini", "decode cost", "blocks held"):
        table.add_column(head, justify="left" if head == "settings" else "right")
    for row in rows:
        cost = row["cost"]["decode"]["after"]
        table.add_row(
            printable(row["alternative"]),
            str(row["moved"]),
            f"{row['share']:.1%}",
            f"{row['max_share']:.1%}",
            f"{row['gini']:.3f}",
            "-" if cost is None else f"{cost:.4f}",
            str(row["overlap_blocks"][1]),
        )
    console.print(table)


def _print_workers(title: str, rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    for head in ("worker", "rank", "before", "after", "lost", "gained"):
        table.add_column(head, justify="left" if head == "worker" else "right")
    ordered = sorted(rows, key=lambda row: -abs(row["after"] - row["before"]))
    for row in ordered[:WORKERS_SHOWN]:
        numbers = (row[name] for name in ("dp_rank", "before", "after", "lost", "gained"))
        table.add_row(printable(f"{row['namespace']}/{row['worker']}"), *map(or_dash, numbers))
    console.print(table)
    if len(rows) > WORKERS_SHOWN:
        say(console, f"{len(rows) - WORKERS_SHOWN} further ranks: see --json")


# Settings -------------------------------------------------------------------------------


def _alternatives(config: Path | None, sweep: list[str]) -> list[Alternative]:
    settings = _settings_of(config) if config is not None else None
    base = config.name if config is not None else "the same settings"
    if not sweep:
        return [Alternative(base, settings)]
    if len(sweep) > SWEEP_KEYS_MAX:
        fail(EXIT_USAGE, f"{len(sweep)} settings are swept", f"sweep one or {SWEEP_KEYS_MAX}")
    axes = [_axis(text) for text in sweep]
    if len({axis[0][0] for axis in axes}) < len(axes):
        fail(EXIT_USAGE, f"--sweep {axes[0][0][0]}: the setting is swept twice", "write its values once")
    found = [
        Alternative(
            ", ".join(f"{key}={text}" for key, text, _ in combination),
            settings,
            tuple(pair for _, _, pair in combination),
            tuple((key, text) for key, text, _ in combination),
        )
        for combination in itertools.product(*axes)
    ]
    if len(found) > ALTERNATIVES_MAX:
        fail(EXIT_USAGE, f"the sweep has {len(found)} combinations", f"at most {ALTERNATIVES_MAX} are asked")
    return found


def _settings_of(path: Path) -> PickSettings:
    try:
        return pick_settings(load_config(path).config)
    except ConfigError as refused:
        status = EXIT_UNREACHABLE if isinstance(refused, ConfigUnreadable) else EXIT_USAGE
        fail(status, str(refused.findings[0]), "see `picklog config validate -c FILE`")


def _axis(text: str) -> list[tuple[str, str, tuple[str, Any]]]:
    """(short key, value as written, (field of PickSettings, value)) for each value of a swept setting."""
    key, equals, values = text.partition("=")
    found = next((row for row in SWEPT if key in (row[0], row[0].rpartition(".")[2])), None)
    if not equals or found is None:
        keys = ", ".join(row[0] for row in SWEPT)
        fail(EXIT_USAGE, f"--sweep {text}: picks read no such setting", f"write KEY=V1,V2 with one of {keys}")
    path, field, read = found
    axis = []
    for value in dict.fromkeys(values.split(",")):
        try:
            axis.append((path.rpartition(".")[2], value, (field, read(value))))
        except ValueError as problem:
            fail(EXIT_USAGE, f"--sweep {key}: {value!r} {problem}")
    return axis


def _picker(text: str) -> str:
    if text not in PICKER_NAMES:
        raise ValueError(f"names no picker: one of {', '.join(sorted(PICKER_NAMES))}")
    return text


def _namespaces(text: str) -> tuple[str, ...]:
    names = tuple(sorted(filter(None, text.split("+"))))
    if not names:
        raise ValueError("names no namespace: write one, or several joined by +")
    return names


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not 0.0 <= weight <= WEIGHT_MAX:
        raise ValueError("is no number between 0 and 1e100")
    return weight


SWEPT: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
    ("dynamo.load.max_staleness", "max_staleness_us", lambda text: Duration.read(text).us),
    ("dynamo.picker", "picker", _picker),
    ("namespaces", "namespaces", _namespaces),
    ("dynamo.kv.overlap_score_credit", "kv.overlap_credit", _weight),
    ("dynamo.kv.overlap_score_credit_decay", "kv.credit_decay", _weight),
    ("dynamo.kv.prefill_load_scale", "kv.prefill_scale", _weight),
    ("dynamo.kv.router_temperature", "kv.temperature", _weight),
    ("dynamo.kv.host_cache_hit_weight", "kv.host_credit", _weight),
    ("dynamo.kv.disk_cache_hit_weight", "kv.disk_credit", _weight),
    ("dynamo.kv.predicted_ttl", "kv.predicted_ttl_us", lambda text: Duration.read(text).us),
    ("dynamo.kv.approximate_ttl", "kv.approximate_ttl_us", lambda text: Duration.read(text).us),
)
"""Settings that picks read, by their configuration key: the field of PickSettings, and how a value reads."""


@contextmanager
def _written(path: Path | None) -> Iterator[TextIO | None]:
    """A text file to write, whole or not at all."""
    if path is None:
        yield None
        return
    with (
        whole_file(path) as unfinished,
        unfinished.open("w", encoding="utf-8", newline="", errors="backslashreplace") as out,
    ):
        yield out
