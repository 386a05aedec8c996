"""Offsets of a topic and of the log in it, apart by jumps, markers, repetitions and a base."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.log.kafka_reader import KafkaReader
from ingest.log.kafka_records import Role
from ingest.log.kafka_settings import TopicRefused
from projections.events.ports import LogCorrupt, OffsetGone
from tests.ingest.log.kafka_topic import FakeFetch, SameThread, Topic, reader_of
from tests.log_suite import read_all

STEPS = st.lists(
    st.tuples(st.sampled_from(["copy", "jump", "mark", "repeat"]), st.integers(1, 3_000)), max_size=12
)


def offsets(reader: KafkaReader, start: int, step: int = 1 << 30) -> list[int]:
    return [offset for offset, _ in read_all(reader, start, step)]


def topic_of(steps: list[tuple[str, int]], first: int, appended: int) -> tuple[Topic, list[int]]:
    """A topic, and the offsets of the log in it."""
    topic, due = Topic(), first
    wanted: list[int] = []
    topic.add(Role.ORIGIN, first)
    shift = first - 1
    for what, count in steps:
        if what == "mark":
            topic.mark(count % 5 + 1)
        elif what == "jump":
            due += count
        elif what == "repeat" and wanted:
            for offset in wanted[-min(count, 50, len(wanted)) :]:
                shift = offset - topic.add(Role.COPIED, offset)
        elif what == "copy":
            for _ in range(count):
                shift = due - topic.add(Role.COPIED, due)
                wanted.append(due)
                due += 1
    for _ in range(appended):
        wanted.append(topic.add(Role.APPENDED, shift) + shift)
    return topic, wanted


@given(STEPS, st.sampled_from([0, 7, 1 << 40]), st.integers(0, 3_000), st.booleans(), st.data())
def test_every_record_is_found_from_everywhere_in_a_few_probes(
    steps: list[tuple[str, int]], first: int, appended: int, follows: bool, data: st.DataObject
) -> None:
    topic, wanted = topic_of(steps, first, appended)
    reader = reader_of(topic, follows, answer_records=700)
    assert reader.first_offset() == (wanted[0] if not topic.records else first)
    end = reader.end_offset()
    assert end >= (wanted[-1] + 1 if wanted else first)
    assert offsets(reader, first) == wanted
    for _ in range(5):
        start = data.draw(st.integers(first, end + 2))
        fetch = reader._fetch
        assert isinstance(fetch, FakeFetch)
        before = fetch.probes
        batches = reader.read(start, 1)
        assert fetch.probes - before < 48
        found = [offset for batch in batches for offset, _ in enumerate(batch.records, batch.first_offset)]
        assert found == [offset for offset in wanted if offset >= start][: len(found)]
        assert bool(found) == any(offset >= start for offset in wanted)


def test_a_base_is_no_part_of_the_log_and_is_read_apart() -> None:
    topic = Topic()
    topic.add(Role.ORIGIN, 500)
    for number in range(5):
        topic.add(Role.BASE, 510, bytes([number]))
    topic.mark()
    unfinished = reader_of(topic)
    assert (unfinished.first_offset(), unfinished.end_offset(), unfinished.read(500, 1)) == (500, 500, [])
    for offset in range(500, 520):
        topic.add(Role.COPIED, offset)
    reader = reader_of(topic)
    assert offsets(reader, 500) == list(range(500, 520))
    assert reader.base() == [bytes([number]) for number in range(5)]
    assert offsets(reader, 515) == list(range(515, 520))
    newest = reader.newest()
    assert newest is not None and newest.offset == 519


def test_retention_moves_the_beginning_and_tells_who_comes_late() -> None:
    topic, wanted = topic_of([("copy", 2_500)], 0, 100)
    reader = reader_of(topic, answer_records=100)
    assert reader.read(0, 1)[0].first_offset == 0
    topic.forget(2_001)
    with pytest.raises(OffsetGone) as gone:
        offsets(reader, 1)
    assert gone.value.first_offset == 2_000
    assert reader.first_offset() == 2_000
    assert offsets(reader, 2_000) == wanted[2_000:]
    assert reader_of(topic).first_offset() == 2_000


@pytest.mark.req("EVS-14")
@pytest.mark.parametrize("looks", ["begin", "news", "nothing"])
@pytest.mark.parametrize("kept", [0, 1, 5])
def test_retention_beyond_all_that_a_reader_knew_leaves_no_silent_hole(looks: str, kept: int) -> None:
    topic, wanted = topic_of([], 0, 10)
    reader, frozen = reader_of(topic), reader_of(topic, follows=False)
    assert offsets(reader, 0) == wanted
    for _ in range(20):
        wanted.append(topic.add(Role.APPENDED, -1) - 1)
    first = 30 - kept
    topic.forget(first + 1)  # the process stood still meanwhile
    if looks == "begin":
        assert reader.loop.run(reader.begin_here()) == first
    elif looks == "news":
        reader.loop.run(reader.news(10, 60.0))
    with pytest.raises(OffsetGone) as gone:
        reader.read(10, 1)
    assert gone.value.first_offset == reader.first_offset() == first
    assert offsets(reader, first) == wanted[first:]
    with pytest.raises(OffsetGone):
        frozen.read(5, 1)


def test_a_reader_to_the_end_of_its_opening_grows_no_more() -> None:
    topic, wanted = topic_of([], 0, 10)
    frozen, following = reader_of(topic, follows=False), reader_of(topic)
    topic.add(Role.APPENDED, -1)
    assert (frozen.end_offset(), following.end_offset()) == (10, 11)
    assert (offsets(frozen, 0), offsets(following, 0)) == (wanted, [*wanted, 10])


MOVES = st.lists(
    st.sampled_from(["append", "append while it is fetched", "mark", "read", "wait"]), max_size=40
)


@given(MOVES, st.integers(1, 4), st.integers(1, 3))
def test_a_follower_reads_every_record_once_and_in_order_however_answers_are_cut(
    moves: list[str], answer_records: int, bytes_max: int
) -> None:
    topic, wanted = topic_of([], 0, 1)
    reader = reader_of(topic, answer_records=answer_records)
    fetch = reader._fetch
    assert isinstance(fetch, FakeFetch)
    found = offsets(reader, 0)

    def append() -> None:
        wanted.append(topic.add(Role.APPENDED, -1) - 1)
        fetch.on_answer = lambda: None

    def read() -> list[int]:
        batches = reader.read(found[-1] + 1, bytes_max)
        return [offset for batch in batches for offset, _ in enumerate(batch.records, batch.first_offset)]

    for move in moves:
        match move:
            case "append":
                append()
            case "append while it is fetched":
                append()
                fetch.on_answer = append
            case "mark":
                topic.mark()
            case "wait":
                reader.loop.run(reader.news(found[-1] + 1, 60.0))
            case "read":
                found += read()
    fetch.on_answer = lambda: None
    while more := read():
        found += more
    assert found == wanted


@given(
    st.lists(st.sampled_from(["append", "origin", "mark", "read", "wait", "end"]), max_size=30),
    st.integers(0, 3),
)
def test_origins_of_processes_that_began_the_log_too_hide_no_record(moves: list[str], before: int) -> None:
    """Two that find an empty topic both write one; the slower one's stands behind records of the first."""
    topic, wanted = topic_of([], 0, before)
    topic.add(Role.ORIGIN, 0, log_id=bytes(16))
    reader = reader_of(topic)
    due, found = 0, list[int]()

    def read() -> None:
        nonlocal due
        for batch in reader.read(due, 1 << 20):
            found.extend(offset for offset, _ in enumerate(batch.records, batch.first_offset))
            due = found[-1] + 1

    for move in moves:
        match move:
            case "append":
                wanted.append(topic.add(Role.APPENDED, -1) - 1)
            case "origin":
                topic.add(Role.ORIGIN, 0, log_id=bytes([7] * 16))
            case "mark":
                topic.mark()
            case "read":
                read()
            case "wait":
                reader.loop.run(reader.news(due, 60.0))
            case "end":
                reader.loop.run(reader.end_here())
    read()
    read()
    assert found == wanted


async def test_waiting_buffers_what_comes() -> None:
    topic, _ = topic_of([], 0, 3)
    reader = reader_of(topic)
    await reader.wait(2, 60.0)
    assert offsets(reader, 0) == [0, 1, 2]
    topic.add(Role.APPENDED, -1)
    await reader.wait(3, 60.0)
    assert offsets(reader, 3) == [3]
    await reader.wait(4, 0.001)
    assert reader.read(4, 1) == []


def test_what_is_no_log_is_refused() -> None:
    topic = Topic()
    with pytest.raises(TopicRefused, match="holds no log yet"):
        reader_of(topic)
    topic.add(Role.ORIGIN, 0)
    topic.forget(1)
    with pytest.raises(LogCorrupt, match="by retention"):
        reader_of(topic)


def test_a_topic_that_lost_its_end_is_not_read_on() -> None:
    topic, _ = topic_of([], 0, 10)
    reader = reader_of(topic)
    assert len(offsets(reader, 0)) == 10
    del topic.records[10]
    topic.end = 10
    with pytest.raises(LogCorrupt, match="lost acknowledged records"):
        reader.read(10, 1)
    with pytest.raises(LogCorrupt):
        reader.end_offset()


def test_closing_leaves_the_cluster_and_the_thread() -> None:
    reader = reader_of(topic_of([], 0, 1)[0])
    reader.close()
    assert isinstance(reader.loop, SameThread) and reader.loop.is_closed
    assert reader.log_id == bytes(range(16)) and reader.place.topic == "picklog"
