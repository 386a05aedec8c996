"""The peers that other live tests lean on do what their fixtures promise."""

from __future__ import annotations

import time

import pytest

from deploy.demo.addresses import listening_ports
from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import AGGREGATED_MODEL, PAIRED_MODEL
from tests.live.peers import EtcdRefused, EtcdServer


@pytest.mark.live("etcd")
def test_etcd_comes_back_on_its_port_with_its_data_after_a_kill(etcd: EtcdServer) -> None:
    revision = etcd.put("v1/instances/a", {"n": 1})
    etcd.kill()
    assert not etcd.is_running
    etcd.start()
    assert etcd.get_prefix("v1/") == {"v1/instances/a": '{"n": 1}'}
    assert etcd.revision() == revision


@pytest.mark.live("etcd")
def test_restored_etcd_has_a_smaller_revision_and_the_old_keys(etcd: EtcdServer) -> None:
    etcd.put("v1/a", "old")
    saved = etcd.save()
    newest = etcd.put_many((f"v1/b/{n}", "x") for n in range(250))
    etcd.put("v1/a", "new")
    etcd.restore(saved)
    assert etcd.get_prefix("v1/") == {"v1/a": "old"}
    assert etcd.revision() < newest
    etcd.wipe()
    assert (etcd.get_prefix("v1/"), etcd.revision()) == ({}, 1)


@pytest.mark.live("etcd")
def test_frozen_etcd_keeps_its_socket_and_answers_again_when_thawed(etcd: EtcdServer) -> None:
    etcd.freeze()
    with pytest.raises(OSError):
        etcd._opener().open(etcd.endpoint + "/health", timeout=0.5)
    etcd.thaw()
    assert etcd.revision() == 1


@pytest.mark.live("etcd")
def test_etcd_with_client_certificates_refuses_a_client_without_one(etcd_mtls: EtcdServer) -> None:
    etcd_mtls.put("v1/a", "secret")
    assert etcd_mtls.get_prefix("v1/") == {"v1/a": "secret"}
    assert etcd_mtls.tls is not None
    import ssl
    import urllib.request

    context = ssl.create_default_context(cafile=str(etcd_mtls.tls.ca))
    with pytest.raises(OSError):
        urllib.request.urlopen(etcd_mtls.endpoint + "/health", timeout=3, context=context)


@pytest.mark.live("etcd")
def test_etcd_users_reach_only_their_prefixes(etcd_with_users: EtcdServer) -> None:
    etcd_with_users.put("v1/event_sources/x", "1")
    etcd_with_users.login("narrow", "narrow-secret")
    assert etcd_with_users.get_prefix("v1/instances/") == {}
    with pytest.raises(EtcdRefused, match="permission denied"):
        etcd_with_users.get_prefix("v1/event_sources/")
    with pytest.raises(EtcdRefused, match="permission denied"):
        etcd_with_users.put("v1/instances/x", "1")


@pytest.mark.live("etcd")
def test_keys_of_a_revoked_lease_go_in_one_revision(etcd: EtcdServer) -> None:
    lease = etcd.grant_lease(30)
    for n in range(3):
        etcd.put(f"v1/{n}", "x", lease=lease)
    before = etcd.revision()
    etcd.revoke_lease(lease)
    assert etcd.get_prefix("v1/") == {}
    assert etcd.revision() == before + 1


@pytest.mark.live("dynamo")
def test_one_frontend_lists_the_paired_and_the_aggregated_model(demo_fleet: Fleet) -> None:
    assert set(demo_fleet.models()) == {PAIRED_MODEL, AGGREGATED_MODEL}
    rows = demo_fleet.workers()
    assert [row["name"] for row in rows] == demo_fleet.worker_names()
    assert len({row["instance_id"] for row in rows}) == 6
    assert all(row["instance_id"].isdecimal() and row["pid"] for row in rows)


@pytest.mark.live("dynamo")
def test_stopped_worker_takes_its_records_back_and_returns_under_a_new_id(demo_fleet: Fleet) -> None:
    old = demo_fleet.instance_ids("agg-2")
    pid = demo_fleet.pid("agg-2")
    assert pid is not None
    demo_fleet.stop("agg-2")
    assert listening_ports(pid) == set()
    began = time.monotonic()
    demo_fleet.wait_instances(5)
    assert time.monotonic() - began < 8, "records are to go at once, not when they expire"
    demo_fleet.start("agg-2")
    demo_fleet.wait_instances(6)
    assert len(demo_fleet.instance_ids("agg-2")) == 1
    assert demo_fleet.instance_ids("agg-2") != old
