"""Engines beside real workers: each is bound to its own by what a restart leaves, through a kill.

The engines are sockets of this test, since mock workers have none; the workers, their records and the
lease that outlives a killed one are real.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq

from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import aggregated_plan
from tests.ingest.wire.engine_batches import batch, engine_message, stored_items
from tests.live.conftest import FleetMaker
from tests.live.router_process import RouterProcess, until

pytestmark = [pytest.mark.live("dynamo"), pytest.mark.timeout(300)]
NAMES = ("agg-1", "agg-2")
BLOCK = 16


class Engine:
    """An engine's publisher, and how many messages it has sent."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._socket = context.socket(zmq.XPUB)
        self.endpoint = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._sent = 0

    def store(self, name: int, first_token: int) -> None:
        """Say that one block is stored at the root, once somebody listens."""
        if not self._sent:
            assert self._socket.poll(60_000), "nobody subscribes"
            self._socket.recv()
        ids = [*range(first_token, first_token + BLOCK)]
        self._socket.send_multipart(engine_message(self._sent, batch(stored_items([name], ids))))
        self._sent += 1


@pytest.fixture
def engines() -> Iterator[dict[str, Engine]]:
    with zmq.Context() as context:
        yield {name: Engine(context) for name in NAMES}
        context.destroy(linger=0)


def system_port(fleet: Fleet, name: str) -> int:
    """The port that a worker process was given for its own files."""
    words = Path(f"/proc/{fleet.pid(name)}/environ").read_bytes().split(b"\0")
    return int(dict(word.partition(b"=")[::2] for word in words)[b"DYN_SYSTEM_PORT"])


def rows(router: RouterProcess) -> list[tuple[str, str | None]]:
    """State and worker of each engine source."""
    document = router.document("/admin/dynamo/workers")
    return [(row["state"], row["worker_id"]) for row in document["kv"]["engine_sources"]]


def credited(router: RouterProcess) -> dict[str, int]:
    """Blocks that each worker holds, as the router's state has them."""
    ranks = router.document("/admin/state?at=end")["index"]["ranks"]
    return {row["worker_id"]: row["blocks"] for row in ranks if row["blocks"]}


@pytest.mark.req("KVX-05")
@pytest.mark.parametrize("release", ["1.6.1", "1.4.2"])
def test_an_engine_follows_its_worker_through_a_kill_while_its_neighbour_on_the_host_keeps_its_own(
    release: str, make_fleet: FleetMaker, tmp_path: Path, engines: dict[str, Engine]
) -> None:
    fleet = make_fleet(dataclasses.replace(aggregated_plan(2), system_ports=True), release=release)
    sources = [
        {"endpoint": engines[name].endpoint, "block_size": BLOCK, "system_port": system_port(fleet, name)}
        for name in NAMES
    ]
    ids = {name: fleet.instance_ids(name)[0] for name in NAMES}
    router = RouterProcess.before(fleet, tmp_path / "router", kv={"enabled": True, "engine_sources": sources})
    try:
        router.start()
        holds = partial(until_rows, router)
        holds([("bound", ids["agg-1"]), ("bound", ids["agg-2"])])
        for number, name in enumerate(NAMES, 1):
            engines[name].store(number, 1_000 * number)
        until(lambda: credited(router) == {ids["agg-1"]: 1, ids["agg-2"]: 1}, lambda: str(credited(router)))

        fleet.kill("agg-1")
        fleet.start("agg-1")
        until(lambda: ids["agg-1"] not in router.workers(), "the lease of the killed one is over", 90)
        after = until(lambda: [one for one in router.workers() if one != ids["agg-2"]], "it is back", 90)[0]
        holds([("bound", after), ("bound", ids["agg-2"])])
        assert after != ids["agg-1"]
        assert credited(router) == {ids["agg-2"]: 1}, "nothing is carried over"
        engines["agg-1"].store(3, 3_000)
        until(lambda: credited(router) == {after: 1, ids["agg-2"]: 1}, lambda: str(credited(router)))
    finally:
        router.close()
    assert router.verify()["different"] == 0


def until_rows(router: RouterProcess, expected: list[tuple[str, str | None]]) -> None:
    until(lambda: rows(router) == expected, lambda: f"{rows(router)}, not {expected}", 90)
