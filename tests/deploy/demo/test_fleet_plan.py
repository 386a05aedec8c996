"""Plans make command lines that every supported release takes, and keep the fleet on loopback."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from deploy.demo.fleet_plan import (
    AGGREGATED_MODEL,
    PAIRED_MODEL,
    RELEASES,
    Discovery,
    Role,
    WorkerGroup,
    aggregated_plan,
    announces_loopback,
    demo_plan,
    fleet_environment,
    frontend_argv,
    pair_plan,
    worker_argv,
)


def test_demo_has_two_workers_of_every_role_and_two_models_behind_one_frontend() -> None:
    plan = demo_plan()
    assert {group.role: group.count for group in plan.groups} == {
        Role.PREFILL: 2,
        Role.DECODE: 2,
        Role.AGGREGATED: 2,
    }
    assert plan.models() == [PAIRED_MODEL, AGGREGATED_MODEL]
    assert plan.instances("dynamo") == 6
    assert len(plan.frontends) == 1


def test_each_role_registers_under_its_component() -> None:
    endpoints = {group.role: group.endpoint for group in demo_plan().groups}
    assert endpoints == {
        Role.PREFILL: "dyn://dynamo.prefill.generate",
        Role.DECODE: "dyn://dynamo.decode.generate",
        Role.AGGREGATED: "dyn://dynamo.backend.generate",
    }


def test_settings_of_a_group_reach_the_command_line() -> None:
    plan = aggregated_plan(1, dp=2, per_process=3, blocks=64, block_size=32, namespace="ns", extra=("--x",))
    argv = worker_argv(Path("py"), plan, plan.groups[0])
    for flag, value in {
        "--data-parallel-size": "2",
        "--num-workers": "3",
        "--num-gpu-blocks-override": "64",
        "--block-size": "32",
        "--endpoint": "dyn://ns.backend.generate",
        "--disaggregation-mode": "agg",
    }.items():
        assert argv[argv.index(flag) + 1] == value
    assert argv[-1] == "--x"


def test_frontend_is_in_direct_mode_on_loopback() -> None:
    plan = pair_plan()
    argv = frontend_argv(Path("py"), plan, plan.frontends[0], 8000)
    assert argv[argv.index("--router-mode") + 1] == "direct"
    assert argv[argv.index("--http-host") + 1] == "127.0.0.1"


def test_environment_of_the_caller_does_not_steer_the_fleet() -> None:
    base = {"DYN_NAMESPACE": "other", "ETCD_ENDPOINTS": "http://elsewhere", "PYTHONPATH": "x", "PATH": "/bin"}
    env = fleet_environment(base, demo_plan(), Path("/run-dir"), None)
    assert "ETCD_ENDPOINTS" not in env
    assert "PYTHONPATH" not in env
    assert env["PATH"] == "/bin"
    assert env["DYN_FILE_KV"] == "/run-dir/file-kv"
    assert env["DYN_TCP_RPC_HOST"] == "127.0.0.1"
    assert env["DYN_TCP_RESPONSE_STREAM_HOST"] == "lo", "the name of an interface, not an address"


def test_etcd_plan_points_every_process_to_it() -> None:
    plan = replace(demo_plan(), discovery=Discovery.ETCD, lease_ttl_s=3)
    env = fleet_environment({}, plan, Path("/run-dir"), "http://127.0.0.1:2379")
    assert (env["ETCD_ENDPOINTS"], env["ETCD_LEASE_TTL"]) == ("http://127.0.0.1:2379", "3")
    assert "DYN_FILE_KV" not in env


def test_only_releases_from_1_6_on_can_announce_loopback() -> None:
    assert [announces_loopback(release) for release in RELEASES] == [True, False, False]


def test_models_of_one_namespace_are_told_apart() -> None:
    groups = (
        WorkerGroup("a", Role.AGGREGATED, 1, model="m1", namespace="n1"),
        WorkerGroup("b", Role.AGGREGATED, 2, model="m2", namespace="n2", per_process=2),
    )
    plan = replace(demo_plan(), groups=groups)
    assert plan.models("n1") == ["m1"]
    assert plan.instances("n2") == 4
