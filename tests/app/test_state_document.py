"""The document of a state: the contract's keys, no address, and marks as people mean them."""

import json
from typing import Any

import pytest

from app.marks import MarkRefused, Marks, time_text
from app.state_document import diff_document, document_of, offset_of_state, state_document
from projections.bounds import SECOND_US
from projections.events.control import ClockTicked, FoldModeAdopted
from replay.timeline import StateGone
from tests.projections.kv.kv_script import HOST, batch_of, chain, stored
from tests.replay.checkpoints_in_memory import Checkpoints
from tests.replay.recorded_log import RecordedLog


def lived() -> RecordedLog:
    world = RecordedLog()
    world.sample(1, 10)
    replica = world.replica()
    replica.ask("r0", tokens=64)
    for _ in range(3):
        world.pass_time(SECOND_US)
        world.say(ClockTicked(world.time, -1, (), 0, 0))
    return world


def of(world: RecordedLog, mark: str) -> dict[str, Any]:
    return state_document(world.log, Checkpoints(), mark)


def test_the_document_has_the_keys_of_the_contract() -> None:
    world = lived()
    found = of(world, "end")
    assert found["mark"] == f"0:{world.log.end_offset() - 1}"
    assert found["at"] == time_text(4 * SECOND_US)
    none = {"nodes": 0, "ownerships": 0, "predictions": 0, "ranks": []}
    assert (found["config_version"], found["index"]) == (1, none)
    assert [row["worker_id"] for row in found["workers"]] == ["1", "2", "3"]
    first = found["load"][0]
    assert (first["worker_id"], first["kv_used_blocks"], first["publisher_id"]) == ("1", 10, "9")
    assert [row["verdict"] for row in found["load"]] == ["fresh", "quiet", "quiet"]
    assert found["subscriptions"][0]["state"] == "connected"
    ledger = found["ledger"]
    assert ledger["unanswered"] == 1 and ledger["picks"][0]["tokens"] == 64
    json.dumps(found)


def test_it_shows_no_address_and_no_card() -> None:
    assert "h:1" not in json.dumps(of(lived(), "end")) and "card_json" not in json.dumps(of(lived(), "end"))


def test_an_offset_means_itself_and_a_time_the_newest_record_before_it() -> None:
    world = lived()
    marks, end = Marks(world.log), world.log.end_offset()
    assert offset_of_state(marks, world.log, "5") == offset_of_state(marks, world.log, "0:5") == 5
    assert offset_of_state(marks, world.log, "begin") == 0
    assert offset_of_state(marks, world.log, "end") == end - 1
    at = time_text(3 * SECOND_US)
    assert offset_of_state(marks, world.log, at) == end - 3
    assert offset_of_state(marks, world.log, "-1s") in (end - 3, end - 2)


@pytest.mark.parametrize("mark", ["500", "1960-01-01", "2500-01-01", "-2d", "what"])
def test_marks_outside_the_log_are_refused(mark: str) -> None:
    world = lived()
    with pytest.raises(MarkRefused):
        offset_of_state(Marks(world.log), world.log, mark)


def test_an_empty_log_has_no_state() -> None:
    world = lived()
    world.log.forget(world.log.end_offset())
    with pytest.raises(StateGone, match="empty"):
        offset_of_state(Marks(world.log), world.log, "end")


def test_a_difference_names_workers_loads_and_words() -> None:
    world = lived()
    found = diff_document(world.log, Checkpoints(), "1", "end")
    assert [row["worker_id"] for row in found["workers"]["added"]] == ["1", "2", "3"]
    assert found["picks"] == {"made": 1, "lost": 0, "ended": {}}
    assert found["config"] == {"before": 1, "after": 1, "changed": {}}
    later = diff_document(world.log, Checkpoints(), str(world.log.end_offset() - 4), "end")
    assert later["load"] == [] and later["words"] == ["nothing changed"]


def test_a_live_fold_makes_the_same_document() -> None:
    world = lived()
    replica = world.replica()
    end = of(world, "end")
    assert document_of(replica.fold, Marks(world.log)) == end


def test_the_index_is_told_by_rank_and_its_changes_by_both_marks() -> None:
    world = lived()
    world.say(FoldModeAdopted((1, 2)))
    start = world.log.end_offset() - 1
    world.say(batch_of(stored(1, "a", "b"), stored(2, "a", tier=HOST)))
    names = chain("a", "b")[1]
    xor = int.from_bytes(names[:8], "big") ^ int.from_bytes(names[8:], "big")
    found = of(world, "end")
    assert found["index"] == {
        "nodes": 2,
        "ownerships": 2,
        "predictions": 0,
        "ranks": [
            {
                "namespace": "dynamo",
                "worker_id": "1",
                "dp_rank": 0,
                "blocks": 2,
                "host_blocks": 1,
                "disk_blocks": 0,
                "engine_hash_xor": str(xor),
                "last_event_id": 2,
            }
        ],
    }
    assert "kv" in found["digests"]
    changed = diff_document(world.log, Checkpoints(), str(start), "end")
    assert changed["index"] == {
        "nodes": [0, 2],
        "ownerships": [0, 2],
        "ranks": [
            {
                "namespace": "dynamo",
                "worker_id": "1",
                "dp_rank": 0,
                "blocks": [None, 2],
                "last_event_id": [None, 2],
            }
        ],
    }
    json.dumps(changed)
