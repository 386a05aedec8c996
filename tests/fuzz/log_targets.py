"""Fuzz targets of what reads logs, checkpoints and the fleet's JSON values.

* `record`: any body under a right check word is a record or a refusal, twice the same; folding
  it stops or not, but raises nothing else.
* `segment`: any bytes give a scan whose batches are a prefix of what was written, or that
  stop before the first changed byte; nothing is raised but SegmentRefused for a header.
* `checkpoint`: any records give a fold or CheckpointRefused.
* `value`: any bytes parse to a record or to Unreadable, twice the same, under each of the
  four keyspaces.
"""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path

import xxhash

from projections.checkpoint import CheckpointRefused, checkpoint_records, fold_from_checkpoint
from projections.events.codec import RecordRefused, decode_record
from projections.events.segment_format import (
    HEADER_BYTES,
    SegmentHeader,
    SegmentRefused,
    chain_start,
    decode_header,
    encode_batch,
    encode_header,
    frame_records,
)
from projections.events.segment_scan import scan
from projections.fold import Fold, FoldStopped
from projections.registry.records import parse_card, parse_channel, parse_endpoint, parse_source
from tests.fuzz.mutate import Target

TESTS = Path(__file__).parents[1]
HEADER = SegmentHeader(bytes(range(16)), 0, b"markmark", 5, bytes(32))
BATCH_RECORDS = 7
LENGTH_BYTES = 4


def targets() -> list[Target]:
    """All of them, with corpora of real records and recorded values."""
    records = _records()
    return [
        Target("record", [record[:-8] for record in records], check_record),
        Target("segment", [_segment(records)], check_segment),
        Target("checkpoint", [_packed(_checkpoint(records))], check_checkpoint),
        Target("value", _values(), check_value),
    ]


def check_record(body: bytes) -> None:
    """See the module's text."""
    data = body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")
    try:
        record = decode_record(7, data)
    except RecordRefused:
        record = None
    if record is not None:
        assert decode_record(7, data) == record
    with contextlib.suppress(FoldStopped):
        Fold().apply(7, data, [])


def check_segment(data: bytes) -> None:
    """See the module's text."""
    try:
        header = decode_header(data)
    except SegmentRefused:
        return
    written = _segment(_records())
    found = scan(data, header)
    for frame in found.batches:
        records = frame_records(data, frame)
        assert len(records) == frame.records
        if data[: frame.end] == written[: frame.end]:
            continue
        assert header != HEADER or _chain_changed(data, written, frame.end)


def _chain_changed(data: bytes, written: bytes, end: int) -> bool:
    """A changed batch that the chain let through would be a collision of blake3."""
    return data[:HEADER_BYTES] != written[:HEADER_BYTES] or data[:end] == written[:end]


def check_checkpoint(data: bytes) -> None:
    """See the module's text."""
    with contextlib.suppress(CheckpointRefused):
        fold_from_checkpoint(_unpacked(data))


def check_value(data: bytes) -> None:
    """See the module's text."""
    for parse in (parse_endpoint, parse_card, parse_channel, parse_source):
        assert parse(data) == parse(data)


def _records() -> list[bytes]:
    golden = json.loads((TESTS / "golden" / "records-1.json").read_text())
    return [bytes.fromhex(row["bytes"]) for row in golden.values()]


def _segment(records: list[bytes]) -> bytes:
    parts, head, offset = [encode_header(HEADER)], chain_start(HEADER), 0
    for start in range(0, len(records), BATCH_RECORDS):
        batch = records[start : start + BATCH_RECORDS]
        data, head = encode_batch(HEADER.mark, offset, batch, head)
        parts.append(data)
        offset += len(batch)
    return b"".join(parts)


def _checkpoint(records: list[bytes]) -> list[bytes]:
    fold = Fold()
    for offset, record in enumerate(records):
        with contextlib.suppress(FoldStopped):
            fold.apply(offset, record, [])
        if fold.stopped is not None:
            fold = Fold()
    return list(checkpoint_records(fold, bytes(16)))


def _packed(records: list[bytes]) -> bytes:
    return b"".join(len(record).to_bytes(LENGTH_BYTES, "big") + record for record in records)


def _unpacked(data: bytes) -> list[bytes]:
    """Records again, each with a right check word, so that mutations reach the fields."""
    found, at = [], 0
    while at + LENGTH_BYTES <= len(data):
        size = int.from_bytes(data[at : at + LENGTH_BYTES], "big")
        body = data[at + LENGTH_BYTES : at + LENGTH_BYTES + size][:-8]
        found.append(body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little"))
        at += LENGTH_BYTES + size
    return found


def _values() -> list[bytes]:
    found: dict[bytes, None] = {}
    for path in sorted((TESTS / "recordings").glob("etcd-watch-*.jsonl.gz")):
        with gzip.open(path, "rt") as lines:
            for line in lines:
                value = json.loads(line).get("value")
                if isinstance(value, str):
                    found[value.encode()] = None
    return list(found)
