"""The store: nothing without a pin, loads in the background, bounded in every direction."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import router.prompt.artifacts as artifacts_module
from projections.bounds import ARTIFACT_BYTES_MAX, ARTIFACT_SETS_MAX
from projections.events.picks import KvResult
from projections.registry.artifacts import ArtifactKind
from router.prompt.artifact_cache import BlobCache, checksum_of
from router.prompt.artifacts import (
    ArtifactSet,
    ArtifactSettings,
    ArtifactStore,
    LoadedFiles,
    Pending,
    Refused,
)
from tests.router.prompt.artifact_workers import config, named, wanted
from tests.router.prompt.file_server import head_of, ok, serving
from tests.router.rig import until

TOKENIZER = b'{"model": {}}'
CONFIG = b'{"chat_template": "x"}'
SLOW = 20_000_000


class Desk:
    """A store with a clock of its own, and everything it said and counted."""

    def __init__(self, settings: ArtifactSettings) -> None:
        self.now = 1_000.0
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.counts: Counter[str] = Counter()
        self.store = ArtifactStore(settings, lambda: self.now, self.say, self.count)

    def say(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    def count(self, result: str) -> None:
        self.counts[str(result)] += 1

    async def settled(self, files: ArtifactSet) -> LoadedFiles | Refused:
        """The answer once there is one."""
        found = self.store.files_of(files)
        if isinstance(found, Pending):
            await until(lambda: not isinstance(self.store.files_of(files), Pending))
            found = self.store.files_of(files)
        assert not isinstance(found, Pending)
        return found

    async def loaded(self, files: ArtifactSet) -> LoadedFiles:
        found = await self.settled(files)
        assert isinstance(found, LoadedFiles), found
        return found

    async def refused(self, files: ArtifactSet, reason: KvResult = KvResult.TOKENIZER_UNAVAILABLE) -> str:
        found = await self.settled(files)
        assert isinstance(found, Refused) and found.reason is reason
        return found.detail


@pytest.fixture
async def desks() -> AsyncIterator[list[Desk]]:
    """Desks that are closed at the end."""
    opened: list[Desk] = []
    yield opened
    for desk in opened:
        await desk.store.close()


def desk_of(desks: list[Desk], *pinned: ArtifactSet, cache: Path | None = None, **more: Any) -> Desk:
    checksums = frozenset(file.checksum for files in pinned for file in files.files)
    desk = Desk(ArtifactSettings(cache_dir=cache, pinned=checksums, **more))
    desks.append(desk)
    return desk


def on_disk(folder: Path, name: str, data: bytes) -> str:
    path = folder / name
    path.write_bytes(data)
    return str(path)


def local_set(folder: Path, number: int = 0, model: str = "tiny-chat", padding: int = 0) -> ArtifactSet:
    data = TOKENIZER + b" " * padding + b"%d" % number
    return wanted(named(data, on_disk(folder, f"t{number}", data)), model=model)


@pytest.mark.req("ART-03", "ART-09")
async def test_pinned_local_files_are_loaded_in_the_background(desks: list[Desk], tmp_path: Path) -> None:
    files = wanted(
        named(TOKENIZER, on_disk(tmp_path, "t", TOKENIZER)),
        config(CONFIG, "file://" + on_disk(tmp_path, "c", CONFIG)),
    )
    desk = desk_of(desks, files, cache=tmp_path / "cache")
    assert isinstance(desk.store.files_of(files), Pending)
    found = await desk.loaded(files)
    assert (found.tokenizer, found.tokenizer_config, found.chat_template) == (TOKENIZER, CONFIG, None)
    assert found.key == files.key.text and found.size == len(TOKENIZER) + len(CONFIG)
    assert desk.counts == {"loaded": 2} and desk.lines == []
    assert not (tmp_path / "cache").exists(), "what lies on this machine is not kept twice"


@pytest.mark.req("ART-09", "ART-10", "ART-11")
async def test_without_a_pin_nothing_is_asked_opened_or_cached_and_one_line_says_what_to_pin(
    desks: list[Desk], tmp_path: Path
) -> None:
    async with serving() as server:
        server.answers["/t"] = ok(TOKENIZER)
        files = wanted(named(TOKENIZER, server.url("/t")), config(CONFIG, on_disk(tmp_path, "c", CONFIG)))
        desk = desk_of(desks, cache=tmp_path / "cache", allow_hf=True)
        BlobCache(tmp_path / "cache").write(files.files[0].checksum, b"changed")
        for _ in range(3):
            detail = await desk.refused(files, KvResult.ARTIFACT_UNPINNED)
        assert detail == f"tokenizer {files.files[0].checksum}"
        assert server.connections == 0
        assert BlobCache(tmp_path / "cache").path_of(files.files[0].checksum).exists(), (
            "unpinned: not even looked at"
        )
    assert desk.counts == {"unpinned": 2}
    ((what, fields),) = desk.lines
    assert what == "artifacts of a model are not pinned"
    assert fields == {
        "model": "tiny-chat",
        "artifacts": f"tokenizer hf_tokenizer_json http {checksum_of(TOKENIZER)}, "
        f"prompt_formatter hf_tokenizer_config_json file {checksum_of(CONFIG)}",
    }


@pytest.mark.req("ART-09")
async def test_one_missing_pin_keeps_the_whole_set_out(desks: list[Desk]) -> None:
    async with serving() as server:
        files = wanted(named(TOKENIZER, server.url("/t")), config(CONFIG, server.url("/c")))
        desk = Desk(ArtifactSettings(pinned=frozenset((files.files[0].checksum,))))
        desks.append(desk)
        await desk.refused(files, KvResult.ARTIFACT_UNPINNED)
        assert server.connections == 0 and desk.counts == {"unpinned": 1}


async def test_cards_that_change_their_checksums_all_the_time_fill_no_log(desks: list[Desk]) -> None:
    desk = desk_of(desks)
    for number in range(50):
        await desk.refused(wanted(named(b"%d" % number, "/t")), KvResult.ARTIFACT_UNPINNED)
    assert len(desk.lines) == 1
    desk.now += 61
    await desk.refused(wanted(named(b"49", "/t")), KvResult.ARTIFACT_UNPINNED)
    await desk.refused(wanted(named(b"1", "/t"), model="other"), KvResult.ARTIFACT_UNPINNED)
    assert [fields["model"] for _, fields in desk.lines] == ["tiny-chat", "tiny-chat", "other"]


@pytest.mark.req("ART-12")
async def test_taking_a_pin_away_drops_the_files_at_once(desks: list[Desk], tmp_path: Path) -> None:
    files, other = local_set(tmp_path), local_set(tmp_path, 1, "other")
    desk = desk_of(desks, files, other)
    await desk.loaded(files)
    kept = await desk.loaded(other)
    desk.store.reconfigure(ArtifactSettings(pinned=frozenset((other.files[0].checksum,))))
    assert isinstance(desk.store.files_of(files), Refused)
    assert desk.store.files_of(other) is kept
    desk.store.reconfigure(
        ArtifactSettings(pinned=frozenset((files.files[0].checksum, other.files[0].checksum)))
    )
    await desk.loaded(files)


@pytest.mark.req("ART-12")
async def test_taking_a_pin_away_ends_a_load_that_is_on_its_way(desks: list[Desk], tmp_path: Path) -> None:
    async def hold(writer: asyncio.StreamWriter) -> None:
        writer.write(head_of(200, len(TOKENIZER)))
        await writer.drain()
        await release.wait()
        writer.write(TOKENIZER)

    release = asyncio.Event()
    async with serving() as server:
        server.answers["/t"] = hold
        files = wanted(named(TOKENIZER, server.url("/t")))
        desk = desk_of(desks, files, cache=tmp_path)
        assert isinstance(desk.store.files_of(files), Pending)
        await until(lambda: server.running == 1)
        desk.store.reconfigure(ArtifactSettings(cache_dir=tmp_path))
        assert isinstance(desk.store.files_of(files), Refused)
        release.set()
        await until(lambda: server.running == 0)
        assert isinstance(desk.store.files_of(files), Refused)
    assert os.listdir(tmp_path) == [] and "loaded" not in desk.counts


@pytest.mark.req("ART-04")
async def test_http_is_fetched_only_where_it_is_allowed(desks: list[Desk]) -> None:
    async with serving() as server:
        server.answers["/t"] = ok(TOKENIZER)
        files = wanted(named(TOKENIZER, server.url("/t")))
        desk = desk_of(desks, files, allow_http=False)
        assert "allow_http_artifacts" in await desk.refused(files)
        assert server.connections == 0 and desk.counts == {"refused_scheme": 1}
        desk.store.reconfigure(ArtifactSettings(pinned=frozenset((files.files[0].checksum,))))
        assert (await desk.loaded(files)).tokenizer == TOKENIZER


@pytest.mark.req("ART-05")
async def test_the_hub_is_asked_only_where_it_is_allowed_and_alone_gets_the_token(desks: list[Desk]) -> None:
    async with serving() as hub, serving() as other:
        hub.answers["/org/m/resolve/v1/t.json"] = ok(TOKENIZER)
        other.answers["/t"] = ok(CONFIG)
        files = wanted(named(TOKENIZER, "hf://org/m@v1/t.json"), config(CONFIG, other.url("/t")))
        desk = desk_of(desks, files, hf_endpoint=hub.url(""), hf_token="secret")
        assert "allow_hf_artifacts" in await desk.refused(files)
        assert hub.connections == 0
        desk.store.reconfigure(
            ArtifactSettings(
                pinned=frozenset(file.checksum for file in files.files),
                allow_hf=True,
                hf_endpoint=hub.url(""),
                hf_token="secret",
            )
        )
        await desk.loaded(files)
        assert [headers.get("authorization") for _, headers in hub.requests] == ["Bearer secret"]
        assert [headers.get("authorization") for _, headers in other.requests] == [None]
    assert "secret" not in str(desk.lines)


async def test_a_hub_that_is_no_address_is_a_failure_like_others(desks: list[Desk]) -> None:
    files = wanted(named(TOKENIZER, "hf://org/m/t.json"))
    desk = desk_of(desks, files, allow_hf=True, hf_endpoint="nowhere")
    assert "endpoint" in await desk.refused(files)


@pytest.mark.req("ART-06")
async def test_a_file_declared_too_large_is_never_asked_for(desks: list[Desk]) -> None:
    async with serving() as server:
        files = wanted(named(TOKENIZER, server.url("/t"), size=ARTIFACT_BYTES_MAX + 1))
        desk = desk_of(desks, files)
        assert "declared" in await desk.refused(files)
        assert server.connections == 0 and desk.counts == {"too_large": 1}


@pytest.mark.req("ART-06")
async def test_a_card_that_lies_about_the_size_gets_no_more_than_the_ceiling(desks: list[Desk]) -> None:
    async with serving() as server:
        server.answers["/t"] = head_of(200, ARTIFACT_BYTES_MAX + 1)
        files = wanted(named(TOKENIZER, server.url("/t"), size=10))
        desk = desk_of(desks, files)
        await desk.refused(files)
        assert desk.counts == {"too_large": 1}


@pytest.mark.req("ART-07")
async def test_other_contents_than_the_card_names_are_refused_wherever_they_lie(
    desks: list[Desk], tmp_path: Path
) -> None:
    async with serving() as server:
        server.answers["/t"] = ok(b"evil")
        for place in (server.url("/t"), on_disk(tmp_path, "t", b"evil")):
            files = wanted(named(TOKENIZER, place))
            desk = desk_of(desks, files, cache=tmp_path / "cache")
            assert "another checksum" in await desk.refused(files)
            assert desk.counts == {"checksum_mismatch": 1}
    assert not (tmp_path / "cache").exists()


@pytest.mark.req("ART-07", "ART-08")
async def test_what_was_fetched_is_kept_and_verified_when_it_is_used_again(
    desks: list[Desk], tmp_path: Path
) -> None:
    async with serving() as server:
        server.answers["/t"] = ok(TOKENIZER)
        files = wanted(named(TOKENIZER, server.url("/t")))
        await desk_of(desks, files, cache=tmp_path).loaded(files)
        path = BlobCache(tmp_path).path_of(files.files[0].checksum)
        assert path.read_bytes() == TOKENIZER and path.stat().st_mode & 0o077 == 0
        again = desk_of(desks, files, cache=tmp_path)
        await again.loaded(files)
        assert server.connections == 1 and again.counts == {"loaded": 1}

        path.write_bytes(TOKENIZER.replace(b"model", b"nodel"))
        third = desk_of(desks, files, cache=tmp_path)
        assert (await third.loaded(files)).tokenizer == TOKENIZER
        assert server.connections == 2 and third.counts == {"evicted": 1, "loaded": 1}
        assert path.read_bytes() == TOKENIZER
        assert third.lines[0][0] == "a cached artifact had been changed and was removed"


async def test_a_cache_that_cannot_be_used_costs_a_line_and_no_load(
    desks: list[Desk], tmp_path: Path
) -> None:
    (tmp_path / "blobs").write_bytes(b"a file in the way")
    async with serving() as server:
        server.answers["/t"] = ok(TOKENIZER)
        files = wanted(named(TOKENIZER, server.url("/t")))
        desk = desk_of(desks, files, cache=tmp_path)
        await desk.loaded(files)
    assert [what for what, _ in desk.lines] == [
        "the artifact cache cannot be read",
        "an artifact cannot be cached",
    ]


async def test_every_place_that_workers_name_is_tried_this_machine_first(
    desks: list[Desk], tmp_path: Path
) -> None:
    async with serving() as server:
        server.answers["/b"] = ok(TOKENIZER)
        files = wanted(named(TOKENIZER, server.url("/a")))
        places = (server.url("/a"), "s3://x/y", str(tmp_path / "absent"), server.url("/b"))
        files = files._replace(files=(files.files[0]._replace(sources=places),))
        desk = desk_of(desks, files)
        await desk.loaded(files)
        assert server.paths == ["/a", "/b"]
        assert desk.counts == {"fetch_failed": 2, "loaded": 1}


@pytest.mark.req("ART-13")
async def test_a_failure_is_tried_again_after_five_minutes(desks: list[Desk]) -> None:
    async with serving() as server:
        files = wanted(named(TOKENIZER, server.url("/t")))
        desk = desk_of(desks, files)
        assert await desk.refused(files) == "tokenizer cannot be loaded: http: status 404"
        server.answers["/t"] = ok(TOKENIZER)
        desk.now += 299.9
        await desk.refused(files)
        assert server.connections == 1
        desk.now += 0.2
        await desk.loaded(files)
        assert server.connections == 2
    ((what, fields),) = desk.lines
    assert what == "artifacts of a model cannot be loaded"
    assert fields["model"] == "tiny-chat" and fields["slot"] == "tokenizer"
    assert "127.0.0.1" not in str(fields)


@pytest.mark.req("ART-13")
async def test_a_model_with_a_bad_place_costs_no_other_model_the_same_files(
    desks: list[Desk], tmp_path: Path
) -> None:
    async with serving() as server:
        good = wanted(named(TOKENIZER, on_disk(tmp_path, "t", TOKENIZER)), model="good")
        desk = desk_of(desks, good)
        for number in range(artifacts_module.PLACES_TRIED_MAX - 1):
            bad = wanted(named(TOKENIZER, server.url(f"/{number}")), model=f"bad-{number}")
            for _ in range(2):
                assert "status 404" in await desk.refused(bad)
        assert server.connections == artifacts_module.PLACES_TRIED_MAX - 1
        await desk.loaded(good)


@pytest.mark.req("ART-13")
async def test_places_that_change_all_the_time_are_not_all_tried(desks: list[Desk]) -> None:
    async with serving() as server:
        desk = desk_of(desks, wanted(named(TOKENIZER, server.url("/"))))
        for number in range(artifacts_module.PLACES_TRIED_MAX + 5):
            await desk.refused(wanted(named(TOKENIZER, server.url(f"/{number}"))))
        assert server.connections == artifacts_module.PLACES_TRIED_MAX
        desk.now += 300.1
        await desk.refused(wanted(named(TOKENIZER, server.url("/more"))))
        assert server.connections == artifacts_module.PLACES_TRIED_MAX + 1


async def test_other_settings_are_a_reason_to_try_again_at_once(desks: list[Desk]) -> None:
    async with serving() as server:
        files = wanted(named(TOKENIZER, server.url("/t")))
        desk = desk_of(desks, files)
        await desk.refused(files)
        server.answers["/t"] = ok(TOKENIZER)
        settings = ArtifactSettings(pinned=frozenset((files.files[0].checksum,)))
        desk.store.reconfigure(settings)
        await desk.refused(files)
        desk.store.reconfigure(replace(settings, stall_us=SLOW))
        await desk.loaded(files)


@pytest.mark.req("ART-13")
async def test_two_loads_run_at_once_and_further_ones_wait(desks: list[Desk]) -> None:
    async def hold(writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(ok(b"x"))

    release = asyncio.Event()
    async with serving() as server:
        sets = [wanted(named(b"x%d" % n, server.url(f"/{n}"))) for n in range(40)]
        server.answers = {f"/{n}": hold for n in range(40)}
        desk = desk_of(desks, *sets)
        for files in sets:
            assert isinstance(desk.store.files_of(files), Pending)
        await until(lambda: server.running == 2)
        release.set()
        await until(lambda: len(desk.lines) == artifacts_module.WAITING_MAX)
        assert server.running_max == 2
        assert server.connections == artifacts_module.WAITING_MAX, "more than so many do not even wait"


@pytest.mark.req("ART-14")
async def test_models_with_the_same_files_share_one_load(desks: list[Desk]) -> None:
    async with serving() as server:
        server.answers["/t"] = ok(TOKENIZER)
        one = wanted(named(TOKENIZER, server.url("/t")))
        two = wanted(named(TOKENIZER, server.url("/t")), model="other")
        desk = desk_of(desks, one)
        assert isinstance(desk.store.files_of(one), Pending)
        assert isinstance(desk.store.files_of(two), Pending)
        assert await desk.loaded(one) is await desk.loaded(two)
        assert server.connections == 1


@pytest.mark.req("ART-13")
async def test_the_least_lately_used_of_seventeen_sets_gives_way_and_waits(
    desks: list[Desk], tmp_path: Path
) -> None:
    sets = [local_set(tmp_path, number) for number in range(ARTIFACT_SETS_MAX + 1)]
    desk = desk_of(desks, *sets)
    for files in sets[:-1]:
        await desk.loaded(files)
    await desk.loaded(sets[0])
    await desk.loaded(sets[-1])
    held = [isinstance(desk.store.files_of(files), LoadedFiles) for files in sets]
    assert held == [True, False, *[True] * (ARTIFACT_SETS_MAX - 1)]
    assert "give way" in await desk.refused(sets[1])
    desk.now += 301
    await desk.loaded(sets[1])


@pytest.mark.req("ART-13")
async def test_sets_together_stay_below_their_bytes(
    desks: list[Desk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts_module, "ARTIFACT_SETS_BYTES_MAX", 10_000)
    sets = [local_set(tmp_path, number, padding=4_000) for number in range(3)]
    desk = desk_of(desks, *sets)
    for files in sets:
        await desk.loaded(files)
    assert [isinstance(desk.store.files_of(files), LoadedFiles) for files in sets] == [False, True, True]


@pytest.mark.req("ART-02")
@pytest.mark.parametrize("kind", [ArtifactKind.TIK_TOKEN_MODEL, ArtifactKind.OTHER])
async def test_kinds_that_cannot_be_used_are_counted_and_never_opened(
    desks: list[Desk], kind: ArtifactKind
) -> None:
    async with serving() as server:
        files = wanted(named(TOKENIZER, server.url("/t"), kind))
        desk = desk_of(desks, files)
        for _ in range(3):
            assert kind.label in await desk.refused(files)
        assert server.connections == 0
    assert desk.counts == {"unsupported": 1} and len(desk.lines) == 1


@pytest.mark.req("ART-02")
async def test_templates_of_every_form_become_text(desks: list[Desk], tmp_path: Path) -> None:
    text = b"{{ messages }}"
    as_json = json.dumps({"chat_template": text.decode()}).encode()
    as_list = json.dumps(
        {"chat_template": [{"name": "rag", "template": "no"}, {"name": "default", "template": text.decode()}]}
    ).encode()
    jinja, of_json = ArtifactKind.HF_CHAT_TEMPLATE, ArtifactKind.HF_CHAT_TEMPLATE_JSON
    tokenizer = named(TOKENIZER, on_disk(tmp_path, "t", TOKENIZER))
    settings = config(CONFIG, on_disk(tmp_path, "c", CONFIG))
    cases = [
        (settings, None, (CONFIG, None)),
        (settings, named(text, on_disk(tmp_path, "1", text), jinja), (CONFIG, text)),
        (settings, named(as_json, on_disk(tmp_path, "2", as_json), of_json), (CONFIG, text)),
        (settings, named(as_list, on_disk(tmp_path, "3", as_list), of_json), (CONFIG, text)),
        (named(text, on_disk(tmp_path, "4", text), jinja), None, (None, text)),
        (None, None, (None, None)),
    ]
    for formatter, template, expected in cases:
        files = wanted(tokenizer, formatter, template)
        found = await desk_of(desks, files).loaded(files)
        assert (found.tokenizer_config, found.chat_template) == expected


@pytest.mark.req("ART-16")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"chat_template": 7}',
        b'{"chat_template": [{"name": "rag", "template": "x"}]}',
        b'{"chat_template": [7]}',
        b'{"chat_template": "\\ud800"}',
        b"[" * 100_000,
        b'{"chat_template": "x"}' + b" " * (4 << 20),
    ],
)
async def test_a_json_without_a_template_is_a_failed_load(
    desks: list[Desk], tmp_path: Path, data: bytes
) -> None:
    files = wanted(
        named(TOKENIZER, on_disk(tmp_path, "t", TOKENIZER)),
        None,
        named(data, on_disk(tmp_path, "j", data), ArtifactKind.HF_CHAT_TEMPLATE_JSON),
    )
    desk = desk_of(desks, files)
    await desk.refused(files)
    assert desk.counts["load_failed"] == 1


async def test_a_disk_that_hangs_ends_with_its_deadline(
    desks: list[Desk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(artifacts_module, "read_local", lambda path: release.wait() and b"")
    files = local_set(tmp_path)
    desk = desk_of(desks, files, file_us=20_000)
    assert "no answer of the disk" in await desk.refused(files)
    release.set()


async def test_a_set_that_takes_too_long_as_a_whole_is_given_up(desks: list[Desk]) -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with serving() as server:
        server.answers["/t"] = silent
        files = wanted(named(TOKENIZER, server.url("/t")))
        desk = desk_of(desks, files, set_us=50_000)
        assert "out of time" in await desk.refused(files)
        assert desk.counts == {"fetch_failed": 1}


async def test_a_fault_of_ours_is_told_to_the_loop_and_fails_the_load_alone(
    desks: list[Desk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    monkeypatch.setattr(artifacts_module, "read_local", lambda path: 1 // 0)
    files = local_set(tmp_path)
    desk = desk_of(desks, files)
    assert "internal error" in await desk.refused(files)
    assert [type(context["exception"]) for context in told] == [ZeroDivisionError]


async def test_a_closed_store_loads_nothing(desks: list[Desk], tmp_path: Path) -> None:
    files, other = local_set(tmp_path), local_set(tmp_path, 1)
    desk = desk_of(desks, files, other)
    await desk.loaded(files)
    assert isinstance(desk.store.files_of(other), Pending)
    await desk.store.close()
    assert isinstance(desk.store.files_of(files), Refused)
    assert isinstance(desk.store.files_of(other), Refused)


async def test_a_pipe_as_a_place_is_no_file(desks: list[Desk], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    files = wanted(named(TOKENIZER, str(tmp_path / "pipe")))
    desk = desk_of(desks, files)
    assert "no regular file" in await desk.refused(files)
