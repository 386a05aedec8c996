"""Checkpoints of what ranks hold: cut anywhere, equal bytes for equal states, refused where torn."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.checkpoint import CheckpointRefused, checkpoint_records, fold_from_checkpoint
from projections.events.codec import decode_record, encode_record
from projections.events.held import KvPublisherHeld, KvRankHeld, KvTierHeld, PredictionHeld, RunHeld
from projections.fold import Fold
from tests.projections.kv.kv_script import ALL_MODES, HOST, KvScript, pick_of, stored
from tests.projections.kv.kv_story import Teller, kv_story

LOG = b"log id----------"


def folded(records: list[bytes], fold: Fold | None = None, start: int = 0) -> Fold:
    fold = fold if fold is not None else Fold()
    for offset in range(start, len(records)):
        fold.apply(offset, records[offset], [])
    return fold


def saved(fold: Fold) -> list[bytes]:
    return list(checkpoint_records(fold, LOG))


@pytest.mark.req("EVS-13", "KVX-12", "KVX-18")
@pytest.mark.parametrize("seed", range(3))
def test_checkpoint_and_tail_are_the_full_fold_at_every_cut(seed: int) -> None:
    records = kv_story(seed, 160)
    whole = folded(records)
    cutting = Fold()
    for cut, data in enumerate(records):
        restored = fold_from_checkpoint(saved(cutting))
        assert restored.digests() == cutting.digests() and saved(restored) == saved(cutting), f"cut at {cut}"
        after = folded(records, restored, start=cut)
        assert after.digests() == whole.digests(), f"cut at {cut}"
        assert saved(after) == saved(whole)
        cutting.apply(cut, data, [])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(20, 300), st.data())
@pytest.mark.req("EVS-13")
def test_checkpoint_and_tail_are_the_full_fold_of_any_story(
    seed: int, steps: int, data: st.DataObject
) -> None:
    records = kv_story(seed, steps)
    cut = data.draw(st.integers(0, len(records)))
    whole = folded(records)
    after = folded(records, fold_from_checkpoint(saved(folded(records[:cut]))), start=cut)
    assert after.digests() == whole.digests() and saved(after) == saved(whole)
    for index in after.state.kv.indexes:
        index.check()


@pytest.mark.field("B-038")
@pytest.mark.parametrize("seed", range(4))
def test_a_restored_state_tells_and_answers_what_the_other_does(seed: int) -> None:
    teller = Teller(seed)
    for _ in range(120):
        teller.step()
    live, restored = teller.script, teller.script.restored()
    teller.script = restored
    ahead = Teller.__new__(Teller)
    ahead.__dict__.update(teller.__dict__, script=live)
    state = teller.draw.getstate()
    ids, picks = dict(teller.ids), teller.picks
    for _ in range(60):
        teller.step()
        told = restored.notices
        after = teller.draw.getstate()
        teller.draw.setstate(state)
        ahead.ids, ids = dict(ids), dict(teller.ids)
        ahead.picks, picks = picks, teller.picks
        ahead.step()
        assert live.notices == told and teller.draw.getstate() == after
        state = after
        for path in ((0,), (0, 1, 2), (2, 2, 1, 0)):
            assert live.prefixes(*path) == restored.prefixes(*path)


@pytest.mark.req("EVS-03")
@pytest.mark.parametrize("seed", range(3))
def test_two_folds_agree_however_often_digests_are_asked(seed: int) -> None:
    records = kv_story(seed + 100, 200)
    asked = Fold()
    for offset, data in enumerate(records):
        asked.apply(offset, data, [])
        asked.digests()
    assert asked.digests() == folded(records).digests()


def facts(fold: Fold) -> list[object]:
    return [decode_record(0, data).fact for data in saved(fold)]


def full() -> KvScript:
    script = KvScript(*ALL_MODES)
    for worker in (2, 1):
        script.worker(worker)
        script.batch(stored(1, "a", "b", worker=worker), publisher_id=70 + worker)
    script.batch(stored(2, "a", "b", "c", worker=1, tier=HOST), publisher_id=71)
    script.say(pick_of(script.question("a", "b", "q"), 1))
    script.say(pick_of(script.question("a", "b", "r"), 2, number=1))
    return script


@pytest.mark.req("EVS-13")
def test_facts_come_in_order_of_names_and_share_what_they_can() -> None:
    found = facts(full().fold)
    ranks = [fact for fact in found if isinstance(fact, KvRankHeld)]
    assert [(fact.instance_id, fact.feeders) for fact in ranks] == [
        (1, (71, 71, None)),
        (2, (72, None, None)),
    ]
    publishers = [fact for fact in found if isinstance(fact, KvPublisherHeld)]
    assert [(fact.publisher_id, fact.cursors) for fact in publishers] == [
        (71, ((1, 0, 2, 0),)),
        (72, ((2, 0, 1, 0),)),
    ]
    assert [fact.tier for fact in found if isinstance(fact, KvTierHeld)] == [0, 1]
    assert len([fact for fact in found if isinstance(fact, RunHeld)]) == 2, "one piece a tier"
    predictions = [fact for fact in found if isinstance(fact, PredictionHeld)]
    assert [(fact.shared, len(fact.hashes)) for fact in predictions] == [(0, 24), (2, 8)]


@pytest.mark.req("EVS-13")
def test_a_checkpoint_whose_blocks_were_tampered_with_is_refused() -> None:
    fold = full().fold
    found = facts(fold)
    for position, fact in enumerate(found):
        if isinstance(fact, KvRankHeld):
            changed: object = fact._replace(feeders=(99, None, None), departed=not fact.departed)
        elif isinstance(fact, KvPublisherHeld):
            changed = fact._replace(cursors=((5, 5, 5, 0), *((1, 0, 9, 1),) * 2))
        elif isinstance(fact, KvTierHeld):
            changed = fact._replace(tier=77)
        elif isinstance(fact, PredictionHeld):
            changed = fact._replace(number=fact.number + 1)
        elif isinstance(fact, RunHeld):
            changed = fact._replace(tokens=bytes(8) + fact.tokens[8:])
        else:
            continue
        other = [*found[:position], changed, *found[position + 1 :]]
        records = [encode_record(1, bytes(16), 0, n + 1, one) for n, one in enumerate(other)]  # type: ignore[arg-type]
        with pytest.raises(CheckpointRefused, match=r"kv|hold"):
            fold_from_checkpoint(records)
    twice = [
        fact for fact in found for _ in range(2 if isinstance(fact, KvRankHeld | KvPublisherHeld) else 1)
    ]
    records = [encode_record(1, bytes(16), 0, n + 1, one) for n, one in enumerate(twice)]  # type: ignore[arg-type]
    with pytest.raises(CheckpointRefused, match="facts"):
        fold_from_checkpoint(records)
