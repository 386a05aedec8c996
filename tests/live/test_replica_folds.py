"""Folds of replicas that go wrong: one that differs begins anew; a bad record stops all, and is condemned.

The processes run in this test's loop, so that their faults can be made; the broker is real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from app.tail import StopReason, Tail
from app.wiring import Role
from ingest.log.kafka_reader import KafkaReader
from projections.events.control import Pinged, RecordCondemned
from projections.events.picks import PickMade, PicksDistrusted
from projections.fold import Fold
from replay.engine import Unverifiable
from replay.verify import Report, verify
from tests.app.main_site import Run, site_in, until
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.live.test_kafka_upgrade import Fleet

pytestmark = [pytest.mark.live("kafka"), pytest.mark.timeout(180)]


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """No fold can take the pick of the request of this name; offsets at which one tried."""
    apply_pick = Fold._pick
    tried: list[int] = []

    def raising(self: Fold, record: Any, notices: Any) -> None:
        if record.fact.question.request_id == "bad":
            tried.append(record.offset)
            raise KeyError("a fault of ours")
        apply_pick(self, record, notices)

    monkeypatch.setattr(Fold, "_pick", raising)
    return tried


@pytest.fixture
async def fleet(bad: list[int], kafka: KafkaBroker, tmp_path: Path) -> AsyncIterator[Fleet]:
    with Topics(kafka) as topics:
        async with site_in(tmp_path) as site, AsyncExitStack() as stack:
            fleet = Fleet(site, topics, stack)
            await fleet.start(Role.INGEST, "ingest")
            for name in ("one", "other"):
                await fleet.start(Role.ROUTER, name)
            yield fleet


async def verified(fleet: Fleet) -> Report:
    reader = await asyncio.to_thread(KafkaReader.open, fleet.place)
    try:
        return await asyncio.to_thread(verify, reader, None)
    finally:
        await asyncio.to_thread(reader.close)


def folds(run: Run) -> list[Tail]:
    """Its folds: the one that picks read and its successor, where there is one."""
    return [run.process.folding.tail, run.process.folding.newest]


@pytest.mark.req("EVS-04", "EVS-06", "EVS-11")
async def test_a_replica_that_disagrees_is_unready_and_begins_anew_while_the_other_goes_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest, one, other = fleet.runs
    wrong = one.process.folding.tail
    digests = Fold.digests

    def flipped(self: Fold) -> Any:
        (name, value), *rest = digests(self)
        return ((name, value ^ 1 if self is wrong.fold else value), *rest)

    monkeypatch.setattr(Fold, "digests", flipped)
    assert (await one.chat("unnoticed"))[0] == 200
    await until(lambda: wrong.stopped is StopReason.DISAGREED, "it differs from the owner")
    status, document = await one.get("/ready")
    assert status == 503 and document["missing"][0] in ("fold_disagreed", "caught_up"), document
    assert (await one.chat("meanwhile"))[0] == 200, "its state is old, but it serves"
    await until(lambda: one.process.folding.tail is not wrong, "a new fold stands")
    await one.is_ready()
    assert (await one.chat("after"))[0] == 200
    assert (await other.chat("elsewhere"))[0] == 200
    assert (await one.metrics())['picklog_fold_restarts_total{reason="disagreed"}'] == 1
    for run in (ingest, other):
        assert 'picklog_fold_restarts_total{reason="disagreed"}' not in {
            name for name, n in (await run.metrics()).items() if n
        }
    await fleet.agree()
    report = await verified(fleet)
    picks = {fact.question.request_id: fact for fact in await fleet.all_facts(PickMade)}
    [named] = await fleet.all_facts(PicksDistrusted)
    since = {name for name, fact in picks.items() if named.after < fact.as_of <= named.upto}
    suspect = {name for name, fact in picks.items() if fact.suspect or name in since}
    assert "unnoticed" in since and not picks["unnoticed"].suspect
    assert named.replica == picks["unnoticed"].replica != picks["elsewhere"].replica
    assert suspect <= {"unnoticed", "meanwhile"}, "the latter where the new fold did not stand yet"
    assert (report.picks, report.different) == (4, 0)
    assert report.reasons == {Unverifiable.SUSPECT: len(suspect)}


@pytest.mark.req("EVS-06", "EVS-11")
async def test_a_record_that_no_fold_can_take_is_condemned_by_the_owner_and_passed_over_by_all(
    fleet: Fleet, bad: list[int]
) -> None:
    ingest, one, other = fleet.runs
    assert (await one.chat("before"))[0] == 200
    before = [run.process.folding.tail for run in fleet.runs]
    assert (await other.chat("bad"))[0] == 200, "its client is served all the same"
    for run, fold in zip(fleet.runs, before, strict=True):
        await until(lambda run=run, fold=fold: run.process.folding.tail is not fold, "it begins anew")  # type: ignore[misc]
        await run.is_ready()
    for run in (one, other):
        assert (await run.chat())[0] == 200
    condemned = await fleet.all_facts(RecordCondemned)
    assert {fact.offset for fact in condemned} == set(bad) and len(set(bad)) == 1
    await fleet.agree()
    for run in fleet.runs:
        assert all(fold.stopped is StopReason.NONE for fold in folds(run))
        assert bad[0] in run.process.folding.tail.fold.state.intake.condemned
    report = await verified(fleet)
    assert report.different == 0
    assert await fleet.all_facts(Pinged)
    assert ingest.process.is_owner
