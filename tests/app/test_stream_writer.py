"""Messages in any order, cut anyhow and repeated write the rows that the embedded sink writes."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import URL

from app.audit_database import AuditRefused, upgrade, writing_engine
from app.audit_messages import AuditMessage
from app.rollup_writer import RollupWriter
from app.stream_writer import StreamWriter, Stretch
from tests.app.audit_site import rows, sqlite_url
from tests.app.stream_site import LOG, Story, rolled_up, said, told, written_directly


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with tables and no rows, to be copied."""
    folder = tmp_path_factory.mktemp("empty")

    async def make() -> None:
        engine = writing_engine(sqlite_url(folder))
        await upgrade(engine)
        await engine.dispose()

    asyncio.run(make())
    return folder / "audit.sqlite"


async def directly(url: URL, story: Story) -> None:
    engine = writing_engine(url)
    await written_directly(engine, story.rows)
    await engine.dispose()


async def streamed(url: URL, stretches: Sequence[Sequence[AuditMessage]]) -> None:
    engine = writing_engine(url)
    rollups = RollupWriter(engine, 0)
    writer = StreamWriter(engine, "audit", rollups)
    for number, messages in enumerate(stretches):
        await writer.write(Stretch(number % 8, number + 1, messages))
        if number % 3 == 0:
            await rolled_up(rollups)
    await rolled_up(rollups)
    await engine.dispose()


def cut(messages: Sequence[AuditMessage], chance: random.Random) -> list[list[AuditMessage]]:
    """In another order, some of them again, in stretches of any size."""
    again = [message for message in messages if chance.random() < 0.3]
    shuffled = [*messages, *again]
    chance.shuffle(shuffled)
    stretches: list[list[AuditMessage]] = [[]]
    for message in shuffled:
        if chance.random() < 0.1:
            stretches.append([])
        stretches[-1].append(message)
    return stretches


@pytest.mark.req("EVS-09")
@pytest.mark.field("B-136")
@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(story=st.integers(0, 1 << 32), order=st.integers(0, 1 << 32))
async def test_any_split_order_and_repetition_writes_the_rows_of_the_embedded_sink(
    empty: Path, story: int, order: int
) -> None:
    with TemporaryDirectory() as folder:
        here, there = (sqlite_url(Path(folder), name) for name in ("here.sqlite", "there.sqlite"))
        for url in (here, there):
            shutil.copy(empty, str(url.database))
        found = Story(story)
        await directly(here, found)
        await streamed(there, cut(told(found.rows), random.Random(order)))
        assert await said(there) == await said(here)


async def test_a_story_says_something_of_every_table(tmp_path: Path) -> None:
    """Else the property above would prove little."""
    url = sqlite_url(tmp_path)
    engine = writing_engine(url)
    await upgrade(engine)
    stories = [Story(seed, 400) for seed in (1, 2)]
    await written_directly(engine, stories[0].rows)
    await engine.dispose()
    found = await said(url, but=("shadow_picks", "verifications"))
    assert [name for name, table in found.items() if not table] == []
    assert {row["suspect"] for row in found["picks"]} == {False, True}
    assert {row["end_cause"] for row in found["workers"]} >= {"changed", "deleted", "gap"}
    assert {row["status"] for row in found["dispatch_ends"]} == {"ok", "failed", "unknown"}


async def test_marks_and_positions_only_move_ahead(tmp_path: Path) -> None:
    engine = writing_engine(sqlite_url(tmp_path))
    await upgrade(engine)
    writer = StreamWriter(engine, "audit")
    assert await writer.positions() == {}
    mark = AuditMessage(LOG, 50, 1, 99, [])
    await writer.write(Stretch(3, 10, [mark]))
    await writer.write(Stretch(3, 4, [mark._replace(offset=20)]))
    assert await writer.positions() == {3: 10}
    await engine.dispose()
    (row,) = (await rows(sqlite_url(tmp_path)))["sink_marks"]
    assert (row["sink"], row["log_offset"], row["check_word"]) == ("audit-3", 50, "99")


async def test_what_the_topic_lost_is_a_gap_of_that_partition(tmp_path: Path) -> None:
    engine = writing_engine(sqlite_url(tmp_path))
    await upgrade(engine)
    writer = StreamWriter(engine, "audit")
    await writer.skip(5, 10, 30)
    assert await writer.positions() == {5: 30}
    await engine.dispose()
    (row,) = (await rows(sqlite_url(tmp_path)))["sink_gaps"]
    assert (row["sink"], row["from_offset"], row["to_offset"], row["cause"]) == (
        "audit-5",
        10,
        29,
        "retention",
    )


async def test_messages_of_another_log_are_refused_and_write_nothing(tmp_path: Path) -> None:
    engine = writing_engine(sqlite_url(tmp_path))
    await upgrade(engine)
    writer = StreamWriter(engine, "audit")
    story = Story(5)
    await writer.write(Stretch(0, 1, told(story.rows)))
    before = await rows(sqlite_url(tmp_path))
    with pytest.raises(AuditRefused, match="move that database aside"):
        await writer.write(Stretch(1, 1, told(Story(6).rows, b"M" * 16)))
    await engine.dispose()
    assert await rows(sqlite_url(tmp_path)) == before
