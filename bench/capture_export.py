"""How fast a window of a log becomes a file: exported, redacted, checked, against the disk itself.

    python -m bench.capture_export [--records N] [--record-bytes N]

The floor is what the disk takes: the bytes of the log read and as many zeros written and synced.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from app.capture_file import CaptureFile
from app.capture_reader import CaptureReader
from app.log_places import open_log
from bench import floor as floor_loop
from bench import log_verify
from bench.replay_log import build
from replay.capture import manifest_of, plan_capture, write_capture
from replay.redaction import Redaction

MB = 1e6


def timed(what: str, size: int, records: int, act: Callable[[], object]) -> float:
    """Run it, print its rate over the plain bytes of the records; seconds."""
    began = time.perf_counter()
    act()
    seconds = time.perf_counter() - began
    print(f"{what:<34} {size / MB / seconds:>8.0f} MB/s {records / seconds:>12,.0f} records/s")
    return seconds


def export(data: Path, out: Path, redact: bool) -> None:
    """What `picklog capture export` does, without its words."""
    with open_log(data) as opened:
        reader = opened.reader
        plan = plan_capture(reader, opened.checkpoints, reader.first_offset(), reader.end_offset())
        rewriter = Redaction(os.urandom(16), os.urandom(32)) if redact else None
        log_id = reader.log_id if rewriter is None else rewriter.log_id
        with CaptureFile(out, log_id) as file:
            written = write_capture(reader, opened.checkpoints, plan, file, rewriter)
            file.finish(
                manifest_of(
                    plan,
                    log_id=log_id,
                    written=written,
                    origin={"log_id": reader.log_id.hex()},
                    product="bench",
                    written_at="",
                    times=(None, None),
                    is_redacted=redact,
                )
            )


def copy_by_the_disk(data: Path, out: Path) -> None:
    """Read every segment, write as many bytes, sync."""
    with out.open("wb") as file:
        for path in sorted((data / "log").glob("*.seg")):
            file.write(path.read_bytes())
        file.flush()
        os.fsync(file.fileno())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--record-bytes", type=int, help="discovery keys of that size in place of samples")
    given = parser.parse_args()
    print(floor_loop.line())
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "data", Path(folder) / "a.capture"
        if given.record_bytes is None:
            build(data, given.records, 100)
        else:
            log_verify.write(data, given.records, given.record_bytes)
        with open_log(data) as opened:
            plan = plan_capture(opened.reader, opened.checkpoints, 0, opened.reader.end_offset())
        size, records = plan.record_bytes, plan.records
        print(f"{records:,} records, {size / MB:.0f} MB, {plan.picks:,} picks")
        floor = timed(
            "disk: read and written", size, records, lambda: copy_by_the_disk(data, Path(folder) / "x")
        )
        plain = timed("export", size, records, lambda: export(data, out, redact=False))
        print(f"{'':<34} {plain / floor:.1f} times the disk alone; {out.stat().st_size / MB:.0f} MB on disk")
        timed("show: every byte checked", size, records, lambda: CaptureReader(out).check_whole())
        timed("export --redact", size, records, lambda: export(data, Path(folder) / "r.capture", redact=True))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
