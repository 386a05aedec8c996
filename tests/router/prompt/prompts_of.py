"""Prompt requests of the demo's model, and what else tests of render processes share."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from projections.events.picks import KvResult
from router.prompt.prompt_blocks import PromptBlocks, PromptRequest, PromptResult
from router.prompt.render_input import CHAT_PATH
from tests.router.prompt.conversations import HELLO

TINY = Path(__file__).resolve().parents[3] / "deploy" / "demo" / "tiny-chat"
TOKENIZER = (TINY / "tokenizer.json").read_bytes()
CONFIG = (TINY / "tokenizer_config.json").read_bytes()


@dataclass(frozen=True)
class ModelFiles:
    """A model's files as they are loaded."""

    tokenizer: bytes = TOKENIZER
    tokenizer_config: bytes | None = CONFIG
    chat_template: bytes | None = None
    key: str = "tiny"


def files_of(template: str | None = None, tokenizer: bytes = TOKENIZER) -> ModelFiles:
    """The demo's model, with a template in the place of its own."""
    own = None if template is None else template.encode()
    return ModelFiles(tokenizer, CONFIG, own, f"{hash((template, tokenizer))}")


def asked(
    body: Mapping[str, Any] | None = None,
    *,
    files: ModelFiles | None = None,
    path: str = CHAT_PATH,
    headers: Mapping[str, str] | None = None,
    sizes: tuple[int, ...] = (16,),
    lora_name: str | None = None,
) -> PromptRequest:
    return PromptRequest(
        {"messages": [HELLO]} if body is None else body,
        headers or {},
        path,
        files or ModelFiles(),
        sizes,
        lora_name,
    )


@asynccontextmanager
async def prompt_blocks(engine: str = "minijinja", cores: int = 2) -> AsyncIterator[PromptBlocks]:
    """A door that is closed in the end; none of its processes is left then."""
    blocks = PromptBlocks(engine, cores)
    started: set[int] = set()
    try:
        yield blocks
        started.update(blocks.renderers.pids, blocks.encoders.pids)
    finally:
        await blocks.close()
    assert not [pid for pid in started if is_running(pid)]


async def read(blocks: PromptBlocks, request: PromptRequest) -> PromptResult:
    """As blocks_of, once the tokenizer is there: on a busy machine that takes a while."""
    async with asyncio.timeout(20):
        while True:
            result = await blocks.blocks_of(request)
            if result.result is not KvResult.TOKENIZER_UNAVAILABLE or "being loaded" not in result.detail:
                return result
            await asyncio.sleep(0.02)


async def ready(blocks: PromptBlocks) -> None:
    """A usual prompt is read: at once, or at one of the next tries where a busy machine starts processes."""
    async with asyncio.timeout(20):
        while (found := await read(blocks, asked())).result is not KvResult.READY:
            assert found.result is KvResult.RENDER_UNAVAILABLE, found
            await asyncio.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(is_so: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that other processes do."""
    async with asyncio.timeout(seconds):
        while not is_so():  # noqa: ASYNC110 - there is no event of another process
            await asyncio.sleep(0.01)


@asynccontextmanager
async def longest_pause() -> AsyncIterator[list[float]]:
    """The longest time for which the loop did not come round, in seconds, as its one item."""
    found = [0.0]
    loop = asyncio.get_running_loop()

    async def watch() -> None:
        before = loop.time()
        while True:
            await asyncio.sleep(0.001)
            now = loop.time()
            found[0] = max(found[0], now - before)
            before = now

    task = asyncio.create_task(watch())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def recorded_frontend() -> list[dict[str, Any]]:
    """What frontends of three releases made of the demo's model."""
    return _recorded("frontend-renders")


def recorded_requests() -> list[dict[str, Any]]:
    """Requests of five fleets, and the first and last block that their workers stored for each."""
    return _recorded("kv_prompts")


def _recorded(name: str) -> list[dict[str, Any]]:
    path = Path(__file__).resolve().parents[2] / "recordings" / f"{name}.jsonl.gz"
    with gzip.open(path, "rt") as rows:
        return list(map(json.loads, rows))


def limits_of(pid: int) -> dict[str, str]:
    """Soft limits of a process by their names in /proc."""
    rows = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    return {row[:25].strip(): row[25:].split()[0] for row in rows}


def descriptors_of(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    return [os.readlink(folder / name) for name in os.listdir(folder)]
