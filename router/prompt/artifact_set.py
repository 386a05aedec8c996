"""Files of a model that all its workers agree on, and what a store answers when asked for them.

Prompts of a model are made with its tokenizer and template. Workers name them in their
cards, each perhaps at another place; the checksums must be the same on all of them, or else
blocks that are predicted with one file would be looked for on workers that use another
(ART-15). What is agreed on is therefore kinds and checksums; places are only tried.

Sources: specification, "Artifacts"; requirement rows ART-02, ART-13..15; field report B-014.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from projections.bounds import ARTIFACT_SOURCES_MAX, SECOND_US
from projections.events.picks import KvResult
from projections.registry.artifacts import SLOTS, Artifact, ArtifactKind, CardArtifacts
from projections.registry.fleet import Fleet, Worker

TOKENIZER, FORMATTER, TEMPLATE = SLOTS
HUB: Final = "https://huggingface.co"
_AGREEMENTS_REMEMBERED: Final = 1024  # of one fleet, together with what others derive from it


class ArtifactResult(StrEnum):
    """What became of a file; label of kv_artifacts_total. Counted for each attempt, never for a request."""

    LOADED = "loaded"
    """It was read or fetched, and has the pinned checksum."""
    UNPINNED = "unpinned"
    """Its checksum is not in `pinned_artifacts`: nothing was contacted or opened."""
    UNSUPPORTED = "unsupported"
    """A kind of file that this release cannot use."""
    TOO_LARGE = "too_large"
    """More than 64 MiB, as declared or as read."""
    CHECKSUM_MISMATCH = "checksum_mismatch"
    """What was read is not what the card names."""
    FETCH_FAILED = "fetch_failed"
    """No whole answer, another status than 200, no readable file, or out of time."""
    LOAD_FAILED = "load_failed"
    """The right bytes, of which no tokenizer or template can be made."""
    EVICTED = "evicted"
    """A cached blob was changed on disk, and removed."""
    REFUSED_SCHEME = "refused_scheme"
    """The settings do not allow places of this kind, or it is none that we know."""
    REFUSED_REDIRECT = "refused_redirect"
    """The server sent us to another host, or around in circles."""


class ArtifactKey(NamedTuple):
    """What makes two models' files the same: kinds and checksums by slot, "" for an absent file."""

    tokenizer: str
    formatter: str
    template: str
    kinds: tuple[int, ...]

    @property
    def text(self) -> str:
        """The key as one string, for maps of those that know nothing of slots."""
        return "|".join((self.tokenizer, self.formatter, self.template, *map(str, self.kinds)))


class WantedFile(NamedTuple):
    """One file of a set. size: the largest that is declared. sources: places, in the workers' order."""

    slot: str
    kind: ArtifactKind
    checksum: str
    size: int | None
    sources: tuple[str, ...]


class ArtifactSet(NamedTuple):
    """The files of one model. model: the name it is served under, for log lines."""

    model: str
    key: ArtifactKey
    files: tuple[WantedFile, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedFiles:
    """Verified contents. chat_template: its text as UTF-8, None where tokenizer_config holds it.

    tokenizer_config: None where the card names a template in its place. key: of the set.
    """

    tokenizer: bytes = field(repr=False)
    tokenizer_config: bytes | None = field(repr=False)
    chat_template: bytes | None = field(repr=False)
    key: str

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return len(self.tokenizer) + len(self.tokenizer_config or b"") + len(self.chat_template or b"")


@dataclass(frozen=True, slots=True)
class Pending:
    """The files are being loaded, or will be when asked for again."""


class Refused(NamedTuple):
    """There are no files. reason: TOKENIZER_UNAVAILABLE or ARTIFACT_UNPINNED; detail: no place in it."""

    reason: KvResult
    detail: str


@dataclass(frozen=True, slots=True)
class ArtifactSettings:
    """What a store is told.

    cache_dir: fetched files are kept in `blobs` below it; None keeps none.
    pinned: checksums, `blake3:` and 64 hex digits. Nothing else is ever opened or fetched.
    hf_token: sent to hf_endpoint and nowhere else.
    file_us: for one place of one file, redirects included. stall_us: silence within it.
    set_us: for all files of a model. Durations in microseconds.
    """

    cache_dir: Path | None = None
    pinned: frozenset[str] = frozenset()
    allow_http: bool = True
    allow_hf: bool = False
    hf_endpoint: str = HUB
    hf_token: str | None = field(default=None, repr=False)
    file_us: int = 30 * SECOND_US
    stall_us: int = 10 * SECOND_US
    set_us: int = 120 * SECOND_US


def agreed_artifacts(workers: Iterable[Worker]) -> ArtifactSet | Refused:
    """The files that all these workers name alike; they serve one model.

    A worker without a card, with one that was cut, or without a tokenizer agrees with nobody.
    """
    known = tuple(workers)
    if not known:
        return Refused(KvResult.TOKENIZER_UNAVAILABLE, "no worker serves the model")
    first = known[0].artifacts
    key = key_of(first)
    differing = sum(worker.artifacts is not first and key_of(worker.artifacts) != key for worker in known)
    if differing:
        detail = f"{differing} of {len(known)} workers name other files than the rest"
        return Refused(KvResult.TOKENIZER_UNAVAILABLE, detail)
    if first.malformed:
        detail = f"cards have a malformed {first.malformed[0]}"
        return Refused(KvResult.TOKENIZER_UNAVAILABLE, detail)
    if first.tokenizer is None:
        return Refused(KvResult.TOKENIZER_UNAVAILABLE, "cards name no tokenizer")
    files = tuple(_wanted(slot, [*_named(known, slot)]) for slot, _ in first.slots())
    return ArtifactSet(known[0].model or "", key, files)


def artifacts_of_model(fleet: Fleet, model: str) -> ArtifactSet | Refused:
    """As agreed_artifacts, of all workers that serve a model; worked out once for a fleet."""
    workers = fleet.workers_of(model)
    if not workers:
        return agreed_artifacts(workers)
    found: ArtifactSet | Refused | None = fleet.derived.get(("artifacts", model))
    if found is None:
        if len(fleet.derived) >= _AGREEMENTS_REMEMBERED:
            fleet.derived.clear()
        found = fleet.derived["artifacts", model] = agreed_artifacts(workers)
    return found


def key_of(card: CardArtifacts) -> ArtifactKey:
    """The key of one card's files. Slots that could not be read are part of it."""
    files = (card.tokenizer, card.prompt_formatter, card.chat_template_file)
    tokenizer, formatter, template = (file.checksum if file is not None else "" for file in files)
    kinds = [int(file.kind) if file is not None else -1 for file in files]
    kinds += [-2 - SLOTS.index(slot) for slot in card.malformed]
    return ArtifactKey(tokenizer, formatter, template, tuple(kinds))


def _named(workers: Sequence[Worker], slot: str) -> Iterable[Artifact]:
    for worker in workers:
        yield from (file for name, file in worker.artifacts.slots() if name == slot)


def _wanted(slot: str, files: list[Artifact]) -> WantedFile:
    sources = tuple(dict.fromkeys(file.path for file in files))[:ARTIFACT_SOURCES_MAX]
    sizes = [file.size for file in files if file.size is not None]
    return WantedFile(slot, files[0].kind, files[0].checksum, max(sizes, default=None), sources)
