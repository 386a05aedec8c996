"""A planned fleet: names, addresses and complaints, without a real Dynamo."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.demo.children import ChildFailed
from deploy.demo.fleet import Fleet, FleetFailed
from deploy.demo.fleet_plan import AGGREGATED_MODEL, PAIRED_MODEL, Discovery, FrontendSpec, demo_plan


def planned(tmp_path: Path, **changes: object) -> Fleet:
    plan = replace(demo_plan(), **changes)  # type: ignore[arg-type]
    return Fleet(plan, tmp_path / "fleet", python=Path(sys.executable), ready_s_max=20.0)


def test_processes_are_called_by_role_and_number(tmp_path: Path) -> None:
    fleet = planned(tmp_path)
    assert fleet.worker_names() == ["prefill-1", "prefill-2", "decode-1", "decode-2", "agg-1", "agg-2"]
    assert fleet.names() == [*fleet.worker_names(), "frontend-1"]
    with pytest.raises(ChildFailed, match="no process is called decode-9"):
        fleet.kill("decode-9")


def test_served_names_lead_to_the_model_for_frontends_that_take_them_for_paths(tmp_path: Path) -> None:
    fleet = planned(tmp_path)
    for model in (PAIRED_MODEL, AGGREGATED_MODEL):
        assert (fleet.run_dir / "models" / model / "tokenizer.json").is_file()


def test_frontends_have_ports_of_their_own(tmp_path: Path) -> None:
    fleet = planned(tmp_path, frontends=(FrontendSpec("a"), FrontendSpec("b", port=20_007)))
    urls = fleet.frontend_urls()
    assert urls["b"] == "http://127.0.0.1:20007"
    assert urls["a"] != urls["b"]


def test_file_store_belongs_to_file_discovery_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert planned(tmp_path).file_store == tmp_path / "fleet" / "file-kv"
    plan = replace(demo_plan(), discovery=Discovery.ETCD)
    assert Fleet(plan, tmp_path / "b", python=Path("p"), etcd_url="http://127.0.0.1:1").file_store is None
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FleetFailed, match="apt-get install etcd-server"):
        Fleet(plan, tmp_path / "c", python=Path("p"))


def test_silent_frontend_has_no_instances_and_no_models(tmp_path: Path) -> None:
    fleet = planned(tmp_path)
    assert (fleet.instances(), fleet.models(), fleet.workers()) == ([], [], [])


def test_fleet_that_cannot_start_says_which_process_ended_and_why(tmp_path: Path) -> None:
    """This interpreter has no Dynamo in it."""
    with pytest.raises(FleetFailed, match=r"ended by itself with status 1; the end of .*\.log:\n.*dynamo"):
        planned(tmp_path).up()
