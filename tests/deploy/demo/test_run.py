"""What the driver writes is a configuration the router takes, and two runs never share a folder."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.config_load import load_config
from deploy.demo import run
from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import AGGREGATED_MODEL, PAIRED_MODEL, demo_plan
from deploy.demo.pins import pins_of


def fleet(tmp_path: Path, release: str = "1.6.1") -> Fleet:
    """A fleet that is planned and not started."""
    return Fleet(demo_plan(frontend_port=20_001), tmp_path / "fleet", release=release, python=Path("python"))


def load(tmp_path: Path, text: str):  # type: ignore[no-untyped-def]
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load_config(path, environment={}, extras=frozenset({"kv"}))


def test_demo_configuration_is_valid_without_a_warning(tmp_path: Path) -> None:
    planned = fleet(tmp_path)
    loaded = load(tmp_path, run.demo_config(planned, 8123))
    assert loaded.report.warnings == ()
    config = loaded.config
    assert config.dynamo.discovery.file.root == str(planned.file_store)
    assert config.backends[0].url == "http://127.0.0.1:20001"
    assert config.backends[0].models == (PAIRED_MODEL, AGGREGATED_MODEL)
    assert config.dynamo.shim.backends == (config.backends[0].name,)
    assert config.dynamo.enabled
    assert config.disaggregated_serving.enabled
    assert config.dynamo.kv.enabled
    assert config.dynamo.kv.pinned_artifacts == pins_of()


def test_rewritten_configuration_differs_in_the_switch_alone(tmp_path: Path) -> None:
    planned = fleet(tmp_path)
    on, off = (run.demo_config(planned, 8123, is_kv_enabled=is_on).splitlines() for is_on in (True, False))
    assert [pair for pair in zip(on, off, strict=True) if pair[0] != pair[1]] == [
        ("    enabled: true", "    enabled: false")
    ]


def test_workers_of_a_release_that_announces_loopback_are_dialled_nowhere_else(tmp_path: Path) -> None:
    config = load(tmp_path, run.demo_config(fleet(tmp_path), 8123)).config
    assert config.dynamo.load.direct_allow_cidrs == ("127.0.0.0/8",)


def test_second_demo_in_one_folder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with (
        run._only_one(tmp_path),
        pytest.raises(run.DemoFailed, match=f"pid {os.getpid()}"),
        run._only_one(tmp_path),
    ):
        pytest.fail("two demos in one folder")
    with run._only_one(tmp_path):
        assert (tmp_path / "lock").read_text() == str(os.getpid())


def test_data_of_the_run_before_is_kept_once(tmp_path: Path) -> None:
    for round_number in (1, 2, 3):
        demo = run.Demo(run._parse(["--run-dir", str(tmp_path), "--once"]))
        demo._clear_run_dir()
        demo.data_dir.mkdir()
        (demo.data_dir / "round").write_text(str(round_number))
    assert (tmp_path / "data" / "round").read_text() == "3"
    assert (tmp_path / "data.before" / "round").read_text() == "2"


@contextmanager
def foreign_router() -> Iterator[int]:
    """The port of somebody else's router, which is ready and serves the models of the demo."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            body = json.dumps(
                {"ready": True, "data": [{"id": PAIRED_MODEL}, {"id": AGGREGATED_MODEL}]}
            ).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_another_router_that_took_the_port_meanwhile_is_not_taken_for_ours(tmp_path: Path) -> None:
    picklog = tmp_path / "picklog"
    picklog.write_text("#!/bin/sh\nsleep 0.3\necho address already in use\nexit 3\n")
    picklog.chmod(0o755)
    with foreign_router() as port:
        demo = run.Demo(run._parse(["--run-dir", str(tmp_path), "--once", "--picklog", str(picklog)]))
        demo.router_port = port
        try:
            with pytest.raises(run.DemoFailed, match=r"status 3(?s:.*)address already in use"):
                demo._start_router(fleet(tmp_path))
        finally:
            demo._nursery.close(patience_s=1)


def test_unknown_release_is_told_and_nothing_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PICKLOG_VENVS", str(tmp_path / "venvs"))
    status = run.main(["--run-dir", str(tmp_path / "run"), "--once", "--release", "0.0.1"])
    assert status == 1
    assert "no pins for Dynamo 0.0.1" in capsys.readouterr().err
