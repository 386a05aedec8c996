"""Stories of audit rows, a topic in memory, and what must be the same whoever wrote the rows."""

from __future__ import annotations

import random
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine

from app.audit_messages import AuditMessage, decode, encode_mark, encode_rows
from app.audit_rows import AuditRows, GapNoticed, SinkMark
from app.audit_writer import AuditWriter
from app.rollup_writer import RollupWriter
from app.stream_figures import StreamFigures
from app.stream_worker import StreamWorker
from app.stream_writer import StreamWriter
from ingest.log.kafka_keyed import Found
from projections.audit.rows import (
    ConfigRow,
    EndRow,
    PickRow,
    PicksSuspected,
    ReplicaHeard,
    ReplicaLeft,
    ReplicaRow,
    WorkerBegan,
    WorkerEnded,
    WorkerVersion,
)
from projections.bounds import SECOND_US
from tests.app.audit_site import rows

LOG = b"L" * 16
PARTITIONS = 8
OWN_TABLES = ("sink_marks", "stream_changes", "stream_positions", "rollup_windows")
"""Tables that say how rows were written, not what."""


class Story:
    """Rows of a log in which everything happens: the same seed tells the same story."""

    def __init__(self, seed: int, steps: int = 60) -> None:
        self._chance = random.Random(seed)
        self._offset = 0
        self._at = 5_000 * SECOND_US
        self._open: list[PickRow] = []
        self._workers: dict[str, WorkerVersion] = {}
        self._replicas: dict[str, bool] = {}
        self.rows = AuditRows()
        for _ in range(steps):
            self._offset += self._chance.randint(1, 3)
            self._at += self._chance.randint(1, 400) * SECOND_US
            self._chance.choice(
                [self._pick, self._pick, self._pick, self._end, self._worker, self._replica, self._rest]
            )()
        self.rows.last = (self._offset, 7_000 + self._offset)
        self.rows.at = self._at

    def _pick(self) -> None:
        replica = self._chance.choice(["aa", "bb"])
        decode = self._chance.choice([None, "1", "2"])
        pick_id = f"{self._offset:032x}"
        reason = "no_candidate" if decode is None else self._chance.choice(["load", "kv_aware"])
        model = self._chance.choice(["tiny", "small"])
        pick = PickRow(
            pick_id, "request", 0, self._at, replica, 0, self._offset, self._offset - 1, 1, "load_based",
            model, "dynamo", decode, 0, reason, None, None, "no_prefill_pool", None, None, 64, 16,
            self._chance.choice([None, 2]), 2, False,
        )  # fmt: skip
        self.rows.picks.append(pick)
        self._open.append(pick)
        prefix = (None,) * 4 if decode is None else (2, 1, 1, 4.5)
        for position in range(self._chance.randint(0, 2)):
            self.rows.candidates.append(
                (pick_id, 0, self._offset, "decode", position, "dynamo", str(position), 0, position == 0,
                 0.1 * position, 3, None, 5, 0, 0, None, "fresh", None, *prefix)
            )  # fmt: skip

    def _end(self) -> None:
        if not self._open:
            return
        pick = self._open.pop(self._chance.randrange(len(self._open)))
        first = self._chance.choice([None, self._chance.randint(1, 1 << 30)])
        status = self._chance.choice(["ok", "ok", "failed"])
        end = EndRow(pick.pick_id, self._at, status, "none", 200, "a", first, 9, 60, 5, 32, 0, self._offset)
        self.rows.ends.append(end)

    def _worker(self) -> None:
        name = self._chance.choice(["1", "2"])
        before = self._workers.pop(name, None)
        stays = self._chance.random() < 0.7
        if before is not None:
            cause = "changed" if stays else "deleted"
            self._change(WorkerEnded("dynamo", name, self._offset, self._at, cause))
        if stays:
            size = self._chance.randint(1, 99)
            version = WorkerVersion(
                "dynamo", name, "decode", None, "backend", "generate", 0, size, *(None,) * 5, self._at
            )
            self._workers[name] = version
            self._change(WorkerBegan(version, self._offset, self._at))

    def _replica(self) -> None:
        name = self._chance.choice(["aa", "bb"])
        present = self._replicas.get(name)
        if present is None:
            self._replicas[name] = True
            row = ReplicaRow(name, "host:1", "router", "1", "3.11", "", self._at, 0, self._offset)
            self._change(row)
        elif present:
            self._replicas[name] = False
            self._change(ReplicaLeft(name, self._offset, self._at))
        else:
            self._replicas[name] = True
            self._change(ReplicaHeard(name, self._offset))

    def _rest(self) -> None:
        if self._chance.random() < 0.3:
            after = self._offset - self._chance.randint(1, 40)
            upto = after + self._chance.randint(0, 30)
            self._change(PicksSuspected(self._chance.choice(["aa", "bb"]), after, upto, self._offset))
            return
        if self._chance.random() < 0.5:
            self._change(ConfigRow(self._offset, self._at, "admin", "p", True, "ab", "{}", 0, self._offset))
            return
        first = self._offset
        self._offset += 5
        self._change(GapNoticed(first, self._offset, self._at, "retention"))
        for version in self._workers.values():
            self._change(WorkerBegan(version, self._offset, self._at))

    def _change(self, change: Any) -> None:
        self.rows.changes.append((self._offset, change))


def told(found: AuditRows, log_id: bytes = LOG) -> list[AuditMessage]:
    """Every message that rows make, decoded, and a mark behind them."""
    assert found.last is not None
    messages = [decode(value) for _, value in encode_rows(found, log_id)]
    return [*messages, decode(encode_mark(SinkMark(*found.last, log_id), found.at))]


class Topic:
    """A topic in memory, and `Spans` of itself. begins: oldest offset that each partition still has."""

    def __init__(self) -> None:
        self.partitions: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.begins = [0] * PARTITIONS

    def send(self, found: AuditRows, log_id: bytes = LOG) -> None:
        """As the follower does: rows by key, then a mark everywhere."""
        for key, value in encode_rows(found, log_id):
            self.partitions[zlib.crc32(key) % PARTITIONS].append(value)
        assert found.last is not None
        for values in self.partitions:
            values.append(encode_mark(SinkMark(*found.last, log_id), found.at))

    def all(self) -> list[Found]:
        """Every message, partition by partition."""
        return [
            Found(number, offset, value)
            for number, values in enumerate(self.partitions)
            for offset, value in enumerate(values)
        ]

    async def ends(self) -> list[tuple[int, int]]:
        return [(begin, len(values)) for begin, values in zip(self.begins, self.partitions, strict=True)]

    async def read(self, partition: int, first: int, stop: int) -> AsyncIterator[list[Found]]:
        for offset in range(max(first, self.begins[partition]), stop):
            yield [Found(partition, offset, self.partitions[partition][offset])]

    async def close(self) -> None:
        """Nothing is open."""

    async def open(self) -> Topic:
        return self


class Nowhere(StreamWriter):
    """A database that holds nothing, for whoever writes nothing."""

    def __init__(self) -> None:
        """No engine."""

    async def positions(self) -> dict[int, int]:
        return {}


async def worker_text() -> str:
    """A scrape of a stream worker that has every partition."""
    topic = Topic()

    async def ends(partitions: Sequence[int]) -> dict[int, int]:
        return dict.fromkeys(partitions, 1)

    figures = StreamFigures(StreamWorker(Nowhere(), topic.open), lambda: range(PARTITIONS), ends)
    return (await figures.text()).decode()


async def written_directly(engine: AsyncEngine, found: AuditRows) -> None:
    """As the embedded sink writes rows, roll-ups included."""
    rollups = RollupWriter(engine, 0)
    await AuditWriter(engine, LOG, touch=rollups.touch).write(found)
    await rolled_up(rollups)


async def rolled_up(rollups: RollupWriter) -> None:
    """Roll up whatever has news."""
    while await rollups.roll_up(1 << 60):
        pass


async def said(url: URL, but: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """What the tables say of the log."""
    return {name: found for name, found in (await rows(url)).items() if name not in (*OWN_TABLES, *but)}
