"""The watch reads files that stand still, whole or not at all."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.config_findings import ConfigError
from app.config_load import LoadedConfig, load_config, look_at
from app.config_watch import FileWatch, watch_config_files

A = ((1, 1, 1),)
B = ((2, 2, 2),)
C = ((3, 3, 3),)


def test_file_is_read_when_it_stood_still_for_one_look() -> None:
    watch = FileWatch(A)
    assert [watch.should_read(seen) for seen in (A, B, C, C)] == [False, False, False, True]


def test_file_that_was_read_is_not_read_again_until_it_changes() -> None:
    watch = FileWatch(A)
    assert [watch.should_read(B), watch.should_read(B)] == [False, True]
    watch.was_read(B)
    assert not watch.should_read(B)
    assert [watch.should_read(A), watch.should_read(A)] == [False, True]


def test_file_that_went_back_to_what_is_in_force_is_not_read() -> None:
    watch = FileWatch(A)
    assert [watch.should_read(seen) for seen in (B, A, A)] == [False, False, False]


def test_renamed_and_linked_files_are_seen_and_missing_ones_do_not_raise(tmp_path: Path) -> None:
    real, link = tmp_path / "one", tmp_path / "link"
    real.write_text("x")
    link.symlink_to(real)
    before = look_at([link, tmp_path / "missing"])
    assert before[1] is None
    fresh = tmp_path / "two"
    fresh.write_text("x")
    modified_ns = real.stat().st_mtime_ns
    os.utime(fresh, ns=(modified_ns, modified_ns))
    fresh.replace(real)
    assert look_at([link]) != before[:1]


@asynccontextmanager
async def watching(
    path: Path,
) -> AsyncIterator[tuple[asyncio.Queue[LoadedConfig], asyncio.Queue[ConfigError]]]:
    changes: asyncio.Queue[LoadedConfig] = asyncio.Queue()
    refusals: asyncio.Queue[ConfigError] = asyncio.Queue()

    def load() -> LoadedConfig:
        return load_config(path, environment={})

    async with asyncio.TaskGroup() as group:
        task = group.create_task(
            watch_config_files(load(), load, changes.put, refusals.put_nowait, poll_s=0.005)
        )
        try:
            yield changes, refusals
        finally:
            task.cancel()


@pytest.mark.req("REL-17")
@pytest.mark.field("B-142")
async def test_refused_file_changes_nothing_and_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("request: {max_retries: 1}\n")
    async with asyncio.timeout(30), watching(path) as (changes, refusals):
        path.write_text("request: {max_retries: 1\n")
        refused = await refusals.get()
        assert "not valid YAML" in str(refused)
        path.write_text("request: {max_retrys: 2}\n")
        assert "unknown key" in str(await refusals.get())
        path.unlink()
        assert "cannot be read" in str(await refusals.get())
        assert changes.empty()
        path.write_text("request: {max_retries: 3}\n")
        assert (await changes.get()).config.request.max_retries == 3
        assert refusals.empty()


async def test_key_file_that_a_new_configuration_names_is_watched_too(tmp_path: Path) -> None:
    path, keys = tmp_path / "config.yaml", tmp_path / "keys.yaml"
    path.write_text("{}")
    keys.write_text("keys: [{id: a, key: ka}]")
    async with asyncio.timeout(30), watching(path) as (changes, _):
        path.write_text("api_keys: {file: keys.yaml}")
        assert [entry.id for entry in (await changes.get()).config.api_keys.keys] == ["a"]
        keys.write_text("keys: [{id: a, key: ka}, {id: b, key: kb}]")
        assert [entry.id for entry in (await changes.get()).config.api_keys.keys] == ["a", "b"]


async def test_without_files_there_is_nothing_to_watch() -> None:
    loaded = load_config(Path(os.devnull), environment={})
    nothing = LoadedConfig(loaded.config, loaded.report, None)

    async def on_change(_: LoadedConfig) -> None:
        raise AssertionError

    watch = asyncio.create_task(watch_config_files(nothing, lambda: nothing, on_change, lambda _: None))
    done, _ = await asyncio.wait([watch], timeout=30)
    assert done == {watch} and watch.exception() is None
