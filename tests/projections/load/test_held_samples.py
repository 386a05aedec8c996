"""A worker's part of the digest."""

from __future__ import annotations

from projections.identity import WorkerKey
from projections.load.held_samples import HeldSample, PublisherSamples, WorkerSamples, word_of
from projections.notices import FrameResult


def test_word_speaks_of_every_sample_and_of_the_last_time() -> None:
    worker = WorkerSamples(WorkerKey("dynamo", 1))
    assert word_of(worker) == 0
    words = {word_of(worker)}
    worker.last_sample_at = 5
    words.add(word_of(worker))
    worker.samples[1] = HeldSample(7, 1, 5, 1, 2, 3)
    words.add(word_of(worker))
    worker.samples[0] = HeldSample(7, 1, 5, 1, 2, 3)
    words.add(word_of(worker))
    worker.samples[0] = HeldSample(7, 1, 5, 1, None, 3)
    words.add(word_of(worker))
    assert len(words) == 5


def test_word_does_not_depend_on_the_order_of_ranks() -> None:
    workers = [WorkerSamples(WorkerKey("dynamo", 1)) for _ in range(2)]
    for worker, ranks in zip(workers, ((0, 1), (1, 0)), strict=True):
        for rank in ranks:
            worker.samples[rank] = HeldSample(7, rank, 5, 1, 2, 3)
    assert word_of(workers[0]) == word_of(workers[1])


def test_publisher_carries_its_usual_notice_ready_made() -> None:
    publisher = PublisherSamples(("dynamo", 7))
    (notice,) = publisher.applied
    assert (notice.result, notice.namespace, notice.publisher_id) == (FrameResult.APPLIED, "dynamo", 7)
