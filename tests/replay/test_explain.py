"""An explanation names every candidate, the winner, the end, and whether it repeats."""

from typing import Any

import pytest

from projections.bounds import SECOND_US
from projections.events.picks import Fault
from projections.events.signals import StorageTier
from replay.engine import records_of
from replay.explain import PickNotFound, explain, find_pick
from tests.replay.prefix_log import KV, PrefixLog, ask
from tests.replay.recorded_log import RecordedLog


def told(world: RecordedLog, name: str) -> dict[str, Any]:
    return explain(world.log, None, name, lambda log_time: f"t{log_time}")


def spread_log() -> RecordedLog:
    """Worker 2 is loaded, worker 3 is silent under load, then ten picks of one replica."""
    world = RecordedLog()
    world.sample(3, 500)
    world.pass_time(4 * SECOND_US)
    world.sample(1, 10)
    world.sample(2, 900)
    replica = world.replica()
    first = replica.ask("first", tokens=64)
    replica.end(first, Fault.FAULT)
    replica.read()
    replica.ask("second", tokens=64)
    return world


@pytest.mark.req("EVS-07")
def test_an_explanation_holds_every_candidate_with_cost_verdict_and_age() -> None:
    found = told(spread_log(), "first")
    decode = found["phases"]["decode"]
    rows = {row["worker"]: row for row in decode["candidates"]}
    assert set(rows) == {"1", "2", "3"}
    assert decode["winner"]["worker"] == "1"
    assert decode["runner_up"]["worker"] == "2"
    assert decode["reason"] == "load"
    assert decode["margin"] == pytest.approx((900 - 10) / 1000)
    assert rows["1"]["cost"] == pytest.approx((10 + 4) / 1000)
    assert rows["3"]["cost"] is None
    assert rows["3"]["verdict"] == "silent"
    assert rows["3"]["sample_age_us"] == 4 * SECOND_US
    assert found["phases"]["prefill"] == {
        **found["phases"]["prefill"],
        "winner": None,
        "reason": "no_prefill_pool",
        "candidates": [],
    }
    assert found["repeated"] == "equal"


def test_a_suspect_worker_is_shown_with_what_excluded_it_and_the_end_that_did_so() -> None:
    world = spread_log()
    first, second = told(world, "first"), told(world, "second")
    assert first["end"]["status"] == "failed"
    assert first["end"]["fault"] == "fault"
    rows = {row["worker"]: row for row in second["phases"]["decode"]["candidates"]}
    assert (rows["1"]["verdict"], rows["1"]["excluded_reason"]) == ("excluded", "suspect")
    assert second["phases"]["decode"]["winner"]["worker"] == "2"
    assert second["end"] is None


def test_a_pick_answers_to_its_id_its_request_its_offset_and_to_last() -> None:
    world = spread_log()
    offset, fact = find_pick(world.log, "second")
    for name in (fact.pick_id.hex(), str(offset), f"0:{offset}", "last"):
        assert find_pick(world.log, name) == (offset, fact)
    assert told(world, "last")["pick"]["request_id"] == "second"
    assert find_pick(world.log, "first")[1].question.request_id == "first"


@pytest.mark.parametrize("name", ["nobody", "0", "99999999", "0:3", "-1", ""])
def test_what_is_no_pick_is_said_to_be_none(name: str) -> None:
    with pytest.raises(PickNotFound, match="no pick"):
        find_pick(spread_log().log, name)


def test_of_several_picks_with_one_request_id_the_newest_is_meant() -> None:
    world = RecordedLog()
    replica = world.replica()
    replica.ask("same")
    newest = replica.ask("same")
    assert find_pick(world.log, "same")[1] == newest


def test_a_pick_that_cannot_be_repeated_is_explained_from_what_its_record_keeps() -> None:
    world = RecordedLog()
    replica = world.replica()
    replica.ask("r", suspect=True)
    found = told(world, "r")
    assert found["repeated"] == "unverifiable"
    assert "stopped or disagreed" in found["repeated_detail"]
    assert len(found["phases"]["decode"]["candidates"]) == 3


def test_documents_name_log_positions_and_ids_as_text() -> None:
    world = spread_log()
    found = told(world, "last")
    pick = found["pick"]
    assert pick["lane"] == 0
    assert isinstance(pick["decode_worker"], str)
    assert pick["log_offset"] == max(o for o, data in records_of(world.log, 0) if data[3] == 20)
    assert found["settings"]["version"] == pick["config_version"] == 1
    assert found["namespaces"] == [{"name": "dynamo", "eligible": True, "cause": None}]


@pytest.mark.req("KVP-13", "EVS-07")
def test_every_term_of_a_cost_by_prefix_is_shown() -> None:
    world = PrefixLog(kv=KV._replace(host_credit=0.75, credit_decay=0.5))
    world.store(2, "a", 6)
    world.store(2, "a", 8, StorageTier.HOST_PINNED)
    for worker, blocks in ((1, 10), (2, 12), (3, 90)):
        world.sample(worker, blocks)
    replica = world.replica()
    ask(replica, "r", "a", 10)
    found = told(world, "r")
    assert found["repeated"] == "equal"
    assert found["pick"] == {
        **found["pick"],
        "kv_result": "overlap",
        "isl_tokens": 168,
        "overlap_blocks": 6,
        "block_size": 16,
    }
    assert found["question"]["hashes"] == [{"block_size": 16, "blocks": 10, "recorded": 10}]
    assert found["settings"]["kv"]["host_credit"] == 0.75
    winner = found["phases"]["decode"]["winner"]
    assert winner["worker"] == "2"
    assert winner["prefix"] == {
        "device_blocks": 6,
        "predicted_blocks": 0,
        "host_blocks": 2,
        "disk_blocks": 0,
        "credit": 7.5,
        "decay": 1.0,
        "raw_blocks": 10.5,
        "adjusted_blocks": 3.0,
        "decode_blocks": 12 + 5,
    }
    assert winner["cost"] == 20.0
    other = found["phases"]["decode"]["runner_up"]
    assert (other["worker"], other["cost"], other["prefix"]["credit"]) == ("1", 10.5 + 21, 0.0)


def test_a_pick_without_the_prefix_term_shows_none_of_it() -> None:
    found = told(spread_log(), "first")
    assert (found["pick"]["kv_result"], found["pick"]["isl_tokens"], found["settings"]["kv"]) == (None,) * 3
    assert {row["prefix"] for row in found["phases"]["decode"]["candidates"]} == {None}
