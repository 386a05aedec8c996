"""Which workers may serve, and who may be paired."""

from __future__ import annotations

import pytest

from projections.registry.fleet import Role, Worker
from router.picker.candidates import partners, pools_of
from tests.router.picker.builders import a_fleet, a_question, a_worker, some_settings

P, D, A = Role.PREFILL, Role.DECODE, Role.AGGREGATED


def pools(
    *workers: Worker, namespaces: tuple[str, ...] = ("dynamo",)
) -> list[tuple[str, list[int], list[int]]]:
    found = pools_of(
        a_fleet(*workers), a_question(namespaces=namespaces), some_settings(namespaces=("dynamo", "other"))
    )
    return [
        (pool.namespace, [w.key.instance_id for w in pool.decode], [w.key.instance_id for w in pool.prefill])
        for pool in found.pools
    ]


@pytest.mark.req("MIX-02", "MIX-03", "MIX-05")
@pytest.mark.parametrize(
    ("roles", "decode", "prefill"),
    [
        ([P, D], [2], [1]),
        ([P, D, A], [2], [1]),
        ([A, D], [1, 2], []),
        ([D, A], [1, 2], []),
        ([P, A], [2], [1]),
        ([D, D], [1, 2], []),
        ([A], [1], []),
    ],
)
def test_roles_of_a_namespace_decide_who_competes(
    roles: list[Role], decode: list[int], prefill: list[int]
) -> None:
    workers = [a_worker(place, role) for place, role in enumerate(roles, 1)]
    assert pools(*workers) == [("dynamo", decode, prefill)]


def test_prefill_workers_alone_serve_nothing() -> None:
    assert pools(a_worker(1, P)) == []


@pytest.mark.req("MIX-02")
def test_rules_hold_per_namespace() -> None:
    workers = [
        a_worker(1, P),
        a_worker(2, D),
        a_worker(3, A),
        a_worker(4, A, "other"),
        a_worker(5, D, "other"),
    ]
    assert pools(*workers, namespaces=("other", "dynamo")) == [("dynamo", [2], [1]), ("other", [4, 5], [])]


@pytest.mark.req("PICK-12")
@pytest.mark.field("B-012")
def test_only_routed_roles_of_the_served_model_are_candidates() -> None:
    workers = [
        a_worker(1, A),
        a_worker(2, A, model="other"),
        a_worker(3, Role.UNKNOWN),
        a_worker(4, Role.ENCODE),
        a_worker(5, A, model=None),
    ]
    assert pools(*workers) == [("dynamo", [1], [])]


@pytest.mark.req("PICK-13")
@pytest.mark.field("B-011")
def test_namespace_must_be_in_question_and_settings_and_held() -> None:
    workers = [a_worker(1, A), a_worker(2, A, "other"), a_worker(3, A, "unnamed")]
    assert [pool[0] for pool in pools(*workers, namespaces=("other", "unnamed", "absent"))] == ["other"]


@pytest.mark.req("MIX-01", "MIX-04")
def test_aggregated_worker_has_no_partner_though_prefill_workers_stand_beside_it() -> None:
    (pool,) = pools_of(a_fleet(a_worker(1, P), a_worker(2, A)), a_question(), some_settings()).pools
    assert pool.prefill and partners(pool, pool.decode[0]) == ()


def test_decode_worker_is_paired_with_its_namespaces_prefill_pool() -> None:
    (pool,) = pools_of(a_fleet(a_worker(1, P), a_worker(2, D)), a_question(), some_settings()).pools
    assert partners(pool, pool.decode[0]) == pool.prefill
