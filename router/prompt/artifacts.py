"""Which files are pinned, loaded, on their way or refused: the store that prompts are made from.

A template is code and a tokenizer nearly so, written by the fleet. So an operator reviews
each file and pins its checksum; without the pin it is not opened, contacted, cached or
loaded (ART-09), and the log says once per model what would have to be pinned. Taking a pin
away drops what was loaded at once.

Asking never waits: `files_of` answers with what is there. Loads run in the background, two
at a time, and are shared by models whose files are the same. At most 16 sets and 256 MiB
stay in memory, the least lately used go first; while two load, up to 384 MiB more are in
use. After a failure, and after a set had to give way, its next load waits five minutes, so
that neither a dead server nor a seventeenth model keeps the disk busy. A failure is one of
places: a model that names others for the same files does not wait.

Each file is looked for in the cache, on this machine, at workers' own addresses and at the
hub, in this order, and verified wherever it comes from. Files of this machine are not
cached: they lie there already.

Time is the caller's monotonic clock, so that tests need not wait. Everything here runs on
one event loop.

Sources: specification, "Artifacts"; requirement rows ART-01..16.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from projections.bounds import (
    ARTIFACT_BYTES_MAX,
    ARTIFACT_LOADS_MAX,
    ARTIFACT_MODELS_SAID_MAX,
    ARTIFACT_RETRY_US,
    ARTIFACT_SETS_BYTES_MAX,
    ARTIFACT_SETS_MAX,
    MIB,
    SECOND_US,
)
from projections.events.picks import KvResult
from projections.registry.artifacts import ArtifactKind
from router.prompt.artifact_cache import ArtifactUnusable, BlobCache, read_local, verified
from router.prompt.artifact_fetch import FetchLimits, fetch
from router.prompt.artifact_set import (
    FORMATTER,
    TEMPLATE,
    TOKENIZER,
    ArtifactKey,
    ArtifactResult,
    ArtifactSet,
    ArtifactSettings,
    LoadedFiles,
    Pending,
    Refused,
    WantedFile,
)
from router.prompt.artifact_source import HubFile, LocalFile, Source, rank_of, scheme_of, source_of
from router.prompt.artifact_thread import Threads

__all__ = [
    "ArtifactKey",
    "ArtifactResult",
    "ArtifactSet",
    "ArtifactSettings",
    "ArtifactStore",
    "LoadedFiles",
    "Pending",
    "Refused",
]

WAITING_MAX: Final = 16  # sets that wait for a place to load, running ones included
PLACES_TRIED_MAX: Final = 16  # sets of places for the same files before all wait
FAILURES_MAX: Final = 1_024  # remembered, oldest out
WORK_S: Final = 30.0  # for hashing and parsing one file in a thread
TEMPLATE_JSON_BYTES_MAX: Final = 4 * MIB  # parsing keeps the interpreter's lock; real ones have some 20 KiB
SAY_AGAIN_S: Final = 60.0  # cards that change their checksums all the time fill no log
_RETRY_S: Final = ARTIFACT_RETRY_US / SECOND_US
_TEMPLATES: Final = (ArtifactKind.HF_CHAT_TEMPLATE, ArtifactKind.HF_CHAT_TEMPLATE_JSON)
_USABLE: Final = {
    TOKENIZER: (ArtifactKind.HF_TOKENIZER_JSON,),
    FORMATTER: (ArtifactKind.HF_TOKENIZER_CONFIG_JSON, *_TEMPLATES),
    TEMPLATE: _TEMPLATES,
}
_PENDING: Final = Pending()


class _Failure(NamedTuple):
    """at: the store's clock, seconds. tried: the sets that failed; none where no place is at fault."""

    at: float
    detail: str
    tried: tuple[ArtifactSet, ...] = ()

    def concerns(self, wanted: ArtifactSet) -> bool:
        """Whether the set has to wait. Another model may know a better place for the same files."""
        if not self.tried or len(self.tried) >= PLACES_TRIED_MAX:
            return True
        return any(one.files == wanted.files for one in self.tried)


class ArtifactStore:
    """Loads pinned files in the background and answers at once with what there is.

    now: monotonic seconds. say: a line of the log, an event and its fields. counted: takes
    each ArtifactResult as text.
    """

    def __init__(
        self,
        settings: ArtifactSettings,
        now: Callable[[], float],
        say: Callable[..., None],
        counted: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._now = now
        self._say = say
        self._counted = counted
        self._cache = _cache_of(settings)
        self._permits = asyncio.Semaphore(ARTIFACT_LOADS_MAX)
        self._threads = Threads(2 * ARTIFACT_LOADS_MAX)  # a hung read leaves room for others
        self._loaded: OrderedDict[ArtifactKey, LoadedFiles] = OrderedDict()
        self._loading: dict[ArtifactKey, tuple[ArtifactSet, asyncio.Task[None]]] = {}
        self._failed: OrderedDict[ArtifactKey, _Failure] = OrderedDict()
        self._said: OrderedDict[str, tuple[tuple[str, ...], float]] = OrderedDict()
        self._closed = False

    def files_of(self, wanted: ArtifactSet) -> LoadedFiles | Pending | Refused:
        """The files of a set if they are loaded; starts to load them where they are pinned and absent."""
        held = self._loaded.get(wanted.key)
        if held is not None:
            self._loaded.move_to_end(wanted.key)
            return held
        odd = [file for file in wanted.files if file.kind not in _USABLE[file.slot]]
        if odd:
            self._tell_once(wanted, odd, ArtifactResult.UNSUPPORTED, "artifacts of a model are not supported")
            detail = f"{odd[0].slot} of kind {odd[0].kind.label} is not supported"
            return Refused(KvResult.TOKENIZER_UNAVAILABLE, detail)
        missing = self._unpinned(wanted)
        if missing:
            self._tell_once(wanted, missing, ArtifactResult.UNPINNED, "artifacts of a model are not pinned")
            return Refused(KvResult.ARTIFACT_UNPINNED, f"{missing[0].slot} {missing[0].checksum}")
        if wanted.key in self._loading:
            return _PENDING
        failure = self._failed.get(wanted.key)
        if failure is not None and self._is_recent(failure) and failure.concerns(wanted):
            return Refused(KvResult.TOKENIZER_UNAVAILABLE, failure.detail)
        if self._closed:
            return Refused(KvResult.TOKENIZER_UNAVAILABLE, "the router is ending")
        if len(self._loading) < WAITING_MAX:
            task = asyncio.get_running_loop().create_task(self._load(wanted))
            self._loading[wanted.key] = (wanted, task)
            task.add_done_callback(lambda done: self._ended(wanted.key, done))
        return _PENDING

    def reconfigure(self, settings: ArtifactSettings) -> None:
        """Other settings from now on. What is pinned no longer is dropped at once (ART-12)."""
        before, self._settings = self._settings, settings
        if settings == before:
            return
        self._cache = _cache_of(settings)
        self._failed.clear()
        self._said.clear()
        for key in list(self._loaded):
            if any(checksum and checksum not in settings.pinned for checksum in _checksums(key)):
                del self._loaded[key]
        others = replace(settings, pinned=before.pinned) != before
        for wanted, task in self._loading.values():
            if others or self._unpinned(wanted):
                task.cancel()

    async def close(self) -> None:
        """End all loads and let everything go. A read that hangs is left alone."""
        self._closed = True
        tasks = [task for _, task in self._loading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loaded.clear()

    # -- loading -----------------------------------------------------------------------

    async def _load(self, wanted: ArtifactSet) -> None:
        async with self._permits:
            slot = ""
            try:
                async with asyncio.timeout(self._settings.set_us / SECOND_US):
                    contents = {}
                    for file in wanted.files:
                        slot = file.slot
                        contents[slot] = await self._contents(file)
                    files = await self._threads.run(partial(_assembled, wanted, contents), WORK_S)
            except (ArtifactUnusable, OSError) as problem:  # a timeout is an OSError too
                result = getattr(problem, "result", ArtifactResult.FETCH_FAILED)
                if not isinstance(problem, ArtifactUnusable) or result is ArtifactResult.LOAD_FAILED:
                    self._counted(result)
                detail = str(problem) or "out of time"
                self._fail(wanted.key, f"{slot} cannot be loaded: {detail}", wanted)
                self._say(
                    "artifacts of a model cannot be loaded", model=wanted.model, slot=slot, result=result,
                    detail=detail, retry_s=int(_RETRY_S),
                )  # fmt: skip
                return
        self._hold(wanted, files)

    async def _contents(self, file: WantedFile) -> bytes:
        """A file from the cache or the first place that has it. Raises ArtifactUnusable."""
        if file.size is not None and file.size > ARTIFACT_BYTES_MAX:
            self._counted(ArtifactResult.TOO_LARGE)
            raise ArtifactUnusable(ArtifactResult.TOO_LARGE, f"{file.size} bytes declared")
        cached = await self._cached(file)
        if cached is not None:
            self._counted(ArtifactResult.LOADED)
            return cached
        problem = ArtifactUnusable(ArtifactResult.FETCH_FAILED, "no place is named")
        for place, source in sorted(_places(file), key=lambda pair: rank_of(pair[1])):
            try:
                data = await self._from(source)
                await self._threads.run(partial(verified, data, file.checksum), WORK_S)
            except ArtifactUnusable as unusable:
                problem = unusable
            except OSError as hung:
                problem = ArtifactUnusable(ArtifactResult.FETCH_FAILED, str(hung))
            else:
                self._counted(ArtifactResult.LOADED)
                if not isinstance(source, LocalFile):
                    await self._keep(file, data)
                return data
            self._counted(problem.result)
            problem = ArtifactUnusable(problem.result, f"{scheme_of(place)}: {problem}")
        raise problem

    async def _from(self, source: Source | None) -> bytes:
        """What lies at a place, unverified. Raises ArtifactUnusable, CallHung."""
        settings = self._settings
        if isinstance(source, LocalFile):
            return await self._threads.run(lambda: read_local(source.path), settings.file_us / SECOND_US)
        limits = FetchLimits(settings.file_us, settings.stall_us)
        if isinstance(source, HubFile):
            if not settings.allow_hf:
                raise ArtifactUnusable(ArtifactResult.REFUSED_SCHEME, "allow_hf_artifacts is off")
            try:
                url = source.url(settings.hf_endpoint)
            except ValueError as problem:
                raise ArtifactUnusable(ArtifactResult.FETCH_FAILED, str(problem)) from problem
            return await fetch(url, limits, token=settings.hf_token, may_leave=True)
        if source is None:
            raise ArtifactUnusable(ArtifactResult.REFUSED_SCHEME, "a place of no kind that is known")
        if not settings.allow_http:
            raise ArtifactUnusable(ArtifactResult.REFUSED_SCHEME, "allow_http_artifacts is off")
        return await fetch(source.url, limits)

    async def _cached(self, file: WantedFile) -> bytes | None:
        cache = self._cache
        if cache is None:
            return None
        try:
            return await self._threads.run(
                lambda: cache.read(file.checksum), self._settings.file_us / SECOND_US
            )
        except ArtifactUnusable as changed:
            self._counted(changed.result)
            self._say(
                "a cached artifact had been changed and was removed",
                slot=file.slot,
                checksum=file.checksum,
                detail=str(changed),
            )
        except OSError as problem:
            self._say("the artifact cache cannot be read", detail=problem.strerror or str(problem))
        return None

    async def _keep(self, file: WantedFile, data: bytes) -> None:
        """A cache that fails costs the next start a fetch, nothing else."""
        cache = self._cache
        if cache is None:
            return
        try:
            await self._threads.run(
                lambda: cache.write(file.checksum, data), self._settings.file_us / SECOND_US
            )
        except OSError as problem:
            self._say("an artifact cannot be cached", slot=file.slot, detail=problem.strerror or str(problem))

    def _hold(self, wanted: ArtifactSet, files: LoadedFiles) -> None:
        if self._unpinned(wanted):
            return
        self._failed.pop(wanted.key, None)
        self._loaded[wanted.key] = files
        size = sum(held.size for held in self._loaded.values())
        while len(self._loaded) > ARTIFACT_SETS_MAX or size > ARTIFACT_SETS_BYTES_MAX:
            key, gone = self._loaded.popitem(last=False)
            size -= gone.size
            self._fail(key, "had to give way to other models' files")

    def _is_recent(self, failure: _Failure) -> bool:
        return self._now() - failure.at < _RETRY_S

    def _fail(self, key: ArtifactKey, detail: str, *tried: ArtifactSet) -> None:
        before = self._failed.get(key)
        if tried and before is not None and self._is_recent(before):
            tried = (*before.tried, *tried)
        self._failed[key] = _Failure(self._now(), detail, tried)
        self._failed.move_to_end(key)
        if len(self._failed) > FAILURES_MAX:
            self._failed.popitem(last=False)

    def _ended(self, key: ArtifactKey, task: asyncio.Task[None]) -> None:
        self._loading.pop(key, None)
        if not task.cancelled() and (problem := task.exception()) is not None:  # a fault of ours
            self._fail(key, f"internal error: {type(problem).__name__}")
            task.get_loop().call_exception_handler({"message": "loading artifacts", "exception": problem})

    # -- pins --------------------------------------------------------------------------

    def _unpinned(self, wanted: ArtifactSet) -> list[WantedFile]:
        return [file for file in wanted.files if file.checksum not in self._settings.pinned]

    def _tell_once(
        self, wanted: ArtifactSet, files: list[WantedFile], result: ArtifactResult, what: str
    ) -> None:
        """One line and one count a file for each model, until other files are in question (ART-10, 11)."""
        checksums = tuple(file.checksum for file in files)
        now = self._now()
        said = self._said.get(wanted.model)
        if said is not None and (said[0] == checksums or now - said[1] < SAY_AGAIN_S):
            return
        self._said[wanted.model] = (checksums, now)
        self._said.move_to_end(wanted.model)
        if len(self._said) > ARTIFACT_MODELS_SAID_MAX:
            self._said.popitem(last=False)
        named = []
        for file in files:
            self._counted(result)
            named.append(f"{file.slot} {file.kind.label} {scheme_of(file.sources[0])} {file.checksum}")
        self._say(what, model=wanted.model, artifacts=", ".join(named))


def _checksums(key: ArtifactKey) -> tuple[str, ...]:
    return (key.tokenizer, key.formatter, key.template)


def _cache_of(settings: ArtifactSettings) -> BlobCache | None:
    return BlobCache(settings.cache_dir) if settings.cache_dir is not None else None


def _places(file: WantedFile) -> list[tuple[str, Source | None]]:
    return [(place, source_of(place)) for place in file.sources]


def _assembled(wanted: ArtifactSet, contents: dict[str, bytes]) -> LoadedFiles:
    """The files as prompts need them. Raises ArtifactUnusable for a template that holds none."""
    kinds = {file.slot: file.kind for file in wanted.files}
    template = None
    for slot in (TEMPLATE, FORMATTER):  # a file of its own stands before the formatter's
        if template is None and kinds.get(slot) in _TEMPLATES:
            is_json = kinds[slot] is ArtifactKind.HF_CHAT_TEMPLATE_JSON
            template = _template_of(contents[slot]) if is_json else contents[slot]
    config = contents[FORMATTER] if kinds.get(FORMATTER) is ArtifactKind.HF_TOKENIZER_CONFIG_JSON else None
    return LoadedFiles(contents[TOKENIZER], config, template, wanted.key.text)


def _template_of(data: bytes) -> bytes:
    """The text in `{"chat_template": ...}`; of a list of named ones the one called default."""
    if len(data) > TEMPLATE_JSON_BYTES_MAX:
        raise ArtifactUnusable(ArtifactResult.LOAD_FAILED, f"a template of {len(data)} bytes of JSON")
    try:
        document: Any = json.loads(data)
        found = document.get("chat_template")
        if isinstance(found, list):
            found = next(one["template"] for one in found if one["name"] == "default")
        if not isinstance(found, str):
            raise ValueError("no text")
        return found.encode()
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError) as problem:
        raise ArtifactUnusable(ArtifactResult.LOAD_FAILED, "the JSON holds no chat template") from problem
