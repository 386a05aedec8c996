"""`picklog log copy SOURCE TARGET`: from segments to Kafka or back.

Exit status 0 both ends are equal; 1 they differ, or a log does not check; 2 the target cannot take
this log; 3 one of them cannot be reached. Ended at any point, the same command goes on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli_errors import EXIT_FOUND_WRONG, EXIT_USAGE, fail, refusals_told
from app.cli_output import print_json
from app.kafka_places import is_kafka, topics_told
from app.log_places import open_log


def copy_command(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="A data directory, a capture or kafka:FILE.")
    ],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A data directory or kafka:FILE.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Copy a log, from segments to Kafka or back; goes on where an earlier run was ended."""
    from app.log_copying import copy_document, copy_log, open_target
    from ingest.log.log_copy import CopyRefused

    if not is_kafka(target) and target.exists() and not target.is_dir():
        fail(EXIT_USAGE, f"{target} is a file", "name a directory or kafka:FILE")
    if source.absolute() == target.absolute():
        fail(EXIT_USAGE, f"{target} is the source itself", "name another place")
    os.umask(0o077)
    with refusals_told(), topics_told(), open_log(source) as opened:
        try:
            with open_target(target) as place:
                done = copy_log(opened, place)
        except CopyRefused as problem:
            fail(EXIT_USAGE, str(problem))
    document = copy_document(str(source), str(target), done)
    if as_json:
        print_json(document)
    else:
        _print(document)
    if not done.is_equal:
        fail(EXIT_FOUND_WRONG, "the target differs from the source", "look at it with `log verify`")


def _print(document: dict[str, Any]) -> None:
    print(f"log {document['log_id']}, offsets {document['first_offset']} to {document['end_offset'] - 1}")
    base = f", begun with the checkpoint of offset {document['base']}" if document["base"] is not None else ""
    print(f"{document['copied']} records copied, {document['records']} there{base}")
    print(f"source {document['source_digest']}")
    print(f"target {document['target_digest']} ({'equal' if document['equal'] else 'different'})")
