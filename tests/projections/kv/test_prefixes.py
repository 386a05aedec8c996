"""What a question reads of the blocks that ranks hold: pools, block sizes, predictions, overlay."""

from __future__ import annotations

import pytest

from projections.bounds import PREDICTION_US_MAX
from projections.events.discovery import Keyspace
from projections.events.picks import BlockHashes
from projections.events.signals import SubscriptionState
from projections.fold_modes import COUNTED_ONCE, KV_INDEX, LOWER_TIERS, SIDE_INDEX
from projections.kv import prefixes as module
from projections.load.ledger import Ledger
from projections.load.store import LoadStore
from projections.view import Overlay, View
from tests.projections.fleet_script import NS, instance_key
from tests.projections.kv.kv_script import (
    HOST,
    KV,
    KvScript,
    S,
    chain,
    pick_of,
    ranks_card,
    removed,
    stored,
)

PREDICTED = KV._replace(predicted_ttl_us=2 * S, approximate_ttl_us=10 * S)


def side_script(*workers: int) -> KvScript:
    script = KvScript(KV_INDEX, SIDE_INDEX)
    for worker in workers or (1,):
        script.worker(worker)
    return script


@pytest.mark.req("KVX-09")
def test_only_ranks_of_the_model_and_the_eligible_namespaces_are_compared() -> None:
    script = KvScript()
    script.worker(1)
    script.worker(2, model="other")
    script.worker(3, namespace="elsewhere")
    for worker in (1, 2):
        script.batch(stored(1, "a", worker=worker), publisher_id=70 + worker)
    assert script.device("a") == {(1, 0): 1}
    other = script.question("a", model="other")
    assert [*script.view().prefixes(other, KV)] == [(NS, 2, 0)]
    assert script.view().prefixes(other._replace(namespaces=("elsewhere",)), KV) == {}


@pytest.mark.field("B-022")
def test_a_rank_is_compared_with_the_hashes_of_its_own_block_size() -> None:
    script = KvScript()
    script.worker(1)
    script.worker(2, kv_cache_block_size=32)
    script.worker(3, kv_cache_block_size=64)
    for worker in (1, 2, 3):
        script.batch(stored(1, "a", "b", worker=worker), publisher_id=70 + worker)
    question = script.question("a", "b", "c")
    (small,) = question.hashes
    large = BlockHashes(32, 1, 0, chain("a")[0])
    both = question._replace(hashes=(small, large))
    found = script.view().prefixes(both, KV)
    assert {key[1]: prefix.device for key, prefix in found.items()} == {1: 2, 2: 1}
    assert script.view().deepest(both, KV) == {16: 2, 32: 1}
    assert script.view().prefixes(question._replace(hashes=()), KV) == {}


@pytest.mark.req("DYN-02")
def test_the_deepest_match_counts_all_tiers_and_predictions() -> None:
    script = KvScript(KV_INDEX, LOWER_TIERS, SIDE_INDEX)
    script.worker(1)
    script.worker(2)
    script.batch(stored(1, "a"), stored(2, "a", "b", tier=HOST))
    question = script.question("a", "b", "c", "d")
    assert script.view().deepest(question, PREDICTED) == {16: 2}
    script.say(pick_of(script.question("a", "b", "c"), 2))
    assert script.view().deepest(question, PREDICTED) == {16: 3}


@pytest.mark.req("DYN-04")
def test_a_pick_counts_at_once_until_its_time_or_a_confirming_event() -> None:
    script = side_script()
    script.batch(stored(1, "a"))
    question = script.question("a", "b", "c")
    script.say(pick_of(question, 1))
    assert script.prefixes("a", "b", "c", "d", kv=PREDICTED) == {(1, 0): (1, 0, 0, 3)}
    assert script.prefixes("a", "b", kv=KV) == {(1, 0): (1, 0, 0, 0)}, "off in these settings"
    past = 2 * S - (script.fold.state.intake.stamp - question.asked_at)
    assert script.prefixes("a", "b", "c", kv=PREDICTED, after=past - 1)[1, 0] == (1, 0, 0, 3)
    assert script.prefixes("a", "b", "c", kv=PREDICTED, after=past)[1, 0] == (1, 0, 0, 0)
    script.batch(stored(2, "a", "b", "c", below=1))
    assert script.prefixes("a", "b", "c", kv=PREDICTED) == {(1, 0): (3, 0, 0, 0)}


@pytest.mark.req("DYN-04", "EVS-15")
@pytest.mark.parametrize(("flags", "predicted"), [((), 3), ((COUNTED_ONCE,), 0)])
def test_a_copy_of_a_pick_behind_the_confirming_event_predicts_only_without_the_flag(
    flags: tuple[int, ...], predicted: int
) -> None:
    script = KvScript(KV_INDEX, SIDE_INDEX, *flags)
    script.worker(1)
    made = pick_of(script.question("a", "b", "c"), 1)
    script.say(made)
    assert script.prefixes("a", "b", "c", kv=PREDICTED)[1, 0] == (0, 0, 0, 3)
    script.batch(stored(1, "a", "b", "c"), removed(2, "a", "b", "c"))
    assert script.prefixes("a", "b", "c", kv=PREDICTED).get((1, 0), (0, 0, 0, 0)) == (0, 0, 0, 0)
    script.say(made, writer=b"writer of copies")
    held = script.prefixes("a", "b", "c", kv=PREDICTED).get((1, 0), (0, 0, 0, 0))
    assert held == (0, 0, 0, predicted)


@pytest.mark.req("DYN-08")
def test_ranks_that_publish_nothing_are_predicted_for_longer() -> None:
    script = side_script(1, 2)
    script.batch(stored(1, "z"))
    assert script.view().publishes(NS, 1, 0) and not script.view().publishes(NS, 2, 0)
    assert (script.view().feeder(NS, 1, 0), script.view().feeder(NS, 2, 0)) == (70, None)
    for number, worker in enumerate((1, 2)):
        script.say(pick_of(script.question("a", "b"), worker, number=number))
    assert script.prefixes("a", "b", kv=PREDICTED) == {(1, 0): (0, 0, 0, 2), (2, 0): (0, 0, 0, 2)}
    assert script.prefixes("a", "b", kv=PREDICTED, after=5 * S) == {(2, 0): (0, 0, 0, 2)}
    assert script.prefixes("a", "b", kv=PREDICTED, after=11 * S) == {}


@pytest.mark.req("DYN-04")
def test_own_picks_beyond_the_as_of_count_until_the_as_of_holds_them() -> None:
    script = side_script(1, 2)
    overlay = Overlay()
    for number in range(20):
        overlay.add_pick(pick_of(script.question("a", "b"), 2, number=number))
    assert script.prefixes("a", "b", "c", kv=PREDICTED, overlay=overlay) == {(2, 0): (0, 0, 0, 2)}
    overlay.add_pick(pick_of(script.question("a", "b", "c"), 1, number=20))
    assert script.prefixes("a", "b", "c", kv=PREDICTED, overlay=overlay)[1, 0] == (0, 0, 0, 3)
    overlay.folded(20)
    assert script.prefixes("a", "b", kv=PREDICTED, overlay=overlay) == {(1, 0): (0, 0, 0, 2)}
    overlay.folded(21)
    assert script.prefixes("a", "b", kv=PREDICTED, overlay=overlay) == {}
    assert len(overlay.predictions()) == 0 and len(overlay) == 0


@pytest.mark.req("DYN-08")
def test_a_prediction_is_kept_ten_minutes_of_log_time() -> None:
    script = side_script()
    forever = KV._replace(approximate_ttl_us=PREDICTION_US_MAX * 2)
    question = script.question("a")
    script.say(pick_of(question, 1))
    for _ in range(11):
        script.tick(50 * S)
    left = PREDICTION_US_MAX - (script.time - question.asked_at)
    assert script.prefixes("a", kv=forever, after=left - 1) == {(1, 0): (0, 0, 0, 1)}
    assert script.prefixes("a", kv=forever, after=left) == {}
    script.tick(left - 1)
    assert len(script.kv.side) == 1
    script.tick(1)
    assert len(script.kv.side) == 0


@pytest.mark.req("KVX-18")
def test_predictions_of_a_worker_that_left_do_not_wait_for_its_return() -> None:
    script = side_script(1, 2)
    script.say(pick_of(script.question("a"), 1))
    script.delete(Keyspace.INSTANCES, instance_key(1))
    assert script.prefixes("a", kv=PREDICTED) == {}
    script.worker(1)
    assert script.prefixes("a", kv=PREDICTED) == {}
    script.say(pick_of(script.question("a"), 9))
    assert len(script.kv.side) == 0, "nobody is there to be predicted for"


def test_the_ranks_of_a_pool_are_looked_up_again_when_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POOLS_KEPT", 2)
    script = KvScript()
    script.worker(1, **ranks_card(2))
    script.batch(stored(1, "a"))
    assert script.device("a") == {(1, 0): 1}
    script.batch(stored(1, "a", rank=1))
    assert script.device("a") == {(1, 0): 1, (1, 1): 1}
    for size in (16, 17, 18, 19, 16):
        script.view().prefixes(script.question("a", size=size), KV)
    assert script.device("a") == {(1, 0): 1, (1, 1): 1}


def test_many_ranks_of_one_depth_are_found_together() -> None:
    script = KvScript()
    script.worker(1, **ranks_card(40))
    script.batch(*(stored(1, *"ab"[: 1 + rank % 2], rank=rank) for rank in range(40)))
    assert script.device("a", "b") == {(1, rank): 1 + rank % 2 for rank in range(40)}


def test_a_view_without_blocks_says_so() -> None:
    script = KvScript()
    script.worker(1)
    question = script.question("a")
    bare = View(0, script.fleet, LoadStore(), Ledger(), Overlay())
    assert bare.prefixes(question, KV) == {} and bare.deepest(question, KV) == {16: 0}
    assert not bare.publishes(NS, 1, 0)
    assert script.view().deepest(question, KV) == {16: 0}


@pytest.mark.req("BRS-11")
def test_predictions_outlive_a_publisher_that_is_down() -> None:
    script = side_script()
    script.batch(stored(1, "a"))
    script.kv_subscription(SubscriptionState.BACKOFF)
    script.tick(59 * S)
    script.say(pick_of(script.question("b"), 1))
    assert script.prefixes("b", kv=PREDICTED, after=3 * S) == {(1, 0): (0, 0, 0, 1)}, "as of one unheard"


@pytest.mark.req("KVX-18")
@pytest.mark.field("B-022")
def test_a_worker_that_comes_back_with_another_block_size_is_compared_by_that_alone() -> None:
    script = KvScript()
    script.worker(1)
    script.batch(stored(1, "a", "b"))
    script.delete(Keyspace.INSTANCES, instance_key(1))
    script.worker(1, kv_cache_block_size=64)
    assert script.device("a", "b") == {} and script.blocks() == 0
    script.batch(stored(1, "long"), publisher_id=71)
    large = script.question("long", size=64)
    assert [prefix.device for prefix in script.view().prefixes(large, KV).values()] == [1]
    assert script.device("long") == {}, "hashes of 16 tokens are not asked of it"


@pytest.mark.req("KVX-09")
def test_depths_by_slots_say_what_prefixes_by_rank_say() -> None:
    script = KvScript()
    for worker, words in ((1, "abc"), (2, "ab"), (3, "xyz"), (4, "abcd")):
        script.worker(worker, kv_cache_block_size=32 if worker == 4 else 16)
        script.batch(stored(1, *words, worker=worker), publisher_id=70 + worker)
    small, large = script.question("a", "b", "c").hashes[0], BlockHashes(32, 2, 0, chain("a", "b")[0])
    question = script.question("a")._replace(hashes=(small, large))
    depths = script.view().device_depths(question)
    assert depths is not None
    found = {
        depths.names[slot]: depth
        for depth, mask in depths.groups
        for slot in range(len(depths.names))
        if mask >> slot & 1
    }
    assert found == {key: one.device for key, one in script.view().prefixes(question, KV).items()}
    assert {key[1]: depth for key, depth in found.items()} == {1: 3, 2: 2, 4: 2}


@pytest.mark.req("DYN-02", "DYN-04")
def test_depths_by_slots_are_not_told_where_more_than_the_device_counts() -> None:
    for mode in (LOWER_TIERS, SIDE_INDEX):
        script = KvScript(KV_INDEX, mode)
        script.worker(1)
        script.batch(stored(1, "a"))
        assert script.view().device_depths(script.question("a")) is None
    off = View(0, script.view().fleet, LoadStore(), Ledger(), Overlay())
    assert off.device_depths(script.question("a")) is None
