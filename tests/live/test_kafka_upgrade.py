"""An upgrade that changes reducers rolls through the replicas: adopted once all of them can fold it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from app import own_records, owner
from app.config_load import load_config
from app.kafka_access import KafkaAccess
from app.wiring import MainProcess, Role
from ingest.log.kafka_reader import KafkaReader
from projections.bounds import SECOND_US
from projections.events.codec import decode_record
from projections.events.control import ConfigAdopted, FoldModeAdopted, ReplicaGone
from projections.fold_modes import COUNTED_ONCE, FOLD_MODES, KV_INDEX
from replay.engine import records_of
from replay.verify import verify
from tests.app.main_site import Run, Site, site_in, until
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics

BOTH = (KV_INDEX, COUNTED_ONCE)
pytestmark = [pytest.mark.live("kafka"), pytest.mark.timeout(180)]


class Fleet:
    """An ingest process and replicas on one topic, in this test's loop."""

    def __init__(self, site: Site, topics: Topics, stack: AsyncExitStack) -> None:
        self.site, self.topics, self.stack = site, topics, stack
        self.place = topics.place()
        self.site.config["log"] = {
            "kind": "kafka",
            "kafka": {
                "bootstrap_servers": [topics.broker.address()],
                "topic": self.place.topic,
                "replication_factor": 1,
            },
        }
        self.site.config["dynamo"]["kv"] = {"enabled": False}
        self.site.write(self.site.config)
        self.runs: list[Run] = []

    async def start(self, role: Role, name: str, modes: frozenset[int] = FOLD_MODES) -> Run:
        """One more process; modes: what its release can fold, as it announces."""
        loaded = load_config(self.site.file, environment={})
        access = await asyncio.to_thread(KafkaAccess, self.site.folder / name, loaded.config)
        process = MainProcess(loaded, access, role)
        said = process.own.started

        def started(time: int) -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(own_records, "FOLD_MODES", modes)
                said(time)

        process.own.started = started  # type: ignore[method-assign]
        run = Run(process)
        self.runs.append(run)
        self.stack.push_async_callback(self.end, run)
        await run.is_ready()
        return run

    async def end(self, run: Run) -> None:
        if run in self.runs:
            self.runs.remove(run)
            await run.end()

    def facts(self, *kinds: type) -> list[Any]:
        reader = KafkaReader.open(self.place)
        try:
            found = [decode_record(offset, data) for offset, data in records_of(reader, 0)]
        finally:
            reader.close()
        return [record.fact for record in found if isinstance(record.fact, kinds)]

    async def all_facts(self, *kinds: type) -> list[Any]:
        return await asyncio.to_thread(self.facts, *kinds)

    async def agree(self) -> None:
        """All processes fold on, and at one and the same offset they hold the same."""
        end = max(run.process.folding.tail.next_offset for run in self.runs)
        await until(
            lambda: all(run.process.folding.tail._agreed_offset >= end for run in self.runs),
            "every process compared its state with the owner's behind here",
        )
        for run in self.runs:
            assert run.process.folding.tail.readiness(0).missing == ()


@pytest.fixture
async def fleet(kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    monkeypatch.setattr(owner, "REPLICA_GONE_US", 3 * SECOND_US)
    monkeypatch.setattr("app.reloading.ADOPT_S_MAX", 2.0)
    with Topics(kafka) as topics:
        async with site_in(tmp_path) as site, AsyncExitStack() as stack:
            yield Fleet(site, topics, stack)


async def modes(fleet: Fleet) -> list[tuple[int, ...]]:
    """All that were adopted, in order."""
    return [fact.flags for fact in await fleet.all_facts(FoldModeAdopted)]


@pytest.mark.req("KVX-20")
async def test_a_mode_waits_for_the_last_replica_of_the_old_release(fleet: Fleet) -> None:
    ingest = await fleet.start(Role.INGEST, "ingest")
    new = await fleet.start(Role.ROUTER, "new")
    old = await fleet.start(Role.ROUTER, "old", frozenset((COUNTED_ONCE,)))
    for run in (new, old):
        assert (await run.chat())[0] == 200

    wanted = {**fleet.site.config, "dynamo": {**fleet.site.config["dynamo"], "kv": {"enabled": True}}}
    status, answer = await ingest.put_config(wanted)
    assert status >= 500 and "of a release that cannot fold it" in str(answer), answer
    assert await modes(fleet) == [(COUNTED_ONCE,)], "the old replica is still there"
    assert len(await fleet.all_facts(ConfigAdopted)) == 1
    for run in (new, old):
        assert (await run.chat())[0] == 200
    await fleet.agree()

    await fleet.end(old)
    updated = await fleet.start(Role.ROUTER, "updated")
    await until(lambda: new.process.folding.tail.fold.state.intake.fold_mode == BOTH, "the mode")
    assert await fleet.all_facts(ReplicaGone), "only then"
    assert await modes(fleet) == [(COUNTED_ONCE,), BOTH]
    for run in (new, updated):
        assert (await run.chat())[0] == 200
        assert run.process.folding.tail.fold.settings_now.pick.kv is not None  # type: ignore[union-attr]
    await fleet.agree()
    reader = await asyncio.to_thread(KafkaReader.open, fleet.place)
    try:
        report = await asyncio.to_thread(verify, reader, None)
    finally:
        reader.close()
    assert (report.picks, report.different) == (6, 0)
