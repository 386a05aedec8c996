"""The whole main process in one loop: it starts, picks, stops, starts again, and ends where it must."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import threading
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import zmq
import zmq.asyncio
from structlog.testing import capture_logs

from app.log_tail import monotonic_us
from app.tail import PING_AGE_US_MAX
from ingest.log.segment_files import Disk
from ingest.log.segment_log import SegmentLog
from projections.events.control import ConfigAdopted, LaneOpened, RecordCondemned, ReplicaStarted
from projections.events.discovery import KeyPut
from projections.events.picks import DispatchEnded, EndStatus, KvResult, PickMade
from projections.events.signals import KV_EVENT_HEAD, FrameRefused, KvBatchReceived
from projections.fold import Fold
from projections.kv.block_hash import block_hashes, seed_of
from projections.notices import FrameResult
from replay.engine import records_of
from router.question import PromptFacts
from tests.app.main_site import MODEL, Run, Site, site_in, until
from tests.ingest.wire.engine_batches import batch, encodings, engine_message, stored_items


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site_in(tmp_path) as site:
        yield site


class Sick(Disk):
    """A disk whose syncs may fail or wait."""

    def __init__(self) -> None:
        self.fails = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def sync(self, fd: int) -> None:
        if not self.goes_on.wait(60):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)


@pytest.mark.req("EVS-11", "SHIM-06")
async def test_it_starts_picks_and_stops(site: Site) -> None:
    async with site.running() as run:
        assert (await run.get("/v1/models"))[1]["data"][0]["id"] == MODEL
        status, body = await run.chat("the-chat")
        assert status == 200
        assert json.loads(body)["choices"]
        assert (await run.get("/ready"))[1] == {"ready": True, "missing": [], "degraded": []}
        assert await run.end() == 0
    (pick,) = site.facts(PickMade)
    assert pick.question.request_id == "the-chat"
    assert not pick.suspect
    (end,) = site.facts(DispatchEnded)
    assert end.pick_id == pick.pick_id
    (sent,) = site.frontend.requests
    chosen = pick.outcome.decode.chosen
    assert chosen is not None
    assert sent.header("x-dynamo-worker-instance-id") == str(chosen.instance_id)
    report = site.verified()
    assert (report.picks, report.equal) == (1, 1)


@pytest.mark.req("EVS-13")
async def test_the_next_process_goes_on_where_this_one_ended(site: Site) -> None:
    async with site.running() as run:
        await run.chat()
        offset = run.write_checkpoint()
        fleet = dict(run.process.folding.tail.fold.state.registry.fleet.workers)
    async with site.running() as run:
        start = run.process.folding.start
        assert start.checkpoint is not None
        assert (start.checkpoint.offset, start.next_offset) == (offset, offset + 1)
        assert dict(run.process.folding.tail.fold.state.registry.fleet.workers) == fleet
        await run.chat()
    opened = site.facts(LaneOpened)
    assert [fact.epoch for fact in opened] == [1, 2]
    assert len({fact.replica for fact in site.facts(ReplicaStarted)}) == 2
    assert [fact.version for fact in site.facts(ConfigAdopted)] == [1], "the same settings stay in force"
    assert len(site.facts(KeyPut)) == len({(fact.keyspace, fact.key) for fact in site.facts(KeyPut)})
    assert site.verified().equal == 2


async def test_a_start_with_other_settings_adopts_them(site: Site) -> None:
    async with site.running():
        pass
    site.config["dynamo"]["load"]["max_staleness"] = "1s"
    site.write(site.config)
    async with site.running() as run:
        await until(lambda: run.process.reloading.version == 2, "adopted")
        await run.chat()
    adopted = site.facts(ConfigAdopted)
    assert [(fact.version, fact.proposed_by) for fact in adopted] == [(1, "start"), (2, "start")]
    assert site.facts(PickMade)[-1].config_version == 2


@pytest.mark.field("B-004")
async def test_a_departed_worker_gets_no_more_picks(site: Site) -> None:
    gone = site.workers("decode")[0]
    async with site.running() as run:
        site.remove(gone)
        await until(lambda: len(run.process.folding.tail.fold.state.registry.fleet.workers) == 3, "it leaves")
        for _ in range(4):
            assert (await run.chat())[0] == 200
    chosen = {pick.outcome.decode.chosen.instance_id for pick in site.facts(PickMade)}
    assert gone not in chosen


@pytest.mark.req("DYN-27")
async def test_a_stream_ends_as_usual_though_its_worker_left_and_no_more_picks_go_there(site: Site) -> None:
    site.frontend.events, site.frontend.event_delay_s = 500, 0.05
    async with site.running() as run:
        stream = asyncio.create_task(run.chat("stream", stream=True))
        await until(lambda: site.frontend.chats, "it is under way")
        await run.flushed()
        (pick,) = site.facts(PickMade)
        leaving = pick.outcome.decode.chosen.instance_id
        site.remove(leaving)
        await until(lambda: len(run.process.folding.tail.fold.state.registry.fleet.workers) == 3, "it leaves")
        for number in range(4):
            assert (await run.chat(f"later-{number}"))[0] == 200
        assert not stream.done() and not site.facts(DispatchEnded)[4:]
        site.frontend.event_delay_s = 0.0
        status, body = await stream
        assert status == 200 and body.count(b"data: ") > 500 and body.rstrip().endswith(b"data: [DONE]")
    ends = {end.pick_id: end.status for end in site.facts(DispatchEnded)}
    assert ends[pick.pick_id] == EndStatus.OK and len(ends) == 5
    later = {one.outcome.decode.chosen.instance_id for one in site.facts(PickMade)[1:]}
    assert leaving not in later and len(later) == 1


async def test_a_condemned_record_starts_the_fold_anew_while_picks_go_on(site: Site) -> None:
    async with site.running() as run:
        process = run.process
        await run.chat("before")
        (record,) = [one for one in site.records() if isinstance(one.fact, PickMade)]
        before = process.folding.tail
        process.own.of_owner(RecordCondemned(record.offset, "as another process says"))
        await until(lambda: process.folding.tail is not before, "a new fold stands")
        await run.flushed()
        assert record.offset in process.folding.tail.fold.state.intake.condemned
        assert (await run.chat("after"))[0] == 200
        await run.is_ready()
        assert (await run.metrics())['picklog_fold_restarts_total{reason="condemned"}'] == 1
        assert process.owning is not None and process.owning.ingest is not None
    picks = {pick.question.request_id: pick.suspect for pick in site.facts(PickMade)}
    assert picks == {"before": False, "after": False}
    assert site.verified().different == 0


async def test_picks_of_a_fold_that_has_stopped_are_suspect(site: Site) -> None:
    async with site.running() as run:
        folding = run.process.folding
        hold = asyncio.Event()
        step = folding._shell.step

        def held_back() -> bool:
            return step() if hold.is_set() or folding.newest is folding.tail else False

        before = folding.tail
        await run.chat("before")
        (record,) = [one for one in site.records() if isinstance(one.fact, PickMade)]
        folding._shell.step = held_back  # type: ignore[method-assign]
        shell_of = folding._shell_of

        def slow_shell(tail: object, news_from: int) -> object:
            shell = shell_of(tail, news_from)  # type: ignore[arg-type]
            nonlocal step
            step = shell.step
            shell.step = held_back  # type: ignore[method-assign]
            return shell

        folding._shell_of = slow_shell  # type: ignore[method-assign,assignment]
        run.process.own.of_owner(RecordCondemned(record.offset, "as another process says"))
        await until(lambda: folding.newest is not before, "the fold is given up")
        status, document = await run.get("/ready")
        assert (status, document["missing"][0]) == (503, "caught_up")
        assert (await run.chat("meanwhile"))[0] == 200, "the fold that stands still knows the fleet"
        hold.set()
        await until(lambda: folding.tail is not before, "the new fold stands")
        assert (await run.chat("after"))[0] == 200
    picks = {pick.question.request_id: pick.suspect for pick in site.facts(PickMade)}
    assert picks == {"before": False, "meanwhile": True, "after": False}
    report = site.verified()
    assert (report.different, report.unverifiable) == (0, 1)


async def test_what_the_fold_stopped_at_before_the_claim_is_condemned_behind_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.running() as run:
        await run.chat()
    bad = next(one.offset for one in site.records() if isinstance(one.fact, PickMade))
    apply_pick = Fold._pick

    def raising(self: Fold, record: object, notices: object) -> object:
        if record.offset == bad:  # type: ignore[attr-defined]
            raise KeyError("a fault of ours")
        return apply_pick(self, record, notices)  # type: ignore[arg-type]

    monkeypatch.setattr(Fold, "_pick", raising)
    async with site.running() as run:
        assert (await run.chat())[0] == 200
    assert [fact.offset for fact in site.facts(RecordCondemned)] == [bad]


async def test_a_failed_sync_seals_the_log_and_ends_the_process(site: Site) -> None:
    disk = Sick()
    async with site.running(disk) as run:
        await run.chat("durable")
        await run.flushed()
        end = run.process.store.end_offset()
        disk.fails = True
        async with asyncio.timeout(30):
            assert await run.task == 3
    assert run.process.failure is not None
    assert "Input/output error" in run.process.failure
    reader = SegmentLog.open_reader(site.data)
    assert reader.end_offset() == end, "nothing behind the last durable mark"
    reader.close()
    assert [pick.question.request_id for pick in site.facts(PickMade)] == ["durable"]
    async with site.running() as run:
        assert (await run.chat())[0] == 200
    assert site.verified().equal == 2


@pytest.mark.req("EVS-17")
async def test_a_log_that_does_not_answer_at_the_end_is_no_fault_of_the_process(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "app.wiring.WRITER_CLOSE_S",
        "ingest.log.log_writer.CLOSE_S_MAX",
        "app.owner_side.CHECKPOINT_WAIT_S",
    ):
        monkeypatch.setattr(name, 0.1)
    disk = Sick()

    def give_up() -> None:
        disk.fails = True
        disk.goes_on.set()

    async with site.running(disk) as run:
        monkeypatch.setattr(run.process.access, "give_up", give_up)
        disk.goes_on.clear()
        with capture_logs() as lines:
            assert await run.end() == 0
    said = [line["event"] for line in lines]
    assert "the log does not answer: what waits for it is not written" in said
    assert "the process ends" not in said and said[-1] == "stopped"


async def test_while_the_log_is_away_a_ready_process_stays_ready_and_says_so(site: Site) -> None:
    disk = Sick()
    async with site.running(disk) as run:
        await run.chat("before")
        await run.flushed()
        disk.goes_on.clear()
        away = run.process.folding.tail.is_log_away
        await until(lambda: away(monotonic_us()), f"nothing for {PING_AGE_US_MAX} us")
        assert (await run.get("/ready")) == (200, {"ready": True, "missing": [], "degraded": ["log"]})
        assert (await run.chat("meanwhile"))[0] == 200, "answers do not wait for a log that is away"
        assert (await run.metrics())["picks_unlogged_total"] == 1
        disk.goes_on.set()
        await until(lambda: not away(monotonic_us()), "the log is back")
        await run.is_ready()
    names = [pick.question.request_id for pick in site.facts(PickMade)]
    assert names == ["before", "meanwhile"], "what was held back came in behind"
    assert site.verified().different == 0


async def test_a_task_that_ends_by_a_fault_ends_the_process(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.running() as run:

        def raising() -> None:
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(run.process.folding, "tick", raising)
        async with asyncio.timeout(30):
            assert await run.task == 3
        assert run.process.failure == "the ticks ended by a fault"


async def test_it_can_be_stopped_before_it_owns_the_log(site: Site) -> None:
    disk = Sick()
    async with site.running(disk, ready=False) as run:
        disk.goes_on.clear()
        await until(lambda: run.process.ports, "it listens")
        assert (await run.get("/health"))[0] == 200
        status, document = await run.get("/ready")
        assert (status, document["ready"]) == (503, False)
        run.process.stop()
        disk.goes_on.set()
        async with asyncio.timeout(30):
            assert await run.task == 0


async def test_a_second_signal_does_not_wait_for_streams(site: Site) -> None:
    site.frontend.delay_s = 60
    async with site.running() as run:
        waiting = asyncio.create_task(run.chat("slow"))
        await until(lambda: site.frontend.requests, "it is sent")
        run.process.stop()
        await asyncio.sleep(0.05)
        assert not run.task.done(), "the first waits for requests in flight"
        run.process.stop()
        async with asyncio.timeout(10):
            assert await run.task == 0
        await asyncio.gather(waiting, return_exceptions=True)
    (end,) = site.facts(DispatchEnded)
    assert end.status == EndStatus.CANCELLED


async def test_an_address_that_is_taken_is_told_with_its_setting(site: Site, tmp_path: Path) -> None:
    async with site.running() as run:
        (tmp_path / "other").mkdir()
        other = Site(tmp_path / "other")
        other.config["server"]["bind_address"] = f"127.0.0.1:{run.process.ports[0]}"
        other.write(other.config)
        with pytest.raises(OSError, match="change server") as refused:
            await other.process().run()
        assert refused.value.filename == other.config["server"]["bind_address"]


@pytest.mark.req("KVX-05")
async def test_an_engines_own_events_reach_a_pick_and_its_token_ids_reach_nothing(site: Site) -> None:
    worker = site.workers("prefill")[1]
    size = 16
    ids = [random.Random(7).randrange(300, 60_000) for _ in range(8 * size)]
    with zmq.asyncio.Context() as context, context.socket(zmq.XPUB) as engine:
        port = engine.bind_to_random_port("tcp://127.0.0.1")
        source = {"endpoint": f"tcp://127.0.0.1:{port}", "instance_id": str(worker), "block_size": size}
        site.config["dynamo"]["kv"] = {"enabled": True, "engine_sources": [source]}
        site.config["log"]["raw"] = {"enabled": True}
        site.write(site.config)
        async with site.running() as run:
            await asyncio.wait_for(engine.recv(), 30)  # the subscription
            stored = batch(stored_items([*range(1, 9)], ids, size=size))
            await engine.send_multipart(engine_message(0, stored))
            process = run.process
            assert process.service is not None and process.folding.tail.fold.settings_now is not None
            folded = process.folding.tail.fold.state
            await until(lambda: sum(one.ownerships for one in folded.kv.indexes) == 8, "blocks are held")
            hashes = block_hashes(array("I", ids).tobytes(), size, seed_of(None, None))
            pick = process.service.pick(
                held=process.folding.tail.fold.settings_now,
                request_id="asked",
                model=MODEL,
                eligible=("dynamo",),
                absent=(),
                estimated_tokens=len(ids),
                prompt=PromptFacts(KvResult.READY, len(ids), ((size, hashes),)),
            )
            assert (pick.outcome.kv_result, pick.outcome.overlap_blocks) == (KvResult.OVERLAP, 8)
            assert pick.outcome.prefill.chosen is not None
            assert pick.outcome.prefill.chosen.instance_id == worker
            assert await run.end() == 0
    (told,) = site.facts(KvBatchReceived)
    kept = b"".join(
        file.read_bytes() for file in site.data.rglob("*") if file.is_file() and file.name != "reserve"
    )
    assert told.hashes in kept, "what is looked through is what was written"
    for at in range(len(ids) - 3):
        assert not any(one in kept for one in encodings(ids[at : at + 4]))


class Engine:
    """An engine process at a port of its own, which it keeps over restarts."""

    def __init__(self, port: int | None = None) -> None:
        self.port = port

    async def __aenter__(self) -> Engine:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.linger = 0
        if self.port is None:
            self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        else:
            self._socket.bind(f"tcp://127.0.0.1:{self.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    async def store(self, number: int, names: range, ids: list[int], size: int) -> None:
        """Say that a chain of blocks is stored, once somebody listens to the first message."""
        if number == 0:
            await asyncio.wait_for(self._socket.recv(), 30)  # the subscription
        await self._socket.send_multipart(
            engine_message(number, batch(stored_items([*names], ids, size=size)))
        )


async def bound(run: Run, state: str, worker: int | None) -> None:
    """Until the one engine source stands there."""
    async with asyncio.timeout(30):
        while True:
            _, document = await run.get("/admin/dynamo/workers")
            (row,) = document["kv"]["engine_sources"]
            if row["state"] == state:
                assert row["worker_id"] == (None if worker is None else str(worker))
                assert "127.0.0.1" not in str(row)
                return
            await asyncio.sleep(0.02)


@pytest.mark.req("KVX-05")
async def test_an_engine_follows_its_worker_through_a_restart_without_an_edit(site: Site) -> None:
    size = 16
    ids = [random.Random(8).randrange(300, 60_000) for _ in range(8 * size)]
    hashes = block_hashes(array("I", ids).tobytes(), size, seed_of(None, None))
    prompt = PromptFacts(KvResult.READY, len(ids), ((size, hashes),))
    neighbour, before = site.workers("prefill")
    site.remove(neighbour)

    def credited(run: Run, name: str) -> tuple[int, int]:
        """Instance id and credit of a pick for the prompt."""
        process = run.process
        assert process.service is not None
        settings = process.folding.tail.fold.settings_now
        assert settings is not None
        pick = process.service.pick(
            held=settings,
            request_id=name,
            model=MODEL,
            eligible=("dynamo",),
            absent=(),
            estimated_tokens=len(ids),
            prompt=prompt,
        )
        assert pick.outcome.prefill.chosen is not None
        return pick.outcome.prefill.chosen.instance_id, pick.outcome.overlap_blocks

    def holds(run: Run, blocks: int) -> bool:
        return sum(one.ownerships for one in run.process.folding.tail.fold.state.kv.indexes) == blocks

    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine())
        source = {"endpoint": f"tcp://127.0.0.1:{engine.port}", "component": "prefill", "block_size": size}
        site.config["dynamo"]["kv"] = {"enabled": True, "engine_sources": [source]}
        site.write(site.config)
        run = await stack.enter_async_context(site.running())
        await bound(run, "bound", before)
        await engine.store(0, range(1, 9), ids, size)
        await until(lambda: holds(run, 8), "blocks are held")
        assert credited(run, "before") == (before, 8)

        await engine.__aexit__()  # killed: its record stays until its lease is over
        after = site.restart(before)
        await bound(run, "several_workers", None)
        engine = await stack.enter_async_context(Engine(engine.port))
        await engine.store(0, range(1, 9), ids, size)
        await until(lambda: site.facts(FrameRefused), "counted")
        assert holds(run, 0), "what comes while nobody knows whose it is counts for nobody"
        site.remove(before)
        await bound(run, "bound", after)
        await run.flushed()
        assert holds(run, 0), "nothing is carried over"

        await engine.store(1, range(11, 19), ids, size)
        await until(lambda: holds(run, 8), "blocks of the new one are held")
        assert credited(run, "after") == (after, 8)
        await run.flushed()
        assert await run.end() == 0
    assert {fact.result for fact in site.facts(FrameRefused)} == {FrameResult.IDENTITY_MISMATCH}
    heads = b"".join(fact.heads for fact in site.facts(KvBatchReceived))
    assert [head[0] for head in KV_EVENT_HEAD.iter_unpack(heads)] == [before, after]
    replayed, reader = Fold(), SegmentLog.open_reader(site.data)
    for offset, data in records_of(reader, 0):
        replayed.apply(offset, data, [])
    reader.close()
    assert sum(one.ownerships for one in replayed.state.kv.indexes) == 8, "the log alone says it all"
