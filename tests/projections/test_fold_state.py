"""The digests of a state."""

from __future__ import annotations

from projections.fold_state import State
from tests.projections.kv.kv_script import KvScript, stored

OLD = ["intake", "ledger", "load", "registry", "status"]


def test_a_state_without_blocks_has_the_digests_that_older_logs_name() -> None:
    assert [name for name, _ in State().digests()] == OLD


def test_blocks_have_a_digest_of_their_own() -> None:
    script = KvScript()
    assert [name for name, _ in script.fold.state.digests()] == OLD
    script.worker(1)
    script.batch(stored(1, "a"))
    digests = dict(script.fold.state.digests())
    assert sorted(digests) == ["intake", "kv", "ledger", "load", "registry", "status"]
    assert digests["kv"] == script.kv.digest
