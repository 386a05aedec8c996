"""A running router beside a fleet: its shadow, its verifier, and what may be given away of its log."""

from __future__ import annotations

import copy
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.capture_reader import CaptureReader
from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import FleetPlan, FrontendSpec, Role, WorkerGroup
from replay.log_walk import records_of
from tests.live.conftest import FleetMaker
from tests.live.router_process import TRAFFIC_MODEL, RouterProcess, picklog, until

pytestmark = pytest.mark.live("dynamo")
PROMPT = "The xylophone of Quetzaltenango weighs 4711 ounces."
KEY, SECRET = "client-key-77aa90-of-somebody", "backend-secret-5b1f-of-ours"


@pytest.fixture(scope="module")
def fleet(make_fleet: FleetMaker) -> Fleet:
    return make_fleet(
        FleetPlan((WorkerGroup("agg", Role.AGGREGATED, 3),), (FrontendSpec("frontend-1", "dynamo"),))
    )


@pytest.fixture(scope="module")
def router(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    router = RouterProcess.before(fleet, tmp_path_factory.mktemp("router"))
    router.config["backends"][0]["api_key"] = SECRET
    router.config["api_keys"] = {"mode": "permissive", "keys": [{"id": "someone", "key": KEY}]}
    router.config["checkpoints"] = {"bytes": "64MiB", "every": "5s"}
    other: dict[str, Any] = copy.deepcopy(router.config)
    other["dynamo"]["load"]["max_staleness"] = "100ms"
    (router.folder / "other.yaml").write_text(json.dumps(other))
    router.config["shadow"] = {"config": "other.yaml"}
    router.write(router.config)
    try:
        yield router.start()
    finally:
        router.close()


def asked(router: RouterProcess) -> float:
    found = router.metrics()
    return sum(found[f'picklog_shadow_picks_total{{result="{one}"}}'] for one in ("same", "moved"))


def chats(router: RouterProcess, prefix: str, count: int = 6) -> None:
    for number in range(count):
        answer = router.chat(f"{prefix}-{number}", text=PROMPT, streamed=number % 2 == 0)
        assert answer.status == 200, answer


def query(router: RouterProcess, sql: str) -> list[Any]:
    said = picklog("audit", "query", sql, "--format", "json", "--log", str(router.data))
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    return list(found["rows"] if isinstance(found, dict) else found)


@pytest.mark.req("DYN-12")
def test_every_pick_has_a_row_of_the_shadow_and_its_figures_are_metrics(router: RouterProcess) -> None:
    until(lambda: router.metrics()["picklog_shadow_active"] == 1, lambda: router.log_tail())
    chats(router, "shadowed")
    until(lambda: asked(router) >= 6, lambda: str(router.metrics()) + router.log_tail())
    sql = "SELECT p.request_id FROM picks p JOIN shadow_picks s USING (lane, log_offset)"
    until(lambda: len(query(router, sql)) >= 6, lambda: router.log_tail())


@pytest.mark.req("EVS-06")
def test_live_picks_are_repeated_and_all_of_them_equal(router: RouterProcess) -> None:
    before = router.metrics()['picklog_picks_verified_total{verdict="equal"}']
    chats(router, "verified")
    until(lambda: router.metrics()['picklog_picks_verified_total{verdict="equal"}'] > before, "one repeated")
    assert router.metrics()["picks_unreproduced_total"] == 0
    assert not router.log_lines("could not be reproduced")


@pytest.mark.req("DYN-12", "REL-01")
def test_a_reload_takes_the_shadow_away_and_brings_it_back(router: RouterProcess) -> None:
    without = {name: value for name, value in router.config.items() if name != "shadow"}
    router.write(without)
    until(lambda: router.metrics()["picklog_shadow_active"] == 0, lambda: router.log_tail())
    before = asked(router)
    chats(router, "unshadowed", 3)
    router.write(router.config)
    until(lambda: router.metrics()["picklog_shadow_active"] == 1, lambda: router.log_tail())
    chats(router, "again", 3)
    until(lambda: asked(router) >= before + 3, "asked again")


@pytest.mark.req("EVS-18")
def test_no_prompt_answer_key_or_credential_is_in_the_data_directory_or_a_capture(
    router: RouterProcess, tmp_path: Path
) -> None:
    answer = router.chat("grep-me", text=PROMPT)
    assert answer.text
    status, body = router.ask(
        "POST",
        "/v1/chat/completions",
        json.dumps(
            {"model": TRAFFIC_MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": PROMPT}]}
        ).encode(),
        {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    assert status == 200, body
    capture = tmp_path / "a.capture"
    said = picklog("capture", "export", "--log", str(router.data), "--out", str(capture))
    assert said.returncode == 0, said.stderr
    words = [word for word in PROMPT.strip(".").split() if len(word) > 7]
    forbidden = [text.encode() for text in (KEY, SECRET, *words, PROMPT)]
    found: list[tuple[str, bytes]] = []
    for path in sorted(router.data.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            found += [(path.name, text) for text in forbidden if text in data]
    reader = CaptureReader(capture)
    plain = b"".join(data for _, data in records_of(reader, reader.first_offset()))
    found += [("capture", text) for text in forbidden if text in plain]
    assert b"grep-me" in plain  # the search sees what is there
    assert found == []


@pytest.mark.req("EVS-18", "EVS-19")
def test_a_redacted_capture_of_a_real_fleet_tells_no_address_and_gives_the_same_verdicts(
    router: RouterProcess, fleet: Fleet, tmp_path: Path
) -> None:
    whole, redacted = tmp_path / "a.capture", tmp_path / "b.capture"
    for path, words in ((whole, ()), (redacted, ("--redact",))):
        said = picklog("capture", "export", "--log", str(router.data), "--out", str(path), *words)
        assert said.returncode == 0, said.stderr
    before, after = router.verify(whole), router.verify(redacted)
    assert after["unverifiable"] == 0 < after["picks"]
    assert after["equal"] == after["picks"] == before["picks"]
    reader, original = CaptureReader(redacted), CaptureReader(whole)
    plain = b"".join(data for _, data in records_of(reader, reader.first_offset()))
    there = b"".join(data for _, data in records_of(original, original.first_offset()))
    secrets = [b"127.0.0.1", str(fleet.file_store).encode(), b"chat_template"]
    host = socket.gethostname().encode()
    if len(host) >= 6:  # a shorter name stands in digests by chance
        secrets.append(host)
    assert [text for text in secrets if text in there], "the search has nothing to find"
    assert [text for text in secrets if text in plain] == []
