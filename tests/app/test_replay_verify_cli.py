"""`picklog replay verify`: counts, the first difference with both tables, and what speaks against a log."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli_errors import EXIT_DONE, EXIT_FOUND_WRONG, EXIT_UNREACHABLE, EXIT_USAGE
from app.replay_cli import replay_app
from app.second_look import HELD_TICKS
from app.version import VERSION
from ingest.log.segment_log import SegmentLog
from projections.events.codec import decode_record, encode_record
from projections.events.control import ClockTicked, FoldModeAdopted, Pinged
from projections.events.picks import PickMade
from projections.events.ports import MemoryLog
from replay.log_walk import records_of
from tests.app.log_on_disk import SETTINGS, some_picks, written
from tests.replay.recorded_log import RecordedLog
from tests.replay.test_fold_cursor import sample_offset, ticking


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(replay_app, [str(word) for word in arguments])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(some_picks(), tmp_path / "data")


def altered(world: RecordedLog) -> RecordedLog:
    """The same log with one more pick whose record claims another winner than the picker finds."""
    replica = world.replica()
    fact = replica.choose("forged", tokens=64)
    chosen = fact.outcome.decode.chosen
    assert chosen is not None
    decode = fact.outcome.decode._replace(chosen=chosen._replace(instance_id=2))
    forged: PickMade = fact._replace(outcome=fact.outcome._replace(decode=decode))
    world.say(forged, replica.id)
    return world


@pytest.mark.req("EVS-06")
def test_verify_of_an_honest_log_counts_its_picks_and_ends_with_0(data: Path) -> None:
    result = run("verify", "--log", data)
    assert result.exit_code == EXIT_DONE
    assert "2 picks: 2 equal, 0 different, 0 unverifiable" in result.stdout
    assert f"of {data}" in result.stdout


def test_verify_as_json_is_one_document(data: Path) -> None:
    result = run("verify", "--log", data, "--json")
    document = json.loads(result.stdout)
    assert (document["picks"], document["equal"], document["different"]) == (2, 2, 0)
    assert document["first_difference"] is None
    assert {"unverifiable", "seconds", "records_per_second"} <= document.keys()


def test_verify_names_the_first_difference_and_ends_with_1(tmp_path: Path) -> None:
    data = written(altered(some_picks()), tmp_path / "data")
    result = run("verify", "--log", data)
    assert result.exit_code == EXIT_FOUND_WRONG
    assert "3 picks: 2 equal, 1 different, 0 unverifiable" in result.stdout
    assert "instance_id: recorded 2, repeated " in result.stdout
    offset = json.loads(run("verify", "--log", data, "--json").stdout)["first_difference"]["log_offset"]
    assert f"repeat: picklog replay explain {offset} --log {data}" in result.stdout
    assert json.loads(run("explain", str(offset), "--log", data, "--json").stdout)["repeated"] == "different"


def test_verify_over_an_empty_range_warns_and_ends_with_0(data: Path) -> None:
    result = run("verify", "--log", data, "--from", "end")
    assert result.exit_code == EXIT_DONE
    assert "0 picks" in result.stdout
    assert "warning: no picks in this range" in result.stderr


def test_a_corrupt_segment_is_told_after_what_could_be_read(data: Path) -> None:
    [segment] = (data / "log").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    result = run("verify", "--log", data)
    assert result.exit_code == EXIT_FOUND_WRONG
    assert "0 different" in result.stdout
    assert "segment" in result.stderr and result.stderr.splitlines()[-1].startswith("picklog: ")


def test_both_tables_stand_side_by_side_and_in_the_document(tmp_path: Path) -> None:
    data = written(altered(some_picks()), tmp_path / "data")
    text = run("verify", "--log", data).stdout
    assert "decode: recorded | repeated" in text and text.count("dynamo/3") == 2
    assert f"made by release 0, this is {VERSION}" in text
    assert "another code: release 0 made 3 of these picks and 1 of the different ones" in text
    found = json.loads(run("verify", "--log", data, "--json").stdout)
    tables = found["first_difference"]["tables"]["decode"]
    assert [row["worker"] for row in tables["recorded"]] == [row["worker"] for row in tables["repeated"]]
    assert found["versions"] == [{"version": "0", "picks": 3, "different": 1, "this_release": False}]


def stored(log: MemoryLog, data: Path) -> Path:
    store = SegmentLog.open_owner(data, SETTINGS)
    for batch in log.read(0, 1 << 30):
        store.commit(batch.records)
    store.close()
    return data


def rewritten(world: RecordedLog, drop: int | None = None, forge: int | None = None) -> MemoryLog:
    """The log as a hand would leave it that makes check words and chain good again."""
    log = MemoryLog(world.log.log_id)
    for offset, data in records_of(world.log, 0):
        record = decode_record(offset, data)
        if offset == forge:
            fact = record.fact._replace(kv_used_blocks=77)  # type: ignore[attr-defined]
            data = encode_record(record.time, record.writer, record.epoch, record.sequence, fact)
        if offset != drop:
            log.commit([data])
    return log


@pytest.mark.parametrize(("how", "word"), [("drop", "missing: "), ("forge", "tampered: ")])
def test_missing_and_tampered_records_are_told_apart_where_the_chain_was_made_good(
    how: str, word: str, tmp_path: Path
) -> None:
    world = ticking()
    replica = world.replica()
    replica.ask("r0")
    changed = rewritten(world, **{how: sample_offset(world)})
    result = run("verify", "--log", stored(changed, tmp_path / "data"))
    assert [line for line in result.stderr.splitlines() if line.startswith(f"warning: {word}")]


def test_a_missing_pick_is_told_by_the_own_numbers_of_its_replica(tmp_path: Path) -> None:
    world = some_picks(("a", "b", "c"))
    picks = [
        offset
        for offset, data in records_of(world.log, 0)
        if isinstance(decode_record(offset, data).fact, PickMade)
    ]
    result = run("verify", "--log", stored(rewritten(world, drop=picks[1]), tmp_path / "data"))
    assert result.exit_code == EXIT_DONE, "nothing differs"
    assert "numbers 3 to 3 are not in the log" in result.stderr


def test_a_range_that_runs_backwards_is_bad_usage(data: Path) -> None:
    result = run("verify", "--log", data, "--from", "5", "--to", "2")
    assert result.exit_code == EXIT_USAGE and result.stderr.count("\n") == 1


def test_a_log_that_is_not_there_is_unreachable(tmp_path: Path) -> None:
    result = run("verify", "--log", tmp_path / "nowhere")
    assert result.exit_code == EXIT_UNREACHABLE and result.stderr.count("\n") == 1


def test_acknowledged_records_that_are_cut_off_are_told(data: Path) -> None:
    [segment] = (data / "log").glob("*.seg")
    segment.write_bytes(segment.read_bytes()[: -segment.stat().st_size // 3])
    result = run("verify", "--log", data)
    assert "warning: missing: " in result.stderr and "acknowledged records at the end" in result.stderr


def test_a_range_beyond_the_log_is_bad_usage(data: Path) -> None:
    result = run("verify", "--log", data, "--from", "999")
    assert result.exit_code == EXIT_USAGE and "beyond the log" in result.stderr


def told_all(world: RecordedLog) -> RecordedLog:
    """The same log, with the word of each of two replicas that it has read all of it."""
    for number in (101, 102):
        replica = bytes([number]) * 16
        world.say(Pinged(replica, 0, world.log.end_offset() - 1), replica)
    return world


@pytest.mark.req("EVS-06")
def test_a_log_is_verified_for_as_long_as_it_was_asked_for(data: Path) -> None:
    result = run("verify", "--log", data, "--follow", "--from", "begin", "--for", "100ms")
    assert result.exit_code == EXIT_DONE, result.stderr
    assert "2 picks: 2 equal, 0 different, 0 unverifiable" in result.stdout
    quiet = run("verify", "--log", data, "--follow", "--for", "10ms", "--json")
    assert quiet.exit_code == EXIT_DONE
    assert json.loads(quiet.stdout)["picks"] == 0, "it begins at the end"
    assert "warning: no picks in this range" in quiet.stderr


def test_a_difference_is_a_line_at_once_and_the_status_at_the_end(tmp_path: Path) -> None:
    data = written(altered(some_picks()), tmp_path / "data")
    words = ("verify", "--log", data, "--follow", "--from", "begin", "--for", "100ms")
    result = run(*words)
    assert result.exit_code == EXIT_FOUND_WRONG
    first, second = result.stdout.splitlines()[:2]
    assert first.startswith("different: pick ") and "recorded 2, repeated " in first
    assert second == "3 picks: 2 equal, 1 different, 0 unverifiable"
    result = run(*words, "--json")
    assert json.loads(result.stdout)["different"] == 1
    assert result.stderr.splitlines()[0] == first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_the_summary(tmp_path: Path, number: signal.Signals) -> None:
    world = altered(some_picks())
    for _ in range(HELD_TICKS):
        world.say(ClockTicked(0, -1, (), 0, 0))
    data = written(told_all(world), tmp_path / "data")
    words = ["replay", "verify", "--log", str(data), "--follow", "--from", "begin"]
    with subprocess.Popen(
        [sys.executable, "-m", "app", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("different: pick ")
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_FOUND_WRONG, err
    assert out.splitlines()[0] == "3 picks: 2 equal, 1 different, 0 unverifiable"


def test_a_fold_that_stops_is_found_wrong_and_a_log_that_goes_away_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = some_picks()
    world.say(FoldModeAdopted((99_999,)))
    stopped = run("verify", "--log", written(told_all(world), tmp_path / "a"), "--follow", "--from", "begin")
    assert stopped.exit_code == EXIT_FOUND_WRONG
    assert stopped.stderr.splitlines()[-1].startswith("picklog: fold stopped at offset")
    monkeypatch.setattr("app.following.stored_segments", lambda folder: [])
    gone = run("verify", "--log", written(some_picks(), tmp_path / "b"), "--follow")
    assert gone.exit_code == EXIT_UNREACHABLE
    assert "0 picks" in gone.stdout
    assert gone.stderr.splitlines()[-1].startswith(f"picklog: {tmp_path / 'b'}: the log is gone")


@pytest.mark.parametrize(
    "words",
    [
        ("--follow", "--to", "5"),
        ("--follow", "--processes", "2"),
        ("--for", "5s"),
        ("--follow", "--for", "soon"),
        ("--follow", "--from", "999"),
    ],
)
def test_what_does_not_go_with_following_is_bad_usage(data: Path, words: tuple[str, ...]) -> None:
    result = run("verify", "--log", data, *words)
    assert result.exit_code == EXIT_USAGE and result.stderr.count("\n") == 1
