"""A main process in the test's own loop: real log, real file store, a stand-in frontend.

The store holds the recorded keys of a fleet of two prefill and two decode workers. No fleet
runs behind them, so subscriptions find nobody; chats go to the stand-in. There is no
follower process: a test that wants checkpoints writes them. Use `site_in` as a fixture's body.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import ClientSession

from app.config_load import load_config
from app.log_access import OwnedLog
from app.wiring import MainProcess
from ingest.log.segment_files import Disk
from ingest.log.segment_log import SegmentLog
from projections.checkpoint import checkpoint_records
from projections.events.codec import RecordRefused, decode_record
from projections.events.envelope import Record
from projections.fold import Fold
from replay.engine import records_of
from replay.verify import Report, verify
from tests.router.fake_frontend import FakeFrontend, running

RECORDINGS = Path(__file__).parents[1] / "recordings"
MODEL = "tiny-chat"
PATIENCE_S = 30.0


async def until(holds: Callable[[], Any], what: str = "", patience_s: float = PATIENCE_S) -> Any:
    """What `holds` returns once it is true; other tasks run meanwhile."""
    try:
        async with asyncio.timeout(patience_s):
            while not (found := holds()):  # noqa: ASYNC110  # whole processes tell nobody
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {patience_s:.0f} s: {what}") from None
    return found


class NoFollower:
    """In the place of the child process."""

    pid: int | None = None

    def __init__(self) -> None:
        self.is_running = False

    def start(self) -> None:
        self.is_running = True

    async def stop(self) -> None:
        self.is_running = False


class Site:
    """A place to run main processes in, one after another on one data directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.store = folder / "store"
        self.store.mkdir()
        self.files = _recorded_files()
        for file, text in self.files.items():
            self.put(file, text)
        self.frontend = FakeFrontend(
            prefill=dict.fromkeys(self.workers("prefill"), 1),
            decode=dict.fromkeys(self.workers("decode"), 1),
            models=(MODEL,),
        )
        self.file = folder / "config.yaml"
        self.config: dict[str, Any] = {
            "server": {"bind_address": "127.0.0.1:0"},
            "backends": [
                {
                    "name": "front",
                    "type": "openai",
                    "role": "unified",
                    "url": self.frontend.url,
                    "models": [MODEL],
                }
            ],
            "health_checks": {"interval": "1s"},
            "disaggregated_serving": {"enabled": True},
            "dynamo": {
                "enabled": True,
                "discovery": {
                    "source": "file",
                    "file": {"root": str(self.store), "ttl": "1h", "poll": "20ms"},
                },
                "load": {"direct_allow_cidrs": ["127.0.0.0/8"]},
                "shim": {"backends": ["front"]},
            },
            "log": {"retention": {"bytes": "64MiB"}, "raw": {"enabled": False}},
            "checkpoints": {"bytes": "16MiB"},
        }
        self.write(self.config)

    def workers(self, component: str) -> list[int]:
        """Ids of the recorded instances of a component."""
        head = f"v1/instances/dynamo%2F{component}%2Fgenerate%2F"
        return sorted(int(file.removeprefix(head), 16) for file in self.files if file.startswith(head))

    def files_of(self, worker: int) -> list[str]:
        """Files that name a worker by its id."""
        return [file for file in self.files if file.endswith(f"{worker:x}")]

    def put(self, file: str, text: str) -> None:
        """Write a record as a worker does."""
        path = self.store / file
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.parent / f".tmp_{path.name[:32]}"
        fresh.write_text(text)
        fresh.replace(path)

    def remove(self, worker: int) -> None:
        """Take a worker's records away, as it does when it is stopped."""
        for file in self.files_of(worker):
            (self.store / file).unlink()

    def restart(self, worker: int) -> int:
        """Put a worker's records as it writes them after a restart, under another id; those before stay."""
        fresh = worker ^ 0x5A5A
        for file in self.files_of(worker):
            text = self.files[file].replace(f"{worker:x}", f"{fresh:x}").replace(str(worker), str(fresh))
            name = file.replace(f"{worker:x}", f"{fresh:x}")
            self.files[name] = text
            self.put(name, text)
        return fresh

    def write(self, config: dict[str, Any]) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(yaml.safe_dump(config))
        fresh.replace(self.file)

    def process(self, disk: Disk | None = None) -> MainProcess:
        """A main process that is not run yet."""
        loaded = load_config(self.file, environment={})
        process = MainProcess(loaded, OwnedLog(self.data, loaded.config, disk))
        process.follower = NoFollower()  # type: ignore[assignment]
        return process

    @asynccontextmanager
    async def running(self, disk: Disk | None = None, *, ready: bool = True) -> AsyncIterator[Run]:
        """A process that runs during the block and is stopped behind it, if it has not ended."""
        run = Run(self.process(disk))
        try:
            if ready:
                await run.is_ready()
            yield run
        finally:
            await run.end()

    def records(self) -> list[Record]:
        """Every record of the log that can be read."""
        reader = SegmentLog.open_reader(self.data)
        found = []
        for offset, data in records_of(reader, reader.first_offset()):
            try:
                found.append(decode_record(offset, data))
            except RecordRefused:
                continue
        reader.close()
        return found

    def facts(self, *kinds: type) -> list[Any]:
        return [record.fact for record in self.records() if isinstance(record.fact, kinds)]

    def verified(self) -> Report:
        reader = SegmentLog.open_reader(self.data)
        try:
            return verify(reader, None)
        finally:
            reader.close()


@asynccontextmanager
async def site_in(folder: Path) -> AsyncIterator[Site]:
    """A site with its frontend running."""
    site = Site(folder)
    async with running(site.frontend):
        yield site


class Run:
    """One running main process."""

    def __init__(self, process: MainProcess) -> None:
        self.process = process
        self.task = asyncio.create_task(process.run())
        self._session = ClientSession()
        self._chats = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.process.ports[0]}"

    async def is_ready(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                assert not self.task.done(), self.task
                if self.process.ports and (await self.get("/ready"))[0] == 200:
                    return
                await asyncio.sleep(0.01)

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        async with self._session.get(self.url + path) as answer:
            return answer.status, json.loads(await answer.read())

    async def metrics(self) -> dict[str, float]:
        async with self._session.get(self.url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        pairs = [line.rpartition(" ") for line in lines if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in pairs}

    async def chat(self, name: str = "", **members: Any) -> tuple[int, bytes]:
        self._chats += 1
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **members}
        headers = {"x-request-id": name or f"chat-{self._chats}"}
        async with self._session.post(
            self.url + "/v1/chat/completions", json=body, headers=headers
        ) as answer:
            return answer.status, await answer.read()

    async def put_config(self, config: Any) -> tuple[int, dict[str, Any]]:
        async with self._session.put(self.url + "/admin/config", json=config) as answer:
            return answer.status, json.loads(await answer.read())

    async def flushed(self) -> None:
        """Until everything said so far is in the log and folded."""
        process = self.process
        assert process.writer is not None
        await process.writer.flush()
        end = process.store.end_offset()
        await until(lambda: process.folding.tail.next_offset >= end, "folded")

    async def end(self) -> int:
        """Stop it; its exit status."""
        self.process.stop()
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self.task
        finally:
            await self._session.close()

    def write_checkpoint(self) -> int:
        """A checkpoint of what the process holds now, as its follower would write it."""
        process = self.process
        fold: Fold = process.folding.tail.fold
        mark = fold.mark
        records = checkpoint_records(fold, process.store.log_id)
        process.checkpoints.write(process.store.log_id, mark.offset, mark.check, mark.time, records)
        return mark.offset


def _recorded_files() -> dict[str, str]:
    """The store of the recorded fleet once it stood."""
    found: dict[str, str] = {}
    with gzip.open(RECORDINGS / "file_kv-1.6.1-disagg.jsonl.gz", "rt") as lines:
        for line in lines:
            row = json.loads(line)
            if "dump" in row:
                if found:
                    break
                continue
            found[row["file"]] = row["text"]
    return found
