"""The shell of one picked request: one step to pick, the gate, one end."""

from __future__ import annotations

import asyncio

import pytest

from projections.events.picks import EndStatus, Fault, own_number
from projections.identity import RankKey
from projections.registry.fleet import Role
from router.ingress.pinned import PinnedRequest
from router.picker.pick import pick
from router.service import RouterService
from tests.router.rig import Counts, FakeLog, fleet_of, pick_settings_for, settings_for, worker

SETTINGS = settings_for({"dynamo": []})


def made(wait_us: int = 1_000_000, *workers: int) -> tuple[PinnedRequest, FakeLog, Counts]:
    fleet = fleet_of(*(worker(number, Role.AGGREGATED) for number in workers or (31,)))
    log, counts = FakeLog(fleet, pick_settings_for(SETTINGS)), Counts()
    return PinnedRequest(RouterService(log, pick, SETTINGS, counts), wait_us), log, counts


def ask(request: PinnedRequest, log: FakeLog) -> None:
    assert request.ask(log.settings(), "r", "tiny-chat", ("dynamo",), (), 40) is not None


async def test_pick_is_numbered_queued_and_charged_in_one_step() -> None:
    request, log, counts = made()
    ask(request, log)  # nothing was awaited
    (fact,) = log.picks
    assert (fact.own_seq, own_number(fact), fact.as_of, fact.config_version) == (0, 1, 41, 1)
    assert fact.question.dispatched_at == fact.question.asked_at + 700
    assert request.pins is not None
    assert request.pins.decode == "dynamo/31"
    later = fact.question.dispatched_at + 1
    assert log.view().unanswered_tokens(RankKey("dynamo", 31, 0), later) == 40
    assert len(log.overlay) == 1
    assert counts.picks == 1
    request.end(EndStatus.OK, Fault.NONE, 200, "shim")
    assert own_number(log.ends[0]) == 2
    assert len(log.overlay) == 2


@pytest.mark.field("B-074")
async def test_burst_within_one_round_trip_does_not_go_to_one_worker() -> None:
    _, log, counts = made(1_000, 31, 32)
    service = RouterService(log, pick, SETTINGS, counts)
    chosen = []
    for _ in range(4):
        request = PinnedRequest(service, 1_000)
        ask(request, log)
        assert request.pins is not None
        chosen.append(request.pins.decode_instance)
    assert sorted(chosen) == [31, 31, 32, 32]
    assert [fact.own_seq for fact in log.picks] == [0, 1, 2, 3]


async def test_gate_opens_at_the_acknowledgement() -> None:
    request, log, counts = made(60_000_000)
    log.mode = "holds"
    ask(request, log)
    waiting = asyncio.create_task(request.output())
    await asyncio.sleep(0)
    assert not waiting.done()
    log.acknowledge()
    await waiting
    await request.output()  # an open gate stays open
    assert counts.unlogged == 0


@pytest.mark.looptime
async def test_gate_opens_by_the_outage_rule() -> None:
    request, log, counts = made(250_000)
    log.mode = "holds"
    began = asyncio.get_running_loop().time()
    ask(request, log)
    await request.output()
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.25, abs=0.01)
    assert counts.unlogged == 1
    log.acknowledge()
    assert counts.unlogged == 1


@pytest.mark.looptime
async def test_log_that_is_found_away_when_the_answer_comes_costs_no_wait() -> None:
    request, log, counts = made(60_000_000)
    log.mode = "holds"
    ask(request, log)
    log.away = True
    await request.output()
    assert (counts.unlogged, asyncio.get_running_loop().time()) == (1, 0.0)


async def test_leaving_ends_once_and_leaves_no_timer() -> None:
    request, log, _ = made(60_000_000)
    log.mode = "holds"
    ask(request, log)
    waiting = asyncio.create_task(request.output())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    request.client_gone(None, "shim")
    request.client_gone(None)
    request.end(EndStatus.OK, Fault.NONE, 200, "shim")
    (end,) = log.ends
    assert (end.status, end.backend) == (EndStatus.CANCELLED, "shim")
    assert request.has_ended
    log.acknowledge()  # nobody waits any more
    assert request._timer is None


async def test_pick_without_a_worker_needs_no_end() -> None:
    request, log, _ = made()
    assert request.ask(log.settings(), "r", "nobody", ("dynamo",), (), 4) is None
    assert request.has_ended
    assert len(log.picks) == 1
    assert not request.all_workers_stalled()


async def test_all_workers_stalled_is_seen_in_the_picks_rows() -> None:
    _, log, counts = made()
    service = RouterService(log, pick, SETTINGS, counts)
    first = PinnedRequest(service, 1_000)
    ask(first, log)
    assert not first.all_workers_stalled()
    log._time += 6_000_000  # the first request had two blocks and was not answered
    second = PinnedRequest(service, 1_000)
    ask(second, log)
    assert second.all_workers_stalled()


@pytest.mark.field("B-144")
async def test_a_pool_whose_prefill_workers_all_stall_is_busy_too() -> None:
    fleet = fleet_of(worker(1, Role.PREFILL), worker(2, Role.DECODE), worker(3, Role.DECODE))
    log, counts = FakeLog(fleet, pick_settings_for(SETTINGS)), Counts()
    service = RouterService(log, pick, SETTINGS, counts)
    first = PinnedRequest(service, 1_000)
    ask(first, log)
    assert not first.all_workers_stalled()
    log._time += 6_000_000  # the prefill worker left a request of two blocks unanswered
    second = PinnedRequest(service, 1_000)
    ask(second, log)
    assert second.all_workers_stalled()
