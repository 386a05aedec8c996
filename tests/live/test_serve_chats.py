"""Chats through a real router over a real fleet: pinned, answered by the picked worker, repeatable."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.demo import chats
from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import AGGREGATED_MODEL, PAIRED_MODEL
from tests.live.router_process import RouterProcess, chats_in_thread, picklog, until

pytestmark = pytest.mark.live("dynamo")


@pytest.fixture(scope="module")
def router(demo_fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    router = RouterProcess.before(demo_fleet, tmp_path_factory.mktemp("router"))
    try:
        yield router.start(models=2)
    finally:
        router.close()


@pytest.mark.req("SHIM-02", "SHIM-06", "SHIM-07", "SHIM-08", "SHIM-14", "ADM-08")
def test_every_chat_is_answered_by_the_picked_workers(router: RouterProcess, demo_fleet: Fleet) -> None:
    fleet_ids = {row["instance_id"]: row for row in demo_fleet.workers()}
    assert set(router.workers()) == set(fleet_ids)
    for chat in chats.demo_chats((PAIRED_MODEL, AGGREGATED_MODEL)):
        answer = chats.send(router.url, chat)
        verdict = chats.judge(answer, is_paired=chat.model == PAIRED_MODEL)
        assert verdict.complaint == "", chat
        assert verdict.decode is not None
        assert fleet_ids[verdict.decode.instance_id]["model"] == chat.model
        assert answer.headers["x-request-id"] == chat.identifier


@pytest.mark.req("EVS-13")
def test_every_pick_of_the_log_and_of_a_copy_is_repeated(router: RouterProcess, tmp_path: Path) -> None:
    for number in range(6):
        assert router.chat(f"again-{number}", (PAIRED_MODEL, AGGREGATED_MODEL)[number % 2]).status == 200
    until(lambda: router.verify()["picks"] >= 6, "six picks in the log")
    found = router.verify()
    assert found["equal"] == found["picks"]
    copy = router.copy_log(tmp_path / "copy")
    assert router.verify(copy)["picks"] >= found["picks"]
    assert picklog("log", "verify", "--log", str(copy)).returncode == 0


def test_a_pick_is_explained_under_all_its_names(router: RouterProcess) -> None:
    assert router.chat("named").status == 200
    by_request = router.explain("named")
    pick = by_request["pick"]
    assert by_request["repeated"] == "equal"
    assert len(by_request["phases"]["decode"]["candidates"]) == 2
    assert by_request["end"]["status"] == "ok"
    for name in (pick["pick_id"], str(pick["log_offset"]), "last"):
        assert router.explain(name)["pick"]["pick_id"] == pick["pick_id"], name
    over_http = router.document(f"/admin/picks/{pick['pick_id']}")
    told = ("pick_id", "log_offset", "request_id", "decode_worker", "prefill_worker")
    assert {key: over_http["pick"][key] for key in told} == {key: pick[key] for key in told}
    assert router.get("/admin/picks/nobody")[0] == 404
    assert picklog("replay", "explain", "nobody", "--log", str(router.data)).returncode != 0


@pytest.mark.req("MET-01", "MET-02", "MET-03", "MET-04", "MET-05", "MET-06", "MET-07", "MET-11", "MET-13")
def test_a_scrape_has_what_contract_and_specification_name(router: RouterProcess, demo_fleet: Fleet) -> None:
    assert router.chat("scraped").status == 200
    series = router.metrics()
    names = {name.partition("{")[0] for name in series}
    wanted = {
        "continuum_dynamo_discovery_connected",
        "continuum_dynamo_discovery_events_total",
        "continuum_dynamo_kv_subscriptions",
        "continuum_dynamo_load_events_total",
        "continuum_dynamo_load_subscriptions",
        "continuum_dynamo_selection_total",
        "continuum_dynamo_worker_kv_used_blocks",
        "continuum_dynamo_workers",
        "disaggregated_errors_total",
        "disaggregated_requests_total",
        "log_horizon_seconds",
        "picklog_append_seconds_bucket",
        "picklog_pick_input_age_seconds_bucket",
        "picklog_pick_seconds_bucket",
        "picks_unlogged_total",
    }
    assert wanted <= names, sorted(wanted - names)
    assert series["continuum_dynamo_discovery_connected"] == 1
    assert series['continuum_dynamo_workers{namespace="dynamo",role="decode"}'] == 2
    text = router.get("/metrics")[1].decode()
    assert "127.0.0.1" not in text
    assert "tcp://" not in text
    assert str(demo_fleet.run_dir) not in text
    assert all(row["instance_id"] not in text for row in demo_fleet.workers()), "ids are hex in metrics"


@pytest.mark.req("MET-12")
def test_what_clients_write_makes_no_series(router: RouterProcess) -> None:
    before = set(router.metrics())
    for number in range(5):
        body = json.dumps({"model": f"made-up-{number}", "messages": []}).encode()
        router.ask("POST", "/v1/chat/completions", body, {"x-request-id": f"own-{number}"})
        router.get(f"/v1/made-up-{number}")
    assert set(router.metrics()) == before


@pytest.mark.req("ADM-02", "ADM-03", "ADM-07")
def test_admin_shows_the_fleet_without_addresses(router: RouterProcess) -> None:
    status, body = router.get("/admin/dynamo/workers")
    assert status == 200
    document = json.loads(body)
    assert (document["enabled"], document["connected"]) == (True, True)
    assert {row["state"] for row in document["subscriptions"]} == {"connected"}
    assert b"tcp://" not in body
    assert b"127.0.0.1" not in body


def test_a_stream_in_flight_outlives_sigterm_and_the_next_start_folds_little(
    router: RouterProcess, demo_fleet: Fleet
) -> None:
    seen = {row["worker_id"]: row["first_seen"] for row in router.workers().values()}
    chat = chats.Chat("long", PAIRED_MODEL, "Say much. " * 30, streamed=True, tokens_max=2000)
    with chats_in_thread(router, chat) as answers:
        until(
            lambda: router.metrics().get('picklog_backend_in_flight{backend="frontend-1"}', 0) == 1,
            "a stream",
        )
        began = time.monotonic()
        os.kill(router.pid, signal.SIGTERM)
        assert router.wait_end() == 0
        assert time.monotonic() - began < 25
    assert chats.judge(answers[0], is_paired=True).complaint == ""
    end = router.log_lines("checkpoint written")
    assert end, router.log_tail()
    assert router.log_lines("stopped")
    offset = max(int(line.split("offset=")[1].split()[0]) for line in end)
    router.start(models=2)
    folding = router.log_lines("folding from_offset=")[-1]
    assert f"from_offset={offset + 1} " in folding, folding
    assert {row["worker_id"]: row["first_seen"] for row in router.workers().values()} == seen
    assert router.chat("after").status == 200
    assert router.verify()["equal"] > 0
