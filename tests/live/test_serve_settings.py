"""Settings that change under a running router: at once, through the log, and whole or not at all."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import FleetPlan, FrontendSpec, Role, WorkerGroup
from tests.live.conftest import FleetMaker
from tests.live.router_process import RouterProcess, Traffic, until

pytestmark = pytest.mark.live("dynamo")
SECRET = "backend-secret-5b1f"
KEY = "client-key-77aa90"


@pytest.fixture(scope="module")
def fleet(make_fleet: FleetMaker) -> Fleet:
    """Two namespaces, each with a pair and a frontend of its own, in one file store."""
    groups = []
    for space in ("east", "west"):
        groups.append(WorkerGroup(f"{space}-prefill", Role.PREFILL, 1, namespace=space))
        groups.append(WorkerGroup(f"{space}-decode", Role.DECODE, 1, namespace=space))
    frontends = (FrontendSpec("front-east", "east"), FrontendSpec("front-west", "west"))
    return make_fleet(FleetPlan(tuple(groups), frontends))


@pytest.fixture(scope="module")
def router(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    router = RouterProcess.before(
        fleet,
        tmp_path_factory.mktemp("router"),
        namespaces={"east": "front-east", "west": "front-west"},
    )
    router.config["backends"][0]["api_key"] = SECRET
    router.config["api_keys"] = {"mode": "permissive", "keys": [{"id": "someone", "key": KEY}]}
    router.write(router.config)
    try:
        yield router.start()
    finally:
        router.close()


@pytest.fixture
def changing(router: RouterProcess) -> Iterator[Callable[..., int]]:
    """Call it with a change of the configuration; waits until it is in force, returns its version.

    The configuration of the module is put back behind the test.
    """
    before = router.config

    def change(how: Callable[[dict[str, Any]], object]) -> int:
        config = copy.deepcopy(before)
        how(config)
        return put_in_force(router, config)

    yield change
    put_in_force(router, before)


def put_in_force(router: RouterProcess, config: dict[str, Any]) -> int:
    version = router.metrics()["picklog_config_version"]
    told = len(router.log_lines("settings are in force"))
    router.write(config)
    until(lambda: len(router.log_lines("settings are in force")) > told, lambda: router.log_tail())
    now = router.metrics()["picklog_config_version"]
    assert now >= version
    return int(now)


def only_east(config: dict[str, Any]) -> None:
    config["dynamo"]["discovery"]["file"]["namespaces"] = ["east"]
    config["dynamo"]["shim"]["pools"] = [
        pool for pool in config["dynamo"]["shim"]["pools"] if pool["namespace"] == "east"
    ]


def ids(router: RouterProcess, namespace: str) -> set[str]:
    return {key for key, row in router.workers().items() if row["namespace"] == namespace}


@pytest.mark.req("MNS-01", "SHIM-06")
def test_pairs_stay_inside_their_namespace_and_both_serve(router: RouterProcess) -> None:
    until(lambda: len(router.workers()) == 4, "four workers")
    seen = set()
    for number in range(8):
        answer = router.chat(f"pair-{number}", streamed=number % 2 == 0)
        assert answer.status == 200, answer
        decode, prefill = (answer.headers[f"x-continuum-{role}-worker"] for role in ("decode", "prefill"))
        space = decode.partition("/")[0]
        assert prefill.partition("/")[0] == space
        assert answer.headers["x-continuum-backend"] == f"front-{space}"
        seen.add(space)
    assert seen == {"east", "west"}


@pytest.mark.req("REL-07")
def test_a_removed_namespace_takes_only_its_own_workers(
    router: RouterProcess, changing: Callable[..., int]
) -> None:
    east, west = ids(router, "east"), ids(router, "west")
    assert (len(east), len(west)) == (2, 2)
    traffic = Traffic(router, prefix="prune")
    with traffic.running(threads=3):
        traffic.wait_more(5)
        changing(only_east)
        until(lambda: not ids(router, "west"), "the removed namespace is empty")
        traffic.wait_more(10)
        assert ids(router, "east") == east
    assert traffic.bad == []
    departed = [str(record["fields"]) for record in router.records("KeysDropped", "KeyDeleted")]
    assert not [text for text in departed if "'east'" in text], departed
    assert router.log_lines("kind=restart", "namespaces")


@pytest.mark.req("REL-07")
def test_a_namespace_that_comes_back_serves_again(router: RouterProcess) -> None:
    until(lambda: len(router.workers()) == 4, "four workers again")
    until(lambda: router.chat("back").headers.get("x-continuum-backend") == "front-west", "west serves")
    router.verify()


@pytest.mark.req("REL-02", "CFG-18")
def test_what_concerns_picks_alone_changes_without_a_new_discovery_pass(
    router: RouterProcess, changing: Callable[..., int]
) -> None:
    passes = len(router.records("PassBegan"))

    def rename(config: dict[str, Any]) -> None:
        config["dynamo"]["load"]["max_staleness"] = "1s"
        config["dynamo"]["shim"]["model_map"] = {"public-name": "tiny-chat"}
        config["backends"][0]["models"] = config["backends"][1]["models"] = ["tiny-chat", "public-name"]

    assert router.chat("not-mapped", "public-name").status == 404
    version = changing(rename)
    until(lambda: "public-name" in router.models(), "the mapped name is listed")
    # frontends know the Dynamo name alone, so the answer is theirs to give; the pick is ours
    router.chat("mapped", "public-name")
    pick = router.explain("mapped")
    assert pick["pick"]["config_version"] == version
    assert pick["question"]["served_model"] == "tiny-chat"
    assert len(router.records("PassBegan")) == passes
    versions = [int(record["fields"]["version"]) for record in router.records("ConfigAdopted")]
    assert versions == sorted(set(versions))
    assert versions[-1] == version
    assert router.verify()["different"] == 0


@pytest.mark.req("REL-17")
def test_a_refused_file_changes_nothing_and_is_told_once(router: RouterProcess) -> None:
    version = router.metrics()["picklog_config_version"]
    wrong = copy.deepcopy(router.config)
    wrong["dynamo"]["load"]["max_staleness"] = "soon"
    router.write(wrong)
    until(lambda: router.log_lines("refused"), "the refusal is told")
    assert router.chat("still-served").status == 200
    put_in_force(router, router.config)
    assert len(router.log_lines("refused")) == 1
    assert router.metrics()["picklog_config_version"] == version
    assert router.metrics()['picklog_config_reloads_total{result="refused"}'] == 1


@pytest.mark.req("CFG-19", "REL-13", "REL-17")
def test_put_settings_are_adopted_with_masked_secrets_kept(router: RouterProcess) -> None:
    shown = router.document("/admin/config")
    assert SECRET not in json.dumps(shown)
    shown["dynamo"]["load"]["max_staleness"] = "2s"
    headers = {"content-type": "application/json"}
    status, body = router.ask("PUT", "/admin/config", json.dumps(shown).encode(), headers)
    assert status == 200, body
    told = json.loads(body)
    assert told["changed"] == ["dynamo.load.max_staleness"]
    assert router.metrics()["picklog_config_version"] == told["version"]
    assert router.chat("behind-the-put").status == 200
    assert router.explain("behind-the-put")["pick"]["config_version"] == told["version"]
    shown["dynamo"]["load"]["max_staleness"] = "never"
    status, body = router.ask("PUT", "/admin/config", json.dumps(shown).encode(), headers)
    assert status == 400
    assert json.loads(body)["error"]["code"] == "invalid_request"
    put_in_force(router, router.config | {"request": {"timeout": "250s"}})
    put_in_force(router, router.config)


@pytest.mark.req("REL-04", "REL-05", "RED-23", "ADM-02")
def test_discovery_can_be_switched_off_and_on_without_a_restart(
    router: RouterProcess, changing: Callable[..., int]
) -> None:
    restarts = restarts_of(router)
    pid = router.pid
    changing(lambda config: config["dynamo"].update(enabled=False))
    document = until(
        lambda: (found := router.document("/admin/dynamo/workers"))["enabled"] is False and found, "disabled"
    )
    assert (document["connected"], document["workers"]) == (False, [])
    assert restarts_of(router) == restarts, "a stop is told, not counted as a restart"
    assert router.log_lines("discovery was stopped")
    changing(lambda config: None)
    until(lambda: len(router.workers()) == 4, "enabled again")
    assert router.chat("enabled-again").status == 200
    assert router.pid == pid
    router.verify()


@pytest.mark.req("REL-04", "REL-08")
def test_another_store_replaces_the_watcher(
    router: RouterProcess, changing: Callable[..., int], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    restarts = restarts_of(router)
    changing(lambda c: c["dynamo"]["discovery"]["file"].update(root=str(tmp_path / "empty")))
    until(lambda: not router.workers(), "an empty store has no workers")
    assert router.log_lines("kind=restart", "connection")
    assert restarts_of(router) > restarts
    changing(lambda config: None)
    until(lambda: len(router.workers()) == 4, "the first store again")


def test_no_secret_is_anywhere_in_the_data_directory(router: RouterProcess) -> None:
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    body = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    assert router.ask("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)[0] == 200
    assert router.stop() == 0
    files = [path for path in router.folder.rglob("*") if path.is_file() and path != router.file]
    assert len(files) > 5
    for path in files:
        data = path.read_bytes()
        assert SECRET.encode() not in data, path
        assert KEY.encode() not in data, path


def restarts_of(router: RouterProcess) -> float:
    return router.metrics()['continuum_dynamo_discovery_events_total{kind="restart"}']
