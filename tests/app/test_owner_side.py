"""What is said for the fleet: by the owner of the log alone, and only once its claim is folded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.tail import StopReason
from projections.events.control import (
    CheckpointDue,
    ClockTicked,
    ConfigAdopted,
    LaneOpened,
    RecordCondemned,
    ReplicaStarted,
)
from projections.events.discovery import KeyPut, PassBegan, PassSettled
from projections.events.picks import DispatchEnded, PickMade
from tests.app.main_site import Site, site_in, until
from tests.app.two_processes import owner_of, two_running

OWNER_KINDS = (LaneOpened, ClockTicked, ConfigAdopted, KeyPut, PassBegan, PassSettled, CheckpointDue)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site_in(tmp_path) as site:
        yield site


@pytest.mark.req("EVS-10", "EVS-16")
async def test_one_owns_and_the_other_picks(site: Site) -> None:
    async with two_running(site) as (owner, router):
        assert (await owner.get("/v1/models"))[0] == 404, "an owner serves no clients"
        for number in range(3):
            assert (await router.chat(f"chat-{number}"))[0] == 200
        await router.flushed()
        assert owner.process.is_owner and not router.process.is_owner
        assert router.process.owning is None and router.process.ports
        digests = [dict(run.process.folding.tail.fold.digests()) for run in (owner, router)]
        assert digests[0].keys() == digests[1].keys()
    started = {fact.replica: fact.role for fact in site.facts(ReplicaStarted)}
    assert started == {owner.process.replica: "ingest", router.process.replica: "router"}
    assert [fact.epoch for fact in site.facts(LaneOpened)] == [1]
    records = site.records()
    (claimant,) = {record.writer for record in records if isinstance(record.fact, LaneOpened)}
    for record in records:
        is_owners = record.writer == claimant
        if isinstance(record.fact, OWNER_KINDS):
            assert is_owners, record
        if isinstance(record.fact, PickMade | DispatchEnded):
            assert not is_owners, record
    picks = site.facts(PickMade)
    assert {pick.question.request_id for pick in picks} == {"chat-0", "chat-1", "chat-2"}
    assert {pick.replica for pick in picks} == {router.process.replica}
    assert site.verified().equal == 3


async def test_nothing_is_said_before_the_own_claim_is_folded(site: Site) -> None:
    process = owner_of(site)
    owning = process.owning
    assert owning is not None
    fold = process.folding.tail.fold
    assert not owning.is_owner
    owning.tick()
    owning.condemn(7, "too early")
    owning.stand_by(fold)
    owning.close()
    process.access.close()
    assert site.records() == []


async def test_an_owner_whose_fold_stopped_condemns_the_record(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_running(site) as (owner, router):
        tail = owner.process.folding.newest
        assert tail.stopped is StopReason.NONE
        owner.process.condemn(1 << 40, "x" * 5_000)
        router.process.condemn(1 << 41, "it is not its word")
        await owner.flushed()
    (condemned,) = site.facts(RecordCondemned)
    assert (condemned.offset, len(condemned.detail)) == (1 << 40, 1_000)


async def test_a_pass_that_does_not_settle_is_read_again(site: Site) -> None:
    async with two_running(site) as (owner, _):
        owning = owner.process.owning
        assert owning is not None and owning.ingest is not None
        repeated: list[object] = []
        owning.ingest.repeat_pass = repeated.append  # type: ignore[assignment, method-assign]
        held = owner.process.newest_fold.state.registry.passes
        settled = next(fact for fact in site.facts(PassSettled))
        assert held[settled.namespaces[0]].settled
        # a pass that tells another count of keys than the fold holds is one that lost something
        owner.process.own.of_owner(PassBegan(*site.facts(PassBegan)[0]))
        owner.process.own.of_owner(settled._replace(keys=settled.keys + 1))
        await until(lambda: repeated, "it is asked for again")


@pytest.mark.req("EVS-10", "EVS-17")
async def test_a_router_goes_on_without_its_owner_and_the_next_one_finds_its_picks(site: Site) -> None:
    async with two_running(site) as (owner, router):
        await router.chat("before")
        await router.flushed()
        await owner.end()
        await until(lambda: router.process.pick_log.is_away(), "nothing comes back")
        assert await router.get("/ready") == (200, {"ready": True, "missing": [], "degraded": ["log"]})
        assert (await router.chat("meanwhile"))[0] == 200
        async with two_running(site):
            await until(lambda: not router.process.pick_log.is_away(), "it is back")
            assert (await router.chat("after"))[0] == 200
            await router.flushed()
    picks = {pick.question.request_id for pick in site.facts(PickMade)}
    assert picks == {"before", "meanwhile", "after"}
    assert [fact.epoch for fact in site.facts(LaneOpened)] == [1, 2]
    assert site.verified().different == 0
