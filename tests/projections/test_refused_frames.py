"""Refused frames are told of by family: of load publishers as samples, of the others as block events."""

from __future__ import annotations

import pytest

from projections.events.signals import Family, FrameRefused
from projections.notices import FrameResult, KvEventResult, KvNotice, SampleNotice
from projections.refused_frames import notices_of
from tests.projections.fleet_script import NS, Script


def refused(family: int, result: int) -> FrameRefused:
    return FrameRefused(family, NS, 9, 1, result, 12)


def test_each_family_is_told_of_in_its_own_words() -> None:
    of_load, of_blocks = notices_of(refused(Family.LOAD, 3)), notices_of(refused(Family.KV, 3))
    assert of_load == (SampleNotice(FrameResult.MALFORMED, NS, 9, 12),)
    assert of_blocks == (KvNotice(KvEventResult.MALFORMED, NS, 9, 12),)


def test_a_frame_of_block_events_that_was_there_before_is_a_replay() -> None:
    (notice,) = notices_of(refused(Family.KV, FrameResult.DUPLICATE))
    assert isinstance(notice, KvNotice) and notice.result is KvEventResult.REPLAY


@pytest.mark.parametrize(("family", "result"), [(Family.LOAD, 9_999), (Family.KV, 9_999), (9, 3)])
def test_numbers_of_later_releases_tell_nothing(family: int, result: int) -> None:
    assert notices_of(refused(family, result)) == ()


def test_the_fold_tells_of_them() -> None:
    script = Script()
    script.say(refused(Family.LOAD, 3))
    assert script.notices == [SampleNotice(FrameResult.MALFORMED, NS, 9, 12)]
