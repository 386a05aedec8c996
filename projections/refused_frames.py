"""What is told of frames that were refused before they became samples or block events.

Their record carries a number of `FrameResult`, for load and block events alike; the two families
are counted apart, the second by the words of its own.

Source: decisions 40, 62.
"""

from __future__ import annotations

from typing import Final

from projections.events.signals import Family, FrameRefused
from projections.notices import FrameResult, KvEventResult, KvNotice, Notice, SampleNotice

_FRAME_RESULTS: Final = {int(result): result for result in FrameResult}
_KV_RESULTS: Final = {
    int(result): KvEventResult[result.name]
    for result in FrameResult
    if result.name in KvEventResult.__members__
}
_KV_RESULTS[int(FrameResult.DUPLICATE)] = KvEventResult.REPLAY


def notices_of(fact: FrameRefused) -> tuple[Notice, ...]:
    """One notice, or none for a family or a result that this release does not know."""
    number = fact.result
    if fact.family == Family.LOAD and number in _FRAME_RESULTS:
        return (SampleNotice(_FRAME_RESULTS[number], fact.namespace, fact.publisher_id, fact.frames),)
    if fact.family == Family.KV and number in _KV_RESULTS:
        return (KvNotice(_KV_RESULTS[number], fact.namespace, fact.publisher_id, fact.frames),)
    return ()
