"""An owner and three routers on one port: chats spread, and any of the processes may die at any time."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.demo import chats
from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import aggregated_plan
from projections.events.control import LaneOpened
from projections.events.picks import PickMade, PicksLost
from tests.live.conftest import FleetMaker
from tests.live.router_process import (
    TRAFFIC_MODEL,
    Traffic,
    chats_in_thread,
    until,
)
from tests.live.serve_group import ServeGroup

pytestmark = [pytest.mark.live("dynamo"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def fleet(make_fleet: FleetMaker) -> Fleet:
    return make_fleet(aggregated_plan(3))


@pytest.fixture(scope="module")
def group(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeGroup]:
    group = ServeGroup(fleet, tmp_path_factory.mktemp("group"), 3)
    try:
        group.start()
        yield group
    finally:
        group.close()


@pytest.fixture(autouse=True)
def _whole(request: pytest.FixtureRequest) -> None:
    """Every process is there and ready, whatever the test before left behind."""
    if "group" in request.fixturenames:
        whole: ServeGroup = request.getfixturevalue("group")
        whole.ensure()
        whole.wait_all_ready()


def lines(group: ServeGroup) -> int:
    """How many picks the log names as lost."""
    return sum(len(record.fact.lines) for record in group.facts(PicksLost))  # type: ignore[attr-defined,misc]


def wait_logged(group: ServeGroup, names: set[str], lines_before: int) -> None:
    """Until the pick of each is in the log, or is told as lost: none of them is forgotten.

    lines_before: `lines` at the begin of the test, which stand for picks of others.
    """

    def are_there() -> bool:
        picks = {record.fact.question.request_id for record in group.facts(PickMade)}  # type: ignore[attr-defined]
        return len(names - picks) <= lines(group) - lines_before

    until(are_there, lambda: f"all picks are told: {group.log_tail()}")


@pytest.mark.req("EVS-10", "STORE-06")
def test_chats_spread_over_processes_and_workers_and_every_pick_is_repeated(group: ServeGroup) -> None:
    names, lost = [f"spread-{number}" for number in range(90)], lines(group)
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(group.chat, names))
    assert {answer.status for answer in answers} == {200}
    workers = Counter(answer.headers[chats.DECODE_HEADER] for answer in answers)
    assert len(workers) == 3 and max(workers.values()) < 60, workers
    wait_logged(group, set(names), lost)
    picks = [record.fact for record in group.facts(PickMade)]
    replicas = Counter(pick.replica for pick in picks)  # type: ignore[attr-defined]
    assert len(replicas) == 3 and min(replicas.values()) >= 5, "the kernel spreads connections"
    assert group.verify()["equal"] == len(picks)


@pytest.mark.req("MET-01")
def test_one_scrape_tells_of_all_processes_whoever_answers_it(group: ServeGroup) -> None:
    def told() -> dict[str, float]:
        return {name: n for name, n in group.metrics().items() if name.startswith("picklog_ready")}

    before = group.metrics()
    for number in range(12):
        assert group.chat(f"scraped-{number}").status == 200
    selections = "continuum_dynamo_selection_total{"
    for _ in range(3):
        after = group.metrics()
        assert after["picklog_siblings_silent"] == 0
        processes = {name.partition('process="')[2].partition('"')[0] for name in after} - {""}
        assert processes == set(group.names)
        picked = [name for name in after if name.startswith(selections) and 'role="decode"' in name]
        more = sum(after[name] - before.get(name, 0) for name in picked)
        assert more == 12
    connected = [name for name, n in after.items() if name.startswith("continuum_dynamo_discovery_connected")]
    assert [name.count("ingest") for name in connected if after[name] == 1], connected
    assert told() == told()


@pytest.mark.req("MET-01", "EVS-13")
def test_one_scrape_tells_how_the_follower_stands_when_it_is_silent_and_when_it_is_replaced(
    group: ServeGroup,
) -> None:
    figures: dict[str, float] = {}

    def told(name: str, labels: str = "") -> float:
        return figures[f'{name}{{process="ingest"{labels}}}']

    def until_it_says(holds: Callable[[], bool]) -> None:
        def is_said() -> bool:
            figures.update(group.metrics())
            return holds()

        until(is_said, lambda: f"{figures}\n{group.log_tail()}")

    assert group.chat("before-it-is-silent").status == 200
    until_it_says(lambda: told("picklog_audit_lag_records") < 100 and told("picklog_audit_offset") > 0)
    pid, reached = group.follower(), told("picklog_audit_offset")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    until_it_says(lambda: told("picklog_follower_silent_seconds") > 3)
    os.kill(pid, signal.SIGKILL)
    until(lambda: group.follower() not in (None, pid), group.log_tail)
    assert group.chat("behind-it").status == 200
    until_it_says(
        lambda: (
            told("picklog_follower_silent_seconds") < 3
            and told("picklog_audit_offset") > reached
            and told("picklog_audit_lag_records") < 100
        )
    )
    assert told("picklog_audit_failures_total", ',cause="refused"') == 0
    assert told("picklog_follower_restarts") == 0
    assert sum(name.startswith("picklog_audit_offset") for name in figures) == 1, "the owner tells it alone"


@pytest.mark.req("REL-02", "EVS-10")
def test_a_changed_file_is_in_force_in_every_process(group: ServeGroup) -> None:
    config = copy.deepcopy(group.config)
    config["dynamo"]["load"]["max_staleness"] = "2500ms"
    group.write(config)
    try:

        def in_force(text: str) -> bool:
            shown = [group.ask_member(name, "/admin/config")[1] for name in group.names]
            return all(one and one["dynamo"]["load"]["max_staleness"] == text for one in shown)

        until(lambda: in_force("2500ms"), lambda: group.log_tail())
        assert group.chat("behind-it").status == 200
    finally:
        group.write(group.config)
    until(lambda: in_force("3s"), lambda: group.log_tail())
    assert group.verify()["different"] == 0


@pytest.mark.req("EVS-10")
def test_a_killed_router_costs_its_own_connections_and_is_replaced(group: ServeGroup) -> None:
    lost = lines(group)
    traffic = Traffic(group, prefix="killed-router")
    with traffic.running(threads=6):
        traffic.wait_more(20)
        pid = group.kill_member("router-2")
        group.wait_replaced("router-2", pid)
        traffic.wait_more(30)
    assert len(traffic.bad) <= 6, "at most what was under way in it"
    good = {one.identifier for one in traffic.finished() if one.is_good}
    assert len(good) > 50
    wait_logged(group, good, lost)
    assert group.verify()["different"] == 0


@pytest.mark.req("EVS-10", "EVS-16", "EVS-17")
def test_a_killed_owner_costs_no_chat_and_no_acknowledged_record(group: ServeGroup) -> None:
    epochs, lost = len(group.facts(LaneOpened)), lines(group)
    traffic = Traffic(group, prefix="killed-owner")
    routers = [name for name in group.names if name != "ingest"]
    with traffic.running(threads=4):
        traffic.wait_more(20)

        def all_say_so() -> bool:
            pid = group.members().get("ingest")
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
            found = [group.ask_member(name, "/ready") for name in routers]
            assert all(status == 200 for status, _ in found), found
            return all(document["degraded"] == ["log"] for _, document in found)

        until(all_say_so, lambda: f"routers say that the log is away: {group.log_tail()}")
        traffic.wait_more(20)
        until(lambda: group.ask_member("ingest", "/ready")[0] == 200, lambda: group.log_tail())
        until(
            lambda: all(group.ask_member(name, "/ready")[1].get("degraded") == [] for name in routers),
            lambda: group.log_tail(),
        )
        traffic.wait_more(20)
    assert traffic.bad == []
    wait_logged(group, {one.identifier for one in traffic.finished()}, lost)
    assert len(group.facts(LaneOpened)) > epochs
    assert group.verify()["different"] == 0


def test_streams_in_flight_outlive_sigterm(group: ServeGroup) -> None:
    long = [chats.Chat(f"long-{n}", TRAFFIC_MODEL, "Say much. " * 30, True, 1500) for n in range(6)]
    with chats_in_thread(group, *long) as answers:
        until(
            lambda: sum(n for name, n in group.metrics().items() if "backend_in_flight{" in name) >= 3,
            "streams",
        )
        os.kill(group.pid, signal.SIGTERM)
        assert group.wait_end() == 0
    assert [chats.judge(answer, is_paired=False).complaint for answer in answers] == [""] * 6
    assert group.log_lines("stopped")
    assert not group.log_lines("Traceback")


def test_children_end_with_a_parent_that_is_killed_and_the_next_group_begins(group: ServeGroup) -> None:
    pids = group.members()
    assert set(pids) == set(group.names)
    group.kill()
    until(
        lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids.values()),
        "children end",
        patience_s=60,
    )
    group.start()
    assert group.chat("again").status == 200


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("unix:/tmp/picklog-group.sock", "several routers cannot listen on one Unix socket"),
        ("taken", "in use"),
    ],
)
def test_an_address_that_cannot_be_shared_is_refused_in_one_line(
    address: str, told: str, fleet: Fleet, group: ServeGroup, tmp_path: Path
) -> None:
    other = ServeGroup(fleet, tmp_path, 2)
    bind = f"127.0.0.1:{fleet.frontend_url().rpartition(':')[2]}" if address == "taken" else address
    other.write({**other.config, "server": {"bind_address": bind}})
    try:
        other.start(ready=False)
        assert other.wait_end() == (2 if address != "taken" else 3)
        (line,) = other.log_lines("picklog: ")
        assert told in line
        assert not other.data.exists() or not list(other.data.rglob("*.seg"))
    finally:
        other.close()


def test_a_port_of_zero_is_the_same_for_all(fleet: Fleet, tmp_path: Path) -> None:
    other = ServeGroup(fleet, tmp_path, 2)
    other.write({**other.config, "server": {"bind_address": "127.0.0.1:0"}})
    try:
        other.start(ready=False)
        other.wait_all_ready()
        heard = {line.rpartition("address=")[2].strip() for line in other.log_lines("listening")}
        assert len(heard) == 1, heard
        other.port = int(heard.pop().rpartition(":")[2])
        assert other.chat("found").status == 200
        assert other.stop() == 0
    finally:
        other.close()
    assert time.monotonic() > 0
