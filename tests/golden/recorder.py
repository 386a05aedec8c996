"""Make a golden log of a recording: its keys and samples as facts, with picks made on the way.

    python -m tests.golden.recorder etcd-watch-1.6.1-agg kv_metrics-1.6.1 FOLDER

What a fleet really wrote goes through the product's own key reader and frame decoder into a
segment log, in the order of receipt and with the recording's times. A replica that reads a
few records late picks after every few samples; its dispatches end well, badly or never.
Golden logs are made once, by the release that they stand for, and kept for ever.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
from blake3 import blake3

from ingest.log.segment_log import SegmentLog
from ingest.wire.fleet_keys import prefix_of, relative_key
from ingest.wire.publisher_frames import Sample, decode_sample_message
from projections.bounds import SECOND_US
from projections.events.codec import encode_record
from projections.events.control import (
    ClockTicked,
    ConfigAdopted,
    LaneOpened,
    PickSettings,
    ReplicaStarted,
)
from projections.events.discovery import KeyDeleted, KeyPut, Keyspace
from projections.events.picks import DispatchEnded, EndStatus, Fault, PickMade, Question
from projections.events.ports import MemoryLog
from projections.events.signals import (
    Family,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from projections.fold import Fold
from projections.view import Overlay
from router.picker.pick import pick

RECORDINGS = Path(__file__).parents[1] / "recordings"
OWNER, REPLICA = bytes([1]) * 16, bytes([2]) * 16
NAMESPACE = "dynamo"
LATE_RECORDS = 5
SAMPLES_A_PICK = 3
START_US = 1_800_000_000_000_000


class Happening(NamedTuple):
    """A recorded key or message, by its time of receipt."""

    t_ns: int
    row: dict[str, Any] | None
    frames: list[bytes] | None


def happenings(watch: str, metrics: str) -> list[Happening]:
    """Both recordings in one order."""
    found = []
    with gzip.open(RECORDINGS / f"{watch}.jsonl.gz") as lines:
        for line in lines:
            row = json.loads(line)
            if "key" in row:
                found.append(Happening(row["t_ns"], row, None))
    with gzip.open(RECORDINGS / f"{metrics}.msgpack.gz") as file:
        for received_ns, _, frames in msgpack.Unpacker(file, raw=True):
            found.append(Happening(received_ns, None, frames))
    return sorted(found, key=lambda one: one.t_ns)


class Recorder:
    """Writes one log. chance: decides how dispatches end; seeded by the recording's name."""

    def __init__(self, log: SegmentLog | MemoryLog, models: tuple[str, ...], name: str) -> None:
        self._log = log
        self._chance = random.Random(name)
        self._models = models
        self._time = START_US
        self._sequences = {OWNER: 0, REPLICA: 0}
        self._fold = Fold()
        self._overlay = Overlay()
        self._own_seq = 0
        self._rotations: dict[str, tuple[int, int]] = {}
        self._open: list[PickMade] = []
        self._last: dict[int, int] = {}
        self._ticked_at = 0
        settings = PickSettings("load_based", "etcd", (NAMESPACE,), (("alias", models[0]),), 3 * SECOND_US)
        self.say(LaneOpened(1, self._time, b"", "new"))
        self.say(ConfigAdopted(1, "start", bytes(16), "{}", settings))
        self.say(ReplicaStarted(REPLICA, "golden", "serve", "0.1.0", "3.11", (), 62, ()), REPLICA)

    def say(self, fact: tuple[Any, ...], writer: bytes = OWNER) -> None:
        """Write one record."""
        self._sequences[writer] += 1
        epoch = 1 if writer == OWNER else 0
        self._log.commit([encode_record(self._time, writer, epoch, self._sequences[writer], fact)])

    def record(self, found: list[Happening]) -> None:
        """Write all of it."""
        start_ns = found[0].t_ns
        samples = 0
        for one in found:
            self._time = START_US + (one.t_ns - start_ns) // 1000
            if self._time - self._ticked_at >= SECOND_US:
                self._ticked_at = self._time
                self.say(ClockTicked(self._time, -1, (), 0, 0))
            if one.row is not None:
                self._key(one.row)
            elif one.frames is not None and self._sample(one.frames):
                samples += 1
                if samples % SAMPLES_A_PICK == 0:
                    self._request(samples)

    def _key(self, row: dict[str, Any]) -> None:
        for keyspace in Keyspace:
            if not row["key"].startswith(prefix_of(keyspace, NAMESPACE)):
                continue
            key = relative_key(keyspace, NAMESPACE, row["key"])
            assert key is not None
            if row["type"] == "delete":
                self.say(KeyDeleted(keyspace, NAMESPACE, key, row["mod_revision"]))
            else:
                value = row["value"].encode()
                digest = blake3(value).digest()
                self.say(KeyPut(keyspace, NAMESPACE, key, row["mod_revision"], value, len(value), digest))

    def _sample(self, frames: list[bytes]) -> bool:
        publisher = int.from_bytes(frames[1], "big")
        sample = decode_sample_message(frames, publisher)
        if not isinstance(sample, Sample):
            return False
        if publisher not in self._last:
            state, by = SubscriptionState.CONNECTED, Transport.DIRECT
            self.say(SubscriptionChanged(Family.LOAD, NAMESPACE, publisher, "", state, 1, by, "connected"))
            self._last[publisher] = sample.sequence - 1
        covers_from = self._last[publisher] + 1
        self._last[publisher] = sample.sequence
        self.say(
            SampleReceived(
                NAMESPACE,
                publisher,
                1,
                covers_from,
                sample.sequence,
                sample.worker_id,
                sample.dp_rank,
                sample.active_decode_blocks,
                sample.active_prefill_tokens,
                sample.kv_used_blocks,
                sample.published_at_ms,
            )
        )
        return True

    def _request(self, number: int) -> None:
        if self._chance.random() < 0.7:
            self._read(self._log.end_offset() - self._chance.randrange(LATE_RECORDS))
        model = self._chance.choice(("alias", *self._models))
        served = self._models[0] if model == "alias" else model
        prefill, decode = self._rotations.get(served, (0, 0))
        tokens = self._chance.choice((1, 15, 16, 17, 200, 3000))
        question = Question(
            f"request-{number}",
            0,
            model,
            served,
            self._time,
            self._time + self._chance.randrange(50_000),
            (NAMESPACE,),
            (),
            tokens,
            prefill,
            decode,
        )
        settings = self._fold.settings_now
        if settings is None:
            return
        outcome = pick(self._fold.view(self._overlay), question, settings.pick)
        self._rotations[served] = (outcome.rotation_prefill, outcome.rotation_decode)
        pick_id = number.to_bytes(16, "big")
        fact = PickMade(
            pick_id, REPLICA, self._own_seq, self._fold.mark.offset, settings.version, question, outcome
        )
        self._own_seq += 1
        self._overlay.add_pick(fact)
        self.say(fact, REPLICA)
        if outcome.decode.chosen is not None:
            self._open.append(fact)
        while self._open and self._chance.random() < 0.6:
            self._end(self._open.pop(self._chance.randrange(len(self._open))))

    def _end(self, fact: PickMade) -> None:
        self._own_seq += 1
        failed = self._chance.random() < 0.1
        status = EndStatus.FAILED if failed else self._chance.choice((EndStatus.OK, EndStatus.CANCELLED))
        fault = Fault.FAULT if failed else Fault.NONE
        end = DispatchEnded(
            fact.pick_id,
            REPLICA,
            self._own_seq,
            self._time,
            status,
            fault,
            503 if failed else 200,
            "shim",
            9,
            99,
        )
        self._overlay.add_end(end)
        self.say(end, REPLICA)

    def _read(self, stop: int) -> None:
        for batch in self._log.read(max(0, self._fold.mark.offset + 1), 1 << 30):
            for index, data in enumerate(batch.records):
                if self._fold.mark.offset < batch.first_offset + index < stop:
                    self._fold.apply(batch.first_offset + index, data, [])
        held = self._fold.state.status.replica(REPLICA)
        if held is not None:
            self._overlay.folded(held.own_seq)


def main() -> None:
    """Write the log of two recordings into a data directory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("watch")
    parser.add_argument("metrics")
    parser.add_argument("folder", type=Path)
    chosen = parser.parse_args()
    log = SegmentLog.open_owner(chosen.folder)
    Recorder(log, ("tiny-chat",), chosen.watch).record(happenings(chosen.watch, chosen.metrics))
    log.close()


if __name__ == "__main__":
    main()
