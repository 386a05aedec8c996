"""Checkpoint and tail give the state of the whole log, at every cut; anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.checkpoint import CheckpointRefused, checkpoint_records, fold_from_checkpoint
from projections.events.codec import decode_record, encode_record
from projections.events.control import RecordCondemned
from projections.events.discovery import Keyspace
from projections.events.held import CheckpointClosed, CheckpointOpened, FleetHeld
from projections.fold import Fold
from projections.notices import MixedRoles
from projections.registry import keyspace
from tests.projections.fleet_script import NS, Script, card, endpoint, instance_key
from tests.projections.log_story import story

LOG = b"log id----------"


def folded(records: list[bytes], fold: Fold | None = None, start: int = 0) -> Fold:
    fold = fold if fold is not None else Fold()
    for offset in range(start, len(records)):
        fold.apply(offset, records[offset], [])
    return fold


def saved(fold: Fold) -> list[bytes]:
    return list(checkpoint_records(fold, LOG))


@pytest.mark.req("EVS-01", "EVS-13")
def test_checkpoint_and_tail_are_the_full_fold_at_every_cut() -> None:
    records = story(seed=11, records=260)
    whole = folded(records)
    cutting = Fold()
    for cut, data in enumerate(records):
        restored = fold_from_checkpoint(saved(cutting))
        assert restored.mark == cutting.mark and restored.digests() == cutting.digests()
        assert saved(restored) == saved(cutting)
        after = folded(records, restored, start=cut)
        assert after.digests() == whole.digests(), f"cut at {cut}"
        assert saved(after) == saved(whole)
        cutting.apply(cut, data, [])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(20, 250), st.data())
@pytest.mark.req("EVS-13", "EVS-14")
def test_checkpoint_and_tail_are_the_full_fold_of_any_story(
    seed: int, length: int, data: st.DataObject
) -> None:
    records = story(seed, length)
    cut = data.draw(st.integers(0, length))
    restored = fold_from_checkpoint(saved(folded(records[:cut])))
    whole = folded(records)
    after = folded(records, restored, start=cut)
    assert after.digests() == whole.digests()
    assert saved(after) == saved(whole)
    published, expected = after.state.registry.fleet, whole.state.registry.fleet
    assert published.generation == expected.generation
    assert list(published.workers.items()) == list(expected.workers.items())
    assert published.publishers == expected.publishers and published.bindings == expected.bindings


@pytest.mark.req("EVS-13")
def test_notices_after_a_restore_are_those_that_would_have_come() -> None:
    """What was said once stays said: conflicts, full keyspaces, mixed models."""
    script = Script()
    script.worker(1)
    script.put(Keyspace.INSTANCES, "intruder", endpoint(1))
    script.delete(Keyspace.INSTANCES, "intruder")
    script.worker(2, worker_type="decode")
    assert any(isinstance(notice, MixedRoles) for notice in script.all_notices)
    restored = Script(fold_from_checkpoint(saved(script.fold)), opened=False)
    restored.epoch, restored.time, restored.sequences = script.epoch, script.time, dict(script.sequences)
    for one in (script, restored):
        one.put(Keyspace.INSTANCES, "intruder", endpoint(1), revision=5)
        one.delete(Keyspace.INSTANCES, "intruder", revision=6)
        one.worker(3, worker_type="prefill")
        one.put(
            Keyspace.CARDS, instance_key(3), card(3, worker_type="prefill", kv_cache_block_size=0), revision=7
        )
    assert restored.all_notices == script.all_notices[-len(restored.all_notices) :]
    assert restored.fold.digests() == script.fold.digests()


def test_a_full_keyspace_is_remembered_as_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyspace, "KEYS_PER_KEYSPACE_MAX", 1)
    script = Script()
    for n in (1, 2):
        script.put(Keyspace.INSTANCES, instance_key(n), endpoint(n))
    assert [n.level for n in script.notices] == ["warning"]  # type: ignore[union-attr]
    restored = Script(fold_from_checkpoint(saved(script.fold)), opened=False)
    restored.epoch, restored.sequences = script.epoch, dict(script.sequences)
    restored.put(Keyspace.INSTANCES, instance_key(3), endpoint(3))
    assert [n.level for n in restored.notices] == ["debug"]  # type: ignore[union-attr]


def test_a_listing_that_a_checkpoint_interrupts_is_judged_at_its_end() -> None:
    script = Script()
    script.pass_began()
    script.worker(1, worker_type="aggregated")
    script.worker(2, worker_type="decode")
    restored = Script(fold_from_checkpoint(saved(script.fold)), opened=False)
    restored.epoch, restored.time, restored.sequences = script.epoch, script.time, dict(script.sequences)
    for one in (script, restored):
        one.pass_settled()
        assert [n.named for n in one.notices if isinstance(n, MixedRoles)] == [((NS, "tiny", 0, 1, 1),)]


@pytest.mark.req("EVS-13")
def test_equal_states_reached_on_different_ways_give_equal_bytes() -> None:
    """The order in which dicts were filled is not in the bytes."""
    straight = Script()
    for n in (3, 1, 2):
        straight.worker(n)
    again = fold_from_checkpoint(saved(straight.fold))
    assert saved(again) == saved(straight.fold)
    order = [name for name, _ in straight.fold.state.registry.held_digests((NS,)).items()]
    assert [name for name, _ in again.state.registry.held_digests((NS,)).items()] != order, "another history"


def _fact(data: bytes) -> object:
    return decode_record(0, data).fact


def test_an_empty_fold_has_a_checkpoint_too() -> None:
    restored = fold_from_checkpoint(saved(Fold()))
    assert restored.mark == Fold().mark and restored.digests() == Fold().digests()
    script = Script(restored)
    script.worker(7)
    assert len(script.fleet.workers) == 1


def test_condemned_offsets_are_known_after_a_restore() -> None:
    script = Script()
    script.say(RecordCondemned(40, "ahead"))
    restored = fold_from_checkpoint(saved(script.fold), condemned=frozenset((41,)))
    for offset in (40, 41):
        assert restored.apply(offset, b"poison " * 4, []) is None
    assert restored.state.intake.condemned == (40, 41)


def test_a_checkpoint_that_is_not_whole_is_refused() -> None:
    records = saved(folded(story(seed=12, records=120)))
    for count in (0, 1, len(records) // 2, len(records) - 1):
        with pytest.raises(CheckpointRefused):
            fold_from_checkpoint(records[:count])
    with pytest.raises(CheckpointRefused, match="facts where"):
        fold_from_checkpoint(records[:5] + records[6:])
    with pytest.raises(CheckpointRefused, match="follow"):
        fold_from_checkpoint([*records, records[-2]])
    with pytest.raises(CheckpointRefused, match="opens no"):
        fold_from_checkpoint(records[1:])
    with pytest.raises(CheckpointRefused, match="check word"):
        fold_from_checkpoint([*records[:3], records[3][:-1] + b"?", *records[4:]])


def test_a_checkpoint_whose_state_differs_names_the_projections_that_do() -> None:
    records = saved(Script().fold)
    fleet = encode_record(0, bytes(16), 0, 2, FleetHeld(99, (), ()))
    assert isinstance(_fact(records[1]), FleetHeld)
    with pytest.raises(CheckpointRefused, match="differs in registry"):
        fold_from_checkpoint([records[0], fleet, *records[2:]])


def test_facts_of_the_lane_have_no_place_in_a_checkpoint() -> None:
    records = saved(Script().fold)
    with pytest.raises(CheckpointRefused, match="RecordCondemned"):
        fold_from_checkpoint(
            [records[0], encode_record(0, bytes(16), 0, 2, RecordCondemned(1, "")), *records[1:]]
        )


def test_a_checkpoint_names_its_log_and_position() -> None:
    script = Script()
    script.worker(7)
    records = saved(script.fold)
    mark = script.fold.mark
    assert _fact(records[0]) == CheckpointOpened(mark.offset, mark.check, mark.time, LOG)
    closed = _fact(records[-1])
    assert closed == CheckpointClosed(len(records) - 2, script.fold.digests())
