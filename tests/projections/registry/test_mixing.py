"""Models served by aggregated workers beside a prefill/decode pool: said once while it lasts."""

from __future__ import annotations

import pytest

from projections.events.discovery import Keyspace
from projections.notices import MixedRoles
from tests.projections.fleet_script import NS, Script, instance_key


def mixed(script: Script) -> list[MixedRoles]:
    return [notice for notice in script.all_notices if isinstance(notice, MixedRoles)]


@pytest.mark.req("MIX-06")
def test_a_model_that_begins_to_be_mixed_is_named_once_with_its_counts() -> None:
    script = Script()
    script.worker(1, worker_type="aggregated")
    script.worker(2, worker_type="decode")
    assert [m.named for m in mixed(script)] == [((NS, "tiny", 0, 1, 1),)]
    for n in range(3, 8):
        script.worker(n, worker_type="prefill")
    assert len(mixed(script)) == 1


@pytest.mark.req("MIX-08")
def test_unmixing_and_mixing_again_is_said_again() -> None:
    script = Script()
    script.worker(1, worker_type="aggregated")
    script.worker(2, worker_type="prefill")
    script.delete(Keyspace.INSTANCES, instance_key(2))
    script.worker(3, worker_type="decode")
    assert [m.named[0][2:] for m in mixed(script)] == [(1, 0, 1), (0, 1, 1)]


@pytest.mark.req("MIX-07")
def test_a_pass_names_eight_pairs_and_counts_the_rest() -> None:
    script = Script()
    script.pass_began()
    for n in range(20):
        script.worker(2 * n + 1, worker_type="aggregated", model=f"m{n:02}")
        script.worker(2 * n + 2, worker_type="decode", model=f"m{n:02}")
    assert mixed(script) == [], "a fleet that is being listed is not judged"
    script.pass_settled()
    (notice,) = mixed(script)
    assert [pair[1] for pair in notice.named] == [f"m{n:02}" for n in range(8)] and notice.suppressed == 12


def test_other_namespaces_and_models_and_roles_do_not_mix() -> None:
    script = Script()
    script.worker(1, worker_type="aggregated")
    script.worker(2, worker_type="decode", namespace="other")
    script.worker(3, worker_type="decode", model="another")
    script.worker(4, worker_type="encode")
    script.worker(5, worker_type=None)
    assert mixed(script) == []


def test_a_listing_of_one_namespace_leaves_another_judged_at_once() -> None:
    script = Script()
    script.pass_began(namespaces=("other",))
    script.worker(1, worker_type="aggregated")
    script.worker(2, worker_type="decode")
    assert len(mixed(script)) == 1
