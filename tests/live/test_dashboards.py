"""A real Prometheus scrapes a real `picklog serve` before a fleet: every panel draws, no alarm rings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.demo.addresses import free_port
from deploy.demo.chats import Answer
from deploy.demo.fleet import Fleet
from tests.live.prometheus import Prometheus
from tests.live.router_process import RouterProcess, pool_config, until

EMPTY = {
    ("Decode blocks in use, by worker", "{{worker}} #{{dp_rank}}"),  # workers of these releases send none
    ("Waiting in the owner's spool", "{{instance}} {{process}}"),  # of an owner on Kafka, see test_spool
    ("Waiting in the owner's spool", "facts {{instance}} {{process}}"),
    ("Share of confirmed blocks, by model", "{{model}}"),  # dynamo.kv is off
    # no stream workers are there
    ("Messages that stream workers have not written", "{{instance}}"),
    ("Messages that stream workers have not written", "{{instance}} waits for the {{peer}}"),
}
"""Lines of panels that draw nothing before one `serve` and the demo's fleet."""


@pytest.fixture(scope="module", params=[(), ("--routers", "2")], ids=["one process", "a group"])
def site(
    request: pytest.FixtureRequest, demo_fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RouterProcess, Prometheus]]:
    folder = tmp_path_factory.mktemp("dashboards")
    port = free_port()
    config = pool_config(demo_fleet, port)
    config["checkpoints"]["every"] = "2s"
    router = RouterProcess(folder / "router", config, port, options=request.param)
    prometheus: Prometheus | None = None
    try:
        router.start(models=2)
        places = {"router-1:8080": f"127.0.0.1:{router.port}"}
        prometheus = Prometheus(folder / "prometheus", places, labels=False)
        answers: list[Answer] = []

        def is_scraped_after_traffic() -> bool:
            answers.append(router.chat(f"panel-{len(answers)}", streamed=len(answers) % 2 == 0))
            assert prometheus is not None
            found = prometheus.ask("query", query="count_over_time(picklog_ready[1m])")
            is_long_scraped = found and found["result"] and int(found["result"][0]["value"][1]) >= 8
            kept = prometheus.ask("query", query="picklog_checkpoint_age_seconds >= 0")  # NaN at first
            return bool(is_long_scraped and kept and kept["result"])

        until(is_scraped_after_traffic, router.log_tail)
        assert all(answer.status == 200 for answer in answers)
        yield router, prometheus
    finally:
        if prometheus is not None:
            prometheus.close()
        router.close()


def test_every_panel_draws(site: tuple[RouterProcess, Prometheus]) -> None:
    assert site[1].blank() == EMPTY


def test_no_alarm_rings(site: tuple[RouterProcess, Prometheus]) -> None:
    assert site[1].ringing() == set()


def test_an_alarm_rings_once_its_cause_is_there(site: tuple[RouterProcess, Prometheus]) -> None:
    """A refused configuration rings at once; the others wait for minutes."""
    router, prometheus = site
    good = router.file.read_text()
    router.file.write_text("server: {bind: nowhere}\n")
    until(lambda: "PicklogReloadRefused" in prometheus.ringing(), router.log_tail)
    router.file.write_text(good)
    assert router.ready()[0] == 200, "the settings in force stay"
