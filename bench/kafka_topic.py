"""What a log on Kafka costs its writer and each of its readers, on a real broker of this machine.

Records of one sample are committed to a topic in groups, then read by a reader with a
connection of its own, to the last one. Processor time is that of this process alone: the
client, its thread and the decompression, without the fold. The broker shares the machine's
cores, so the rates by the clock say little about a broker of its own.

    python -m bench.kafka_topic [--records N] [--json]

Needs `python -m deploy.demo.install_kafka`; without it one line says so.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import floor
from bench.scaling_model import record_bytes
from deploy.demo import install_kafka
from ingest.log.kafka_log import KafkaLog
from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_settings import KafkaPlace
from projections.events.codec import encode_record
from projections.events.control import ClockTicked
from projections.events.signals import SampleReceived

PER_COMMIT = 500
READ_BYTES = 1 << 20
WRITER = b"bench writer----"


def records(number: int) -> list[bytes]:
    """Samples of 512 ranks with values that differ, as a fleet sends them."""
    found = []
    for step in range(number):
        rank, used = step % 512, (step * 7_919) % 16_384
        fact = SampleReceived(
            "dynamo",
            (1 << 52) + rank // 8,
            1,
            step,
            step,
            (1 << 60) + rank // 8,
            rank % 8,
            None,
            None,
            used,
            1_790_000_000_000_000 + step,
        )
        found.append(encode_record(1_000_000 + step * 140, WRITER, 1, step + 1, fact))
    return found


def written(place: KafkaPlace, ready: list[bytes]) -> tuple[float, float]:
    """Clock and processor seconds of committing all."""
    log = KafkaLog.open(place)
    try:
        log.commit([encode_record(1, WRITER, 1, 0, ClockTicked(0, -1, (), 0, 0))])
        clock, processor = time.perf_counter(), time.process_time()
        for start in range(0, len(ready), PER_COMMIT):
            log.commit(ready[start : start + PER_COMMIT])
        return time.perf_counter() - clock, time.process_time() - processor
    finally:
        log.close()


def read(place: KafkaPlace, number: int) -> tuple[float, float]:
    """Clock and processor seconds of reading all."""
    reader = KafkaReader.open(place)
    try:
        clock, processor = time.perf_counter(), time.process_time()
        position, seen = reader.first_offset(), 0
        while seen < number:
            for batch in reader.read(position, READ_BYTES):
                seen += len(batch.records)
                position = batch.first_offset + len(batch.records)
        return time.perf_counter() - clock, time.process_time() - processor
    finally:
        reader.close()


def measured(number: int) -> dict[str, Any]:
    """All figures of one run."""
    from tests.live.kafka_broker import KafkaBroker

    ready = records(number)
    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(Path(folder))
        try:
            broker.start()
            place = KafkaPlace((broker.address(),), "bench", replication_factor=1)
            write_clock, write_processor = written(place, ready)
            read_clock, read_processor = read(place, number)
        finally:
            broker.close()
    return {
        "records": number,
        "record_bytes": record_bytes()[0],
        "written_per_s": number / write_clock,
        "write_us": write_processor / number * 1e6,
        "read_per_s": number / read_clock,
        "read_us": read_processor / number * 1e6,
        "floor": floor.loops_per_second() / floor.REFERENCE_LOOPS_PER_S,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What a log on Kafka costs its writer and its readers.")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not install_kafka.is_installed():
        print("no Kafka here: python -m deploy.demo.install_kafka")
        return
    found = measured(options.records)
    if options.json:
        print(json.dumps(found))
        return
    print(f"floor loop {found['floor']:.2f} of the reference machine")
    for word, cpu in (("written", found["write_us"]), ("read", found["read_us"])):
        rate = found[f"{word}_per_s"]
        print(f"{word}: {rate:,.0f} records/s by the clock, {cpu:.2f} µs of processor a record")


if __name__ == "__main__":
    main()
