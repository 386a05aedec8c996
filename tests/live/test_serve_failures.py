"""What breaks around a router under traffic: a worker, the router itself, its time."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import demo_plan
from tests.live.conftest import FleetMaker
from tests.live.router_process import RouterProcess, Traffic, picklog, until

pytestmark = pytest.mark.live("dynamo")
LAST_WORDS_S = 0.5  # a sample that a worker sent before it died may be read later, and lifts its suspicion


@pytest.fixture(scope="module")
def fleet(make_fleet: FleetMaker) -> Fleet:
    return make_fleet(demo_plan(prefill=1, decode=2, aggregated=1))


@pytest.fixture(scope="module")
def served(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    served = RouterProcess.before(fleet, tmp_path_factory.mktemp("router"))
    try:
        yield served
    finally:
        served.close()


@pytest.fixture
def router(served: RouterProcess) -> RouterProcess:
    return served.ensure(models=2)


@pytest.mark.field("B-005")
def test_a_killed_worker_costs_what_was_in_it_and_what_came_before_the_first_failure(
    router: RouterProcess, fleet: Fleet
) -> None:
    (victim,) = fleet.instance_ids("decode-2")
    traffic = Traffic(router, prefix="kill-worker")
    with traffic.running(threads=6):
        traffic.wait_more(40)
        assert traffic.bad == []
        fleet.kill("decode-2")
        killed_at = time.monotonic()
        until(lambda: traffic.bad, "a chat that the dead worker cost")
        first_bad = min(one.ended for one in traffic.bad) + LAST_WORDS_S
        traffic.wait_more(60)
        is_listed = victim in router.workers()
        until(lambda: victim not in router.workers(), "the dead worker leaves with its keys")
        traffic.wait_more(20)
    assert is_listed, "its keys outlive it for a while: only what was seen keeps picks away from it"
    late = [one for one in traffic.bad if one.began > first_bad]
    assert late == [], [(one.began - killed_at, one.ended - killed_at, one.answer) for one in late]
    assert all(one.began < killed_at + 5 for one in traffic.bad)
    # whoever was sent to it after the first failure waited out its suspicion of 10 s first
    after = [one for one in traffic.finished() if one.began > first_bad and one.decode == victim]
    assert after == []
    _assert_explained_as_suspect(router, victim, first_bad, traffic)
    fleet.start("decode-2")
    until(lambda: len(router.workers()) == 4, "a new worker is seen")
    assert router.verify()["equal"] >= 100


def _assert_explained_as_suspect(
    router: RouterProcess, victim: str, first_bad: float, traffic: Traffic
) -> None:
    """Some pick soon after the first failure says that it left the dead worker out as suspect."""
    soon = [one for one in traffic.finished() if one.is_good and one.began > first_bad][:1]
    rows = router.explain(soon[0].identifier)["phases"]["decode"]["candidates"]
    (row,) = [row for row in rows if row["worker"] == victim]
    assert (row["verdict"], row["excluded_reason"]) == ("excluded", "suspect"), rows


@pytest.mark.req("EVS-13", "EVS-20")
def test_a_killed_router_goes_on_where_its_log_ends(
    router: RouterProcess, fleet: Fleet, tmp_path: Path
) -> None:
    first_seen = {row["worker_id"]: row["first_seen"] for row in router.workers().values()}
    epoch = max(int(record["fields"]["epoch"]) for record in router.records("LaneOpened"))
    traffic = Traffic(router, prefix="kill-router")
    with traffic.running(threads=4):
        traffic.wait_more(30)
        router.kill()
        time.sleep(0.3)
    answered = [one.identifier for one in traffic.finished() if one.is_good]
    crashed = router.copy_log(tmp_path / "crashed")
    router.start(models=2)
    opened = router.records("LaneOpened")
    assert int(opened[-1]["fields"]["epoch"]) == epoch + 1
    assert {row["worker_id"]: row["first_seen"] for row in router.workers().values()} == first_seen
    assert router.chat("after-the-crash").status == 200
    logged = {record["fields"]["question"]["request_id"] for record in router.records("PickMade")}
    assert set(answered) <= logged, "an answer had begun only behind its durable pick"
    assert picklog("log", "verify", "--log", str(router.data)).returncode == 0
    assert picklog("log", "verify", "--log", str(crashed)).returncode == 0
    assert router.verify()["equal"] >= len(answered)
    assert router.verify(crashed)["equal"] >= len(answered)


@pytest.mark.req("EVS-13")
def test_a_kill_after_a_checkpoint_folds_the_tail_alone(router: RouterProcess) -> None:
    assert router.stop() == 0
    router.start(models=2)
    traffic = Traffic(router, prefix="tail")
    with traffic.running(threads=2):
        traffic.wait_more(10)
        router.kill()
    router.start(models=2)
    line = router.log_lines("folding from_offset=")[-1]
    start, end = (int(line.split(f"{name}=")[1].split()[0]) for name in ("from_offset", "end"))
    assert "checkpoint=none" not in line
    assert 0 < start < end
    assert router.chat("behind-the-tail").status == 200
    router.verify()


@pytest.mark.req("ZMTP-15", "STORE-03")
def test_a_router_that_stood_still_cuts_its_subscriptions_and_takes_them_up_again(
    router: RouterProcess,
) -> None:
    def states() -> list[str]:
        return [row["state"] for row in router.document("/admin/dynamo/workers")["subscriptions"]]

    until(lambda: states() == ["connected"] * 4, "four subscriptions")
    stalls = router.metrics()["picklog_stalls_total"]
    before = len(router.records("SubscriptionChanged"))
    traffic = Traffic(router, prefix="stall")
    with traffic.running(threads=2):
        traffic.wait_more(5)
        router.signal(signal.SIGSTOP)
        time.sleep(3)
        router.signal(signal.SIGCONT)
        until(lambda: len(router.records("SubscriptionChanged")) >= before + 8, "cut and taken up")
        until(lambda: states() == ["connected"] * 4, "four subscriptions again")
        traffic.wait_more(10)
    assert traffic.bad == []
    assert router.metrics()["picklog_stalls_total"] > stalls
    assert router.log_lines("stood still")
    router.verify()
