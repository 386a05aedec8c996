"""`picklog log copy` between segments and a real Kafka, and every offline command on the copy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from app.checkpoint_store import CheckpointFolder
from app.cli import run
from app.cli_errors import EXIT_DONE, EXIT_USAGE
from app.log_places import checkpoint_folder
from ingest.log.kafka_copy import KafkaCopy
from ingest.log.kafka_settings import KafkaPlace
from ingest.log.log_copy import CopyRefused, copy_records, digest_log, place_to_go_on
from ingest.log.segment_log import SegmentLog
from ingest.log.segment_reader import SegmentReader
from ingest.log.segment_settings import SegmentSettings
from ingest.log.staged_log import open_staged
from projections.events.ports import LogError, RecordBatch
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.live.router_process import until
from tests.log_suite import read_all, record

pytestmark = pytest.mark.live("kafka")

GOLDEN = Path(__file__).parents[1] / "golden" / "run-1.6.1"
SETTINGS = SegmentSettings(durable=False, reserve_bytes=0, allocate_bytes=1 << 20)
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def topics(kafka: KafkaBroker) -> Iterator[Topics]:
    with Topics(kafka) as opened:
        yield opened


def where(place: KafkaPlace, folder: Path) -> str:
    """`kafka:FILE` for a topic."""
    file = folder / f"{place.topic}.yaml"
    section = {"bootstrap_servers": list(place.servers), "topic": place.topic, "replication_factor": 1}
    file.write_text(json.dumps({"log": {"kafka": section}}))
    return f"kafka:{file}"


def command(*words: object) -> int:
    return run([str(word) for word in words])


def answer(capsys: Captured, *words: object) -> dict[str, object]:
    """The JSON document of a command that ends well."""
    capsys.readouterr()
    assert command(*words, "--json") == EXIT_DONE, capsys.readouterr().err
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def numbered(data: Path, *runs: tuple[int, int], blob: int = 0) -> Path:
    """A log with records at these ranges of offsets, each naming its own."""
    log = SegmentLog.open_owner(data, SETTINGS)
    for first, count in runs:
        log.jump(first)
        for start in range(first, first + count, 500):
            log.commit([record(n, blob) for n in range(start, min(start + 500, first + count))])
    log.close()
    return data


@pytest.mark.req("EVS-20")
def test_a_log_copied_there_and_back_is_the_same_for_every_command(
    topics: Topics, tmp_path: Path, capsys: Captured
) -> None:
    there = where(topics.place(), tmp_path)
    done = answer(capsys, "log", "copy", GOLDEN, there)
    assert done["equal"] is True and done["copied"] == done["records"]
    back = answer(capsys, "log", "copy", there, tmp_path / "back")
    assert back["target_digest"] == done["source_digest"]
    assert back["log_id"] == done["log_id"]
    for words in (("replay", "verify"), ("replay", "state", "--at", "end"), ("replay", "explain", "last")):
        found = [answer(capsys, *words, "--log", place) for place in (GOLDEN, there, tmp_path / "back")]
        for one in found:
            for name in ("seconds", "records_per_second", "processes"):
                one.pop(name, None)
        assert found[0] == found[1] == found[2], words
    checked = answer(capsys, "log", "verify", "--log", there)
    assert (checked["good"], checked["records"]) == (True, done["records"])
    assert answer(capsys, "log", "stat", "--log", there)["records"] == done["records"]


def test_the_other_offline_commands_read_a_topic_too(
    topics: Topics, tmp_path: Path, capsys: Captured
) -> None:
    there = where(topics.place(), tmp_path)
    answer(capsys, "log", "copy", GOLDEN, there)
    lines = []
    for place in (GOLDEN, there):
        assert command("log", "cat", "--log", place, "--from", "20", "--to", "-1s") == EXIT_DONE
        lines.append(capsys.readouterr().out)
    assert lines[0] == lines[1] and lines[0].count("\n") > 50
    other = tmp_path / "other.yaml"
    other.write_text("dynamo: {picker: round_robin}\n")
    moved = [answer(capsys, "replay", "whatif", "-c", other, "--log", place) for place in (GOLDEN, there)]
    assert moved[0]["moved"] == moved[1]["moved"]
    database = tmp_path / "audit.sqlite"
    assert command("audit", "backfill", "--log", there, "--db", database) == EXIT_DONE
    assert command("capture", "export", "--log", there, "--out", tmp_path / "w.capture") == EXIT_DONE
    exported = answer(capsys, "replay", "verify", "--log", tmp_path / "w.capture")
    assert exported["different"] == 0 and exported["picks"]
    fed = answer(capsys, "replay", "feed", "--to", tmp_path / "staged", "--log", there, "--no-audit")
    assert fed["breaks"] == [] and fed["records"] == moved_end(GOLDEN)


def moved_end(data: Path) -> int:
    reader = SegmentReader.open(data)
    try:
        return reader.end_offset()
    finally:
        reader.close()


def test_staging_follows_a_topic_that_grows(topics: Topics, tmp_path: Path) -> None:
    place = topics.place()
    golden = SegmentReader.open(GOLDEN)
    end = golden.end_offset()
    target = KafkaCopy.open(place)
    target.begin(golden.log_id, 0, None)
    copy_records(golden, target, 0, 100, int)
    staged = tmp_path / "staged"
    words = ["replay", "feed", "--log", where(place, tmp_path), "--to", staged, "--follow", "--no-audit"]
    with (tmp_path / "feed.log").open("wb") as out:
        feed = subprocess.Popen(
            [sys.executable, "-m", "app", *map(str, words)], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        until_fed(feed, staged, 100)
        copy_records(golden, target, 100, end, int)
        until_fed(feed, staged, end)
        feed.send_signal(signal.SIGTERM)
        assert feed.wait(30) == EXIT_DONE, (tmp_path / "feed.log").read_text()
    finally:
        feed.kill()
        feed.wait()
        target.close()
    reader = SegmentReader.open(staged)
    assert read_all(reader, 0) == read_all(golden, 0)
    reader.close()
    golden.close()


def until_fed(feed: subprocess.Popen[bytes], staged: Path, end: int) -> None:
    """Wait until a staged log has everything before `end`."""
    deadline = time.monotonic() + 60
    while True:
        assert time.monotonic() < deadline and feed.poll() is None
        try:
            reader = SegmentReader.open(staged)
        except (LogError, OSError):
            time.sleep(0.1)
            continue
        found = reader.end_offset()
        reader.close()
        if found >= end:
            return
        time.sleep(0.1)


def test_a_log_that_begins_with_a_checkpoint_is_copied_with_it_and_folds_to_the_same_state(
    topics: Topics, tmp_path: Path, capsys: Captured
) -> None:
    base = CheckpointFolder(checkpoint_folder(GOLDEN)).list()[0]
    source = tmp_path / "source"
    golden = SegmentReader.open(GOLDEN)
    kept = open_staged(source, golden.log_id, base.offset - 3, SETTINGS)
    for offset, data in read_all(golden, base.offset - 3):
        assert kept.commit([data]) == offset
    kept.close()
    golden.close()
    checkpoints = CheckpointFolder(checkpoint_folder(GOLDEN))
    CheckpointFolder(checkpoint_folder(source)).write(
        golden.log_id, base.offset, base.check, base.time, checkpoints.read(base)
    )
    there = where(topics.place(), tmp_path)
    done = answer(capsys, "log", "copy", source, there)
    assert (done["first_offset"], done["base"], done["equal"]) == (base.offset - 3, base.offset, True)
    answer(capsys, "log", "copy", there, tmp_path / "back")
    states = [
        answer(capsys, "replay", "state", "--at", "end", "--log", place)
        for place in (source, there, tmp_path / "back")
    ]
    assert states[0] == states[1] == states[2]


def test_offsets_that_jump_are_kept_and_what_comes_later_goes_on_behind_them(
    topics: Topics, tmp_path: Path
) -> None:
    source = numbered(tmp_path / "source", (0, 3_000), (1 << 20, 2_500), ((1 << 20) + 5_000, 10))
    place = topics.place()
    reader = SegmentReader.open(source)
    copied_all(reader, place)
    log = topics.log(place)
    end = (1 << 20) + 5_010
    first = log.commit([record(7), record(8)])
    assert first >= end and log.commit([record(9)]) == first + 2
    for follows in (True, False):
        found = topics.reader(place, follows)
        assert (found.first_offset(), found.end_offset()) == (0, first + 3)
        for start in (0, 2_999, 3_000, 90_000, 1 << 20, (1 << 20) + 2_400, (1 << 20) + 3_000, end - 1):
            wanted = read_all(reader, start)
            assert read_all(found, start)[: len(wanted)] == wanted
        assert read_all(found, first) == [(first, record(7)), (first + 1, record(8)), (first + 2, record(9))]
        assert read_all(found, end) == read_all(found, first)
        assert digest_log(found, 0, end, int) == digest_log(reader, 0, end, int)
    with pytest.raises(CopyRefused, match="went on by itself"):
        KafkaCopy.open(place)
    reader.close()


def copied_all(reader: SegmentReader, place: KafkaPlace) -> None:
    target = KafkaCopy.open(place)
    try:
        target.begin(reader.log_id, reader.first_offset(), None)
        copy_records(reader, target, reader.first_offset(), reader.end_offset(), int)
    finally:
        target.close()


def test_a_copy_that_is_killed_again_and_again_goes_on_and_ends_equal(
    topics: Topics, tmp_path: Path, capsys: Captured
) -> None:
    source = numbered(tmp_path / "source", (0, 20_000), blob=900)
    place = topics.place()
    there, back = where(place, tmp_path), tmp_path / "back"
    for first, second in ((source, there), (there, back)):
        for pause_s in (1.2, 1.5, 1.8):
            killed_after(pause_s, "log", "copy", first, second)
        done = answer(capsys, "log", "copy", first, second)
        assert (done["equal"], done["records"]) == (True, 20_000)
    assert answer(capsys, "log", "copy", source, there)["copied"] == 0


def test_a_copy_outlives_a_killed_broker(
    kafka: KafkaBroker, topics: Topics, tmp_path: Path, capsys: Captured
) -> None:
    source = numbered(tmp_path / "source", (0, 30_000), blob=900)
    place = topics.place()
    there = where(place, tmp_path)
    argv = [sys.executable, "-m", "app", "log", "copy", str(source), there]
    copying = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        until(partial(has_some, topics, place), "the copy is under way")
        kafka.kill()
        kafka.start()
        _, told = copying.communicate(timeout=100)
    finally:
        copying.kill()
        copying.wait()
    assert copying.returncode == EXIT_DONE, told
    again = answer(capsys, "log", "copy", source, there)
    assert (again["copied"], again["records"], again["equal"]) == (0, 30_000, True)


def has_some(topics: Topics, place: KafkaPlace) -> bool:
    """Whether anything of a copy that has its topic can be read."""
    with suppress(LogError):
        return topics.reader(place).end_offset() > 0
    return False


def killed_after(pause_s: float, *words: object) -> None:
    """Run a command in a process of its own and kill it."""
    argv = [sys.executable, "-m", "app", *map(str, words)]
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(pause_s)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()


def test_of_two_copies_into_one_topic_the_older_ends(topics: Topics) -> None:
    place = topics.place()
    first = KafkaCopy.open(place)
    first.begin(bytes(range(16)), 0, None)
    first.take([RecordBatch(0, [record(0)])])
    second = KafkaCopy.open(place)
    try:
        with pytest.raises(CopyRefused, match="another copy"):
            first.take([RecordBatch(1, [record(1)])])
        second.take([RecordBatch(1, [record(1)])])
        assert read_all(second.reader(), 0) == [(0, record(0)), (1, record(1))]
    finally:
        first.close()
        second.close()


def test_a_place_that_holds_something_else_is_refused(
    topics: Topics, tmp_path: Path, capsys: Captured
) -> None:
    there = where(topics.place(), tmp_path)
    answer(capsys, "log", "copy", numbered(tmp_path / "one", (0, 5)), there)
    other = numbered(tmp_path / "other", (0, 5))
    for source, target in ((other, there), (there, other)):
        assert command("log", "copy", source, target) == EXIT_USAGE
        assert "name an empty place" in capsys.readouterr().err
    longer = tmp_path / "longer"
    answer(capsys, "log", "copy", there, longer)
    numbered(longer, (5, 3))
    assert command("log", "copy", there, longer) == EXIT_USAGE
    assert "has a record at offset 7 that the source has not" in capsys.readouterr().err
    numbered(tmp_path / "one", (5, 4))
    done = answer(capsys, "log", "copy", tmp_path / "one", there)
    assert (done["copied"], done["equal"]) == (4, True)
    topics.create("foreign", max_message_bytes="9000000")
    topics.produce("foreign", b"a line of somebody's log")
    assert command("log", "copy", other, where(topics.place("foreign"), tmp_path)) == 1
    assert "its record 0 is none of a log" in capsys.readouterr().err


def test_a_source_that_was_cut_or_let_go_of_is_told(topics: Topics, tmp_path: Path) -> None:
    place = topics.place()
    whole = SegmentReader.open(numbered(tmp_path / "whole", (0, 100)))
    copied_all(whole, place)
    other = SegmentReader.open(numbered(tmp_path / "cut", (0, 99), (99, 1), blob=1))
    later = SegmentReader.open(numbered(tmp_path / "later", (500, 10)))
    copy = topics.reader(place)
    with pytest.raises(CopyRefused, match="record at offset 99 is another one"):
        place_to_go_on(other, copy)
    assert place_to_go_on(whole, copy) == 100
    for reader in (whole, other, later):
        reader.close()
