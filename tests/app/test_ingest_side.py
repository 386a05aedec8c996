"""Discovery and subscriptions of one owner: started with what the fold holds, driven by the fold."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.ingest_side import (
    RAW_APPENDED_BYTES_MAX,
    RAW_APPENDED_COST,
    RAW_PENDING_BYTES_MAX,
    RAW_PENDING_MAX,
    IngestSide,
)
from app.observe import Observer
from ingest.discovery.settings import DiscoverySettings, FileStore, SourceKind
from ingest.log.appends import Importance
from ingest.log.log_writer import LogWriter
from ingest.log.raw_frames import FrameKeeper, KeptFrames, RawFrames, RawSettings
from ingest.subscriptions.connectors import SubscriptionSettings
from ingest.wire.engine_events import EngineSource
from projections.events.codec import decode_record
from projections.events.control import FoldModeAdopted
from projections.events.discovery import KeyDeleted, KeyPut, PassBegan
from projections.events.ports import MemoryLog
from projections.events.signals import (
    Family,
    FrameRefused,
    KvBatchReceived,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
)
from projections.fold import Fold
from projections.fold_modes import KV_INDEX
from projections.identity import PublisherKey
from replay.engine import records_of
from tests.app.main_site import Site, until

LOG_ID = bytes(16)


class Owner:
    """A claimed log in memory, a fold that a test lets read, and an ingest side."""

    def __init__(self, writer: LogWriter, log: MemoryLog, root: Path, raw: FrameKeeper | None = None) -> None:
        self.writer, self.log, self.fold = writer, log, Fold()
        self.settings = DiscoverySettings(
            SourceKind.FILE, ("dynamo",), file=FileStore(str(root), 20_000, 3_600_000_000), enabled=True
        )
        self.side = IngestSide(writer, Observer(), self.settings, SubscriptionSettings(), raw)

    @classmethod
    async def of(cls, root: Path, raw: FrameKeeper | None = None) -> Owner:
        log = MemoryLog()
        owner = cls(await LogWriter.open(log), log, root, raw)
        owner.read()
        return owner

    def read(self) -> None:
        for offset, data in records_of(self.log, self.fold.mark.offset + 1):
            self.fold.apply(offset, data, [])
        self.side.follow(self.fold)

    def facts(self, kind: type) -> list[object]:
        decoded = [decode_record(offset, data).fact for offset, data in records_of(self.log, 0)]
        return [fact for fact in decoded if isinstance(fact, kind)]

    async def close(self) -> None:
        await self.side.stop()
        await self.writer.close()


def keys_of(owner: Owner, family: Family) -> list[PublisherKey]:
    return [row.key for row in owner.side.subscription_rows() if row.family is family]


@pytest.mark.req("LOAD-04")
async def test_what_is_dialled_is_what_the_fold_says(tmp_path: Path) -> None:
    site = Site(tmp_path)
    owner = await Owner.of(site.store)
    owner.side.start(owner.fold)
    assert owner.side.is_running
    await until(lambda: owner.side.is_connected, "the pass stands")
    await owner.writer.flush()
    assert owner.facts(KeyPut)
    assert owner.side.subscription_rows() == [], "nothing was folded yet"
    owner.read()
    rows = owner.side.subscription_rows()
    assert len(rows) == 4
    await owner.writer.flush()
    assert owner.facts(SubscriptionChanged)
    await owner.close()


async def test_a_second_start_logs_only_what_differs(tmp_path: Path) -> None:
    site = Site(tmp_path)
    owner = await Owner.of(site.store)
    owner.side.start(owner.fold)
    await until(lambda: owner.side.is_connected, "the pass stands")
    await owner.side.stop()
    await owner.writer.flush()
    owner.read()
    keys = len(owner.facts(KeyPut))
    again = IngestSide(owner.writer, Observer(), owner.settings, SubscriptionSettings(), None)
    again.start(owner.fold)
    await until(lambda: again.is_connected, "the second pass stands")
    await again.stop()
    await owner.writer.flush()
    assert len(owner.facts(KeyPut)) == keys
    assert [fact.pass_number for fact in owner.facts(PassBegan)] == [1, 2]  # type: ignore[attr-defined]
    await owner.writer.close()


@pytest.mark.req("LOAD-18")
async def test_raw_frames_are_kept_under_the_offset_of_their_sample(tmp_path: Path) -> None:
    raw = RawFrames(tmp_path / "data", LOG_ID, RawSettings())
    owner = await Owner.of(tmp_path, raw)
    digest = owner.side._keep_raw((b"topic", b"frame"))
    sample = SampleReceived("dynamo", 1, 1, 1, 1, 7, 0, 5, None, None, 0, digest)
    owner.side._append(sample)
    await owner.writer.flush()
    offset = next(o for o, data in records_of(owner.log, 0) if decode_record(o, data).fact == sample)
    await asyncio.sleep(0)
    await owner.close()
    raw.close()
    kept = KeptFrames(tmp_path / "data", LOG_ID).get(offset, digest or 0)
    assert isinstance(kept, bytes)
    assert b"topic" in kept and b"frame" in kept


async def test_raw_frames_whose_sample_never_comes_are_bounded(tmp_path: Path) -> None:
    owner = await Owner.of(tmp_path, RawFrames(tmp_path / "data", LOG_ID, RawSettings()))
    for number in range(RAW_PENDING_MAX + 50):
        owner.side._keep_raw((b"topic", number.to_bytes(8, "big")))
    assert len(owner.side._raw_pending) == RAW_PENDING_MAX
    for number in range(100):
        owner.side._keep_raw((b"topic", number.to_bytes(8, "big"), bytes(1_000_000)))
    held = sum(map(len, owner.side._raw_pending.values()))
    assert held == owner.side._raw_pending_bytes <= RAW_PENDING_BYTES_MAX
    await owner.close()


class CountingFrames:
    """A FrameKeeper that only counts."""

    def __init__(self) -> None:
        self.kept = self.dropped = 0

    def put(self, offset: int, frame: bytes, at_us: int) -> None:
        self.kept += 1

    def drop(self) -> None:
        self.dropped += 1

    def close(self) -> None:
        pass


@pytest.mark.req("EVS-02")
async def test_raw_frames_are_dropped_and_counted_where_their_facts_wait_long(tmp_path: Path) -> None:
    raw = CountingFrames()
    owner = await Owner.of(tmp_path, raw)
    frame = bytes(1_000_000)
    fitting = RAW_APPENDED_BYTES_MAX // (len(frame) + RAW_APPENDED_COST)
    for number in range(fitting + 20):  # no commit comes between
        digest = owner.side._keep_raw((b"kv-events", number.to_bytes(8, "big") + frame[:-40]))
        owner.side._append(KvBatchReceived("dynamo", 1, 1, number, number, b"", b"", 0, digest))
    assert raw.dropped >= 20
    await owner.writer.flush()
    await asyncio.sleep(0)
    assert raw.kept + raw.dropped == fitting + 20
    assert owner.side._raw_appended_bytes == 0
    assert len(owner.facts(KvBatchReceived)) == fitting + 20, "no fact is lost with its frame"
    await owner.close()


@pytest.mark.req("KVX-02")
async def test_frames_of_block_events_are_kept_under_the_offset_of_their_batch(tmp_path: Path) -> None:
    raw = RawFrames(tmp_path / "data", LOG_ID, RawSettings())
    owner = await Owner.of(tmp_path, raw)
    digest = owner.side._keep_raw((b"kv-events", b"frame"))
    owner.side._keep_raw((b"kv-events", b"frame"))  # the same ones twice
    batch = KvBatchReceived("dynamo", 1, 1, 1, 1, b"", b"", 0, digest)
    owner.side._append(batch)
    owner.side._append(batch._replace(sequence=2, raw_digest=None))
    await owner.writer.flush()
    offset = next(o for o, data in records_of(owner.log, 0) if decode_record(o, data).fact == batch)
    await asyncio.sleep(0)
    await owner.close()
    raw.close()
    assert owner.side._raw_pending_bytes == 0
    assert isinstance(KeptFrames(tmp_path / "data", LOG_ID).get(offset, digest or 0), bytes)


@pytest.mark.req("KVX-20")
async def test_block_events_are_subscribed_while_the_fold_indexes_them(tmp_path: Path) -> None:
    site = Site(tmp_path)
    owner = await Owner.of(site.store)
    owner.side.start(owner.fold)
    await until(lambda: owner.side.is_connected, "the pass stands")
    await owner.writer.flush()
    owner.read()
    load = keys_of(owner, Family.LOAD)
    assert (len(load), keys_of(owner, Family.KV)) == (4, [])
    owner.writer.append(FoldModeAdopted((KV_INDEX,)))
    await owner.writer.flush()
    owner.read()
    assert keys_of(owner, Family.LOAD) == load
    assert len(keys_of(owner, Family.KV)) == 2
    owner.writer.append(FoldModeAdopted(()))
    await owner.writer.flush()
    owner.read()
    assert (keys_of(owner, Family.LOAD), keys_of(owner, Family.KV)) == (load, [])
    await owner.writer.flush()
    changes = [fact for fact in owner.facts(SubscriptionChanged) if isinstance(fact, SubscriptionChanged)]
    ended = [fact for fact in changes if fact.state == SubscriptionState.ENDED]
    assert [fact.family for fact in ended] == [Family.KV] * 2
    started = [
        fact.publisher_id for fact in changes if (fact.family, fact.reason) == (Family.LOAD, "started")
    ]
    assert len(started) == 4, "those to load go on"
    await owner.close()


@pytest.mark.req("REL-03")
async def test_other_engines_restart_no_subscription_to_load(tmp_path: Path) -> None:
    site = Site(tmp_path)
    owner = await Owner.of(site.store)
    owner.side.start(owner.fold)
    await until(lambda: owner.side.is_connected, "the pass stands")
    owner.writer.append(FoldModeAdopted((KV_INDEX,)))
    await owner.writer.flush()
    owner.read()
    load, events = keys_of(owner, Family.LOAD), keys_of(owner, Family.KV)
    source = EngineSource("tcp://127.0.0.1:1", "dynamo", 42, 16)
    owner.side.reconfigure(owner.settings, SubscriptionSettings(engine_sources=(source,)))
    assert keys_of(owner, Family.LOAD) == load
    assert len(keys_of(owner, Family.KV)) == len(events) + 1
    await owner.writer.flush()
    changes = [fact for fact in owner.facts(SubscriptionChanged) if isinstance(fact, SubscriptionChanged)]
    assert "settings_changed" not in {fact.reason for fact in changes}
    await owner.close()


async def test_engines_find_their_workers_among_those_that_the_fold_holds_while_it_indexes_blocks(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path)
    first, second = site.workers("prefill")
    site.remove(second)
    owner = await Owner.of(site.store)
    source = EngineSource("tcp://127.0.0.1:1", "dynamo", None, 16, component="prefill")
    owner.side.reconfigure(owner.settings, SubscriptionSettings(engine_sources=(source,)))

    def worker() -> tuple[str, int | None]:
        (row,) = owner.side.engine_rows()
        return row.binding.value, row.worker.instance_id if row.worker is not None else None

    def found() -> tuple[str, int | None]:
        owner.side.tick(owner.fold)
        return worker()

    owner.side.start(owner.fold)
    await until(lambda: owner.side.is_connected, "the pass stands")
    await owner.writer.flush()
    owner.read()
    owner.side.tick(owner.fold)
    assert worker() == ("no_worker", None), "nobody would use it"
    owner.writer.append(FoldModeAdopted((KV_INDEX,)))
    await owner.writer.flush()
    owner.read()
    await until(lambda: found() == ("bound", first), "found")
    site.remove(first)
    for file in site.files_of(second):
        site.put(file, site.files[file])
    await until(lambda: len(owner.facts(KeyDeleted)) and len(keys_put(owner, second)), "both are in the log")
    await owner.writer.flush()
    owner.read()
    await until(lambda: found() == ("bound", second), "found")
    await owner.close()


def keys_put(owner: Owner, worker: int) -> list[object]:
    name = f"/generate/{worker:x}"
    return [fact for fact in owner.facts(KeyPut) if isinstance(fact, KeyPut) and fact.key.endswith(name)]


async def test_block_events_give_way_to_control_records_and_not_to_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await Owner.of(tmp_path)
    given: list[Importance] = []
    monkeypatch.setattr(
        owner.writer, "append", lambda fact, importance, on_done=None, heard_at=None: given.append(importance)
    )
    for fact in (
        SampleReceived("dynamo", 1, 1, 1, 1, 7, 0, 5, None, None, 0),
        FrameRefused(2, "dynamo", 1, 1, 3, 1),
        KvBatchReceived("dynamo", 1, 1, 1, 1, b"", b"", 0),
        SubscriptionChanged(2, "dynamo", 1, "backend", 3, 1, 1, "connected"),
    ):
        owner.side._append(fact)
    assert given == [Importance.SAMPLE, Importance.SAMPLE, Importance.KV, Importance.CONTROL]
    monkeypatch.undo()
    await owner.close()


async def test_a_fault_of_discovery_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await Owner.of(tmp_path)

    async def raising(_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("ingest.discovery.runner.DiscoveryRunner.run", raising)
    owner.side.start(owner.fold)
    (task,) = owner.side._tasks
    await asyncio.wait({task})
    assert task.exception() is None
    assert not owner.side.is_connected
    await owner.close()


@pytest.mark.req("EVS-16")
async def test_a_standby_says_nothing_and_tells_what_it_heard_when_it_takes_over(tmp_path: Path) -> None:
    site = Site(tmp_path)
    owner = await Owner.of(site.store)
    owner.side.start(owner.fold)
    await until(lambda: owner.side.is_connected, "the pass stands")
    await owner.writer.flush()
    owner.read()
    standby = IngestSide(owner.writer, Observer(), owner.settings, SubscriptionSettings(), None)
    standby.stand_by(owner.fold)
    assert len(standby.subscription_rows()) == 4
    assert not standby.is_running
    key = standby.subscription_rows()[0].key
    sample = SampleReceived(*key, 1, 5, 5, 7, 0, 5, None, None, 0)
    standby._append(SubscriptionChanged(int(Family.LOAD), *key, "", 3, 1, 1, "connected"))
    standby._append(sample)
    standby.tick(owner.fold)
    await owner.writer.flush()
    assert sample not in owner.facts(SampleReceived)
    assert standby.held is not None
    assert len(standby.held) >= 6, "four began to connect"
    await owner.side.stop()
    keys = len(owner.facts(KeyPut))
    standby.take_over(owner.fold)
    standby.start(owner.fold)
    await until(lambda: standby.is_connected, "its pass stands")
    await owner.writer.flush()
    changes = [fact for fact in owner.facts(SubscriptionChanged) if isinstance(fact, SubscriptionChanged)]
    assert {fact.publisher_id for fact in changes} == {
        row.key.publisher_id for row in standby.subscription_rows()
    }
    assert len(owner.facts(KeyPut)) == keys, "differences alone"
    standby.say_again()
    await owner.writer.flush()
    assert len(owner.facts(SubscriptionChanged)) >= len(changes) + 4
    await standby.stop()
    await owner.close()


async def test_engines_look_for_their_workers_for_a_tenth_of_the_time_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await Owner.of(tmp_path)
    source = EngineSource("tcp://127.0.0.1:1", "dynamo", None, 16)
    owner.side.reconfigure(owner.settings, SubscriptionSettings(engine_sources=(source,)))
    now, walks = [0], []

    def walk(registry: object) -> tuple[()]:
        walks.append(now[0])
        now[0] += 100
        return ()

    monkeypatch.setattr("app.ingest_side.monotonic_us", lambda: now[0])
    monkeypatch.setattr(owner.side._places, "of", walk)
    while now[0] < 3_000:
        owner.side._placed = None  # keys have changed
        owner.side._place(owner.fold)
        now[0] += 1
    assert walks == [0, 1_000, 2_000]
    await owner.close()
