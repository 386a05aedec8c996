"""Samples told by a stream: merged while they wait, bounded, with their frames where those are kept."""

from __future__ import annotations

import asyncio

import pytest

from ingest.subscriptions.sample_stream import SampleStream
from ingest.wire.publisher_frames import encode_sample_message
from projections.notices import FrameResult
from tests.ingest.subscriptions.network import sample
from tests.ingest.subscriptions.stream_host import FakeHost
from tests.ingest.wire.kv_messages import PUBLISHER

pytestmark = pytest.mark.looptime


def frames(number: int, rank: int = 0, used: int = 0) -> tuple[bytes, ...]:
    return encode_sample_message(PUBLISHER, sample(number, rank, used))


async def test_samples_that_wait_are_merged_to_the_newest_of_each_rank() -> None:
    host = FakeHost()
    stream = SampleStream(host)
    stream.begin()
    stream.receive([frames(0)])
    stream.receive([frames(n, n % 2, n) for n in range(1, 5)])
    assert stream.waiting == 2
    await asyncio.sleep(0.01)
    assert stream.waiting == 0
    assert [(one.covers_from, one.sequence, one.kv_used_blocks) for one in host.samples] == [
        (0, 0, 0),
        (1, 3, 3),
        (4, 4, 4),
    ]


@pytest.mark.req("LOAD-19")
async def test_a_repeat_is_counted() -> None:
    host = FakeHost()
    stream = SampleStream(host)
    stream.begin()
    stream.receive([frames(4), frames(4), frames(2)])
    assert host.counts == {FrameResult.DUPLICATE: 2}


@pytest.mark.parametrize("keeps_raw", [True, False])
async def test_frames_are_kept_for_told_samples_alone(keeps_raw: bool) -> None:
    host = FakeHost(keeps_raw=keeps_raw)
    stream = SampleStream(host)
    stream.begin()
    stream.receive([frames(0), frames(1), frames(2)])
    assert host.kept == ([frames(2)] if keeps_raw else [])
    assert [one.raw_digest for one in host.samples] == [1001 if keeps_raw else None]
