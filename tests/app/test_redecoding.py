"""Samples decoded anew from their raw frames: the same where nothing changed, else in their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.capture_cli import capture_app
from app.cli_errors import EXIT_DONE, EXIT_UNREACHABLE, EXIT_USAGE
from app.log_places import open_log
from app.redecoding import CheckpointsBefore, RedecodedLog, decoded_anew
from app.replay_cli import replay_app
from ingest.log.raw_frames import KeptFrames, RawFrames, RawSettings, raw_digest, raw_folder
from ingest.wire.publisher_frames import Sample, encode_sample_message
from ingest.wire.router_events import KvFrame, decode_kv_message
from ingest.wire.zmtp_frames import encode_message
from projections.bounds import SECOND_US
from projections.events.codec import decode_record
from projections.events.ports import CheckpointInfo
from projections.events.signals import Family, FrameRefused, KvBatchReceived, SampleReceived
from projections.notices import FrameResult
from replay.log_walk import records_of
from tests.app.log_on_disk import written
from tests.ingest.wire.kv_messages import AT_MS, event, message, removed, stored, told
from tests.replay.recorded_log import RecordedLog

PUBLISHER = 9
READ_WRONG = 3  # the decoder of then took this worker's blocks for a thousand times fewer


def frame_of(worker: int, sequence: int, used_blocks: int) -> bytes:
    sample = Sample(sequence, 0, worker, 0, None, None, used_blocks)
    return encode_message(encode_sample_message(PUBLISHER, sample))


def received(worker: int, sequence: int, used_blocks: int, digest: int | None = None) -> SampleReceived:
    return SampleReceived(
        "dynamo", PUBLISHER, 1, sequence, sequence, worker, 0, None, None, used_blocks, 0, digest
    )


class Site:
    """A data directory whose samples of worker 2 were read wrong, all of them with their frames."""

    def __init__(self, data: Path, *, refused: bool = False) -> None:
        self.data = data
        world = RecordedLog()
        replica = world.replica()
        frames: dict[int, bytes] = {}
        sequence = 0
        for number in range(10):
            world.pass_time(SECOND_US // 10)
            for worker, used in ((1, 500), (2, 900), (3, 800)):
                sequence += 1
                frame = frame_of(worker, sequence, used)
                if refused and worker == 2:
                    frame = frame[:-1]
                recorded = used // 1000 if worker == 2 else used
                said = received(worker, sequence, recorded, raw_digest(frame))
                frames[world.say(said)] = frame
            replica.read()
            replica.end(replica.ask(f"r{number}", tokens=16))
        self.world = world
        written(world, data)
        raw = RawFrames(data, self.log_id, RawSettings())
        for offset, frame in frames.items():
            raw.put(offset, frame, 0)
        raw.close()

    @property
    def log_id(self) -> bytes:
        with open_log(self.data) as opened:
            return opened.reader.log_id


def whatif(*arguments: str | Path) -> Result:
    return CliRunner().invoke(replay_app, ["whatif", *(str(word) for word in arguments)])


@pytest.mark.req("EVS-08")
def test_picks_move_where_the_decoder_of_then_was_wrong(tmp_path: Path) -> None:
    site = Site(tmp_path / "data")
    result = whatif("--redecode", "--log", site.data, "--json")
    assert result.exit_code == EXIT_DONE, result.stderr
    document = json.loads(result.stdout)
    assert document["redecoded"] == {"same": 20, "changed": 10, "refused": 0, "not_kept": 0, "damaged": 0}
    assert (document["picks"], document["moved"]) == (10, 10)
    assert {row["worker"]: row["after"] for row in document["by_worker"] if row["after"]} == {"1": 10}
    assert "Only frames that became samples or block events are kept" in document["limits"][-1]
    shown = whatif("--redecode", "--log", site.data)
    assert "30 frames decoded anew: 10 say something else, 0 are refused now; 0 samples" in " ".join(
        shown.stdout.split()
    )


def test_a_frame_that_is_refused_now_takes_its_sample_with_it(tmp_path: Path) -> None:
    site = Site(tmp_path / "data", refused=True)
    document = json.loads(whatif("--redecode", "--log", site.data, "--json").stdout)
    assert document["redecoded"] == {"same": 20, "changed": 0, "refused": 10, "not_kept": 0, "damaged": 0}


def test_offsets_writers_and_times_stay_and_the_log_is_only_read(tmp_path: Path) -> None:
    site = Site(tmp_path / "data")
    before = {path: path.read_bytes() for path in site.data.rglob("*") if path.is_file()}
    anew = RedecodedLog(site.world.log, KeptFrames(site.data, site.log_id))
    assert (anew.first_offset(), anew.end_offset()) == (0, site.world.log.end_offset())
    changed = 0
    for (offset, data), (_, old) in zip(records_of(anew, 0), records_of(site.world.log, 0), strict=True):
        record, recorded = decode_record(offset, data), decode_record(offset, old)
        assert record[3:7] == recorded[3:7] or record[2] != recorded[2]
        assert (record.time, record.writer, record.sequence) == (
            recorded.time,
            recorded.writer,
            recorded.sequence,
        )
        changed += data != old
    assert changed == anew.counts.changed == 10
    list(records_of(anew, 0))
    assert anew.counts.changed == 10, "read twice, counted once"
    assert before == {path: path.read_bytes() for path in site.data.rglob("*") if path.is_file()}


def test_without_its_frame_a_sample_stays(tmp_path: Path) -> None:
    site = Site(tmp_path / "data")
    anew = RedecodedLog(site.world.log, KeptFrames(tmp_path / "elsewhere", site.log_id))
    assert list(records_of(anew, 0)) == list(records_of(site.world.log, 0))
    assert anew.counts.document() == {"same": 0, "changed": 0, "refused": 0, "not_kept": 30, "damaged": 0}


def test_a_damaged_frame_is_told_apart_from_one_that_is_gone(tmp_path: Path) -> None:
    site = Site(tmp_path / "data")
    (path,) = raw_folder(site.data).iterdir()
    data = bytearray(path.read_bytes())
    data[24 + 28 + 5] ^= 1  # inside the first frame
    path.write_bytes(data[:-1])
    anew = RedecodedLog(site.world.log, KeptFrames(site.data, site.log_id))
    list(records_of(anew, 0))
    assert anew.counts.document() == {"same": 18, "changed": 10, "refused": 0, "not_kept": 0, "damaged": 2}


@pytest.mark.req("EVS-08")
def test_block_events_are_decoded_anew_where_their_frame_is_kept() -> None:
    frames = message([event(1, stored((5, 6), parent=7)), 5], 3, PUBLISHER)
    read = decode_kv_message(frames, PUBLISHER)
    assert isinstance(read, KvFrame)
    wrong = KvBatchReceived("dynamo", PUBLISHER, 1, 2, 3, b"", b"", 0, 99)
    found = decoded_anew(wrong, encode_message(frames))
    assert found == wrong._replace(heads=read.heads, hashes=read.hashes, published_at_ms=AT_MS)
    refused = decoded_anew(wrong, encode_message(message(b"\xc1", 3, PUBLISHER)))
    assert refused == FrameRefused(int(Family.KV), "dynamo", PUBLISHER, 1, int(FrameResult.MALFORMED), 1)
    assert decoded_anew(wrong, b"\x00") == refused


def test_batches_in_a_log_are_found_and_those_without_frames_stay(tmp_path: Path) -> None:
    world = RecordedLog()
    frame = encode_message(message([event(1, removed(7))], 3, PUBLISHER))
    said = KvBatchReceived("dynamo", PUBLISHER, 1, 3, 3, b"", b"", AT_MS, raw_digest(frame))
    offset = world.say(said)
    withheld = world.say(said._replace(sequence=4, covers_from=4, raw_digest=None))
    written(world, tmp_path)
    with open_log(tmp_path) as opened:
        log_id = opened.reader.log_id
    raw = RawFrames(tmp_path, log_id, RawSettings())
    raw.put(offset, frame, 0)
    raw.close()
    anew = RedecodedLog(world.log, KeptFrames(tmp_path, log_id))
    facts = {at: decode_record(at, data).fact for at, data in records_of(anew, 0)}
    found = facts[offset]
    assert isinstance(found, KvBatchReceived)
    assert told(found.heads, found.hashes)[0].engines == (7,)
    assert facts[withheld] == said._replace(sequence=4, covers_from=4, raw_digest=None)
    assert anew.counts.document() == {"same": 0, "changed": 1, "refused": 0, "not_kept": 1, "damaged": 0}


@pytest.mark.parametrize("frame", [b"", b"\x01", b"\x00\x05abc", b"\x01\x01a\x01\x01b\x01\x01c", bytes(400)])
def test_bytes_that_are_no_message_are_a_refusal(frame: bytes) -> None:
    found = decoded_anew(received(1, 5, 9), frame)
    assert isinstance(found, FrameRefused) and found.result == FrameResult.MALFORMED


def test_another_publishers_frame_is_a_refusal() -> None:
    found = decoded_anew(received(1, 5, 9)._replace(publisher_id=8), frame_of(1, 5, 9))
    assert isinstance(found, FrameRefused) and found.result == FrameResult.IDENTITY_MISMATCH


def test_only_states_before_the_first_frame_are_begun_from() -> None:
    class Kept:
        def list(self) -> list[CheckpointInfo]:
            return [CheckpointInfo(offset, 0, 0, 0, str(offset)) for offset in (3, 8, 9)]

    held = CheckpointsBefore(Kept(), 8)  # type: ignore[arg-type]
    assert [info.offset for info in held.list()] == [3]
    with pytest.raises(OSError, match="keeps no checkpoints"):
        held.write(bytes(16), 9, 0, 0, iter(()))


def test_a_log_without_frames_and_a_capture_are_told_in_one_line(tmp_path: Path) -> None:
    data = written(Site(tmp_path / "data").world, tmp_path / "bare")
    result = whatif("--redecode", "--log", data)
    assert result.exit_code == EXIT_UNREACHABLE and result.stderr.count("\n") == 1
    assert "keeps no raw frames that can be read" in result.stderr and "log.raw.age" in result.stderr
    capture = tmp_path / "a.capture"
    said = CliRunner().invoke(capture_app, ["export", "--log", str(data), "--out", str(capture)])
    assert said.exit_code == EXIT_DONE, said.output
    result = whatif("--redecode", "--log", capture)
    assert result.exit_code == EXIT_USAGE and "holds no raw frames" in result.stderr
