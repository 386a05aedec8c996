"""What a fleet's cards name as files of their models, for people who review and pin them.

Files of one slot are grouped by kind and checksum: places may differ, as each worker may
offer its own copy. Looking changes nothing: no blob is removed, nothing is fetched. Of a
file that lies on this machine, in the cache or where a worker says, an excerpt is shown
if its contents have the checksum. Texts of cards and files are hostile: they are made
printable where they are printed.

Sources: contract, section 2; requirement rows ART-01, ART-02, ART-10, ART-15.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from projections.bounds import KIB, MIB
from projections.events.held import SettingsHeld
from projections.registry.artifacts import SLOTS, is_checksum
from projections.registry.fleet import Fleet, Worker
from router.prompt.artifact_cache import ArtifactUnusable, BlobCache, read_local, verified
from router.prompt.artifact_set import ArtifactResult, Refused, agreed_artifacts
from router.prompt.artifact_source import LocalFile, source_of

EXCERPT_BYTES_MAX: Final = 4 * KIB
_PARSED_BYTES_MAX: Final = 4 * MIB
_CONFIGS: Final = ("hf_tokenizer_config_json", "hf_chat_template_json")
_TEMPLATES: Final = ("hf_chat_template", *_CONFIGS)


class Advertised(NamedTuple):
    """One file as workers of one model name it.

    kind: as cards spell it, `absent` without a tokenizer, `malformed` where a slot could not
    be read; then there is no checksum. size: bytes, as the first worker declares it.
    """

    slot: str
    kind: str
    checksum: str | None
    size: int | None
    places: tuple[str, ...]
    workers: int
    pinned: bool


class ModelArtifacts(NamedTuple):
    """The files of one model. refused: why they cannot be used together, None where all agree."""

    model: str
    workers: int
    refused: str | None
    files: tuple[Advertised, ...]


class Pins(NamedTuple):
    """What the settings in force say. cache_dir: None where it is not known."""

    checksums: frozenset[str]
    cache_dir: Path | None


class Standing(NamedTuple):
    """Where a file stands on this machine. places: (path, state); contents: where any copy verified.

    States: verified, changed (other contents), absent, or why it cannot be read.
    """

    places: tuple[tuple[str, str], ...]
    contents: bytes | None


def pins_of(settings: SettingsHeld | None, data: Path | None) -> Pins:
    """The pins in force and where fetched files lie. data: the log's data directory."""
    kv: Any = {}
    try:
        kv = json.loads(settings.settings)["dynamo"]["kv"] if settings is not None else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    kv = kv if isinstance(kv, dict) else {}
    listed, named = kv.get("pinned_artifacts"), kv.get("artifact_cache_dir")
    checksums = frozenset(one for one in listed if isinstance(one, str)) if isinstance(listed, list) else None
    default = data / "artifacts" if data is not None else None
    return Pins(checksums or frozenset(), Path(named) if isinstance(named, str) else default)


def advertised(fleet: Fleet, pins: Pins) -> list[ModelArtifacts]:
    """What the workers of every model name, by model."""
    found = []
    for model in fleet.models():
        workers = fleet.workers_of(model)
        agreed = agreed_artifacts(workers)
        refused = agreed.detail if isinstance(agreed, Refused) else None
        found.append(ModelArtifacts(model, len(workers), refused, tuple(_files(workers, pins))))
    return found


def models_naming(models: Iterable[ModelArtifacts], text: str) -> dict[str, list[tuple[str, Advertised]]]:
    """Files by checksum, of those whose checksum is or begins with `text`, with or without `blake3:`."""
    wanted = text if text.startswith("blake3:") else f"blake3:{text}"
    found: dict[str, list[tuple[str, Advertised]]] = {}
    for one in models:
        for file in one.files:
            if file.checksum is not None and file.checksum.startswith(wanted):
                found.setdefault(file.checksum, []).append((one.model, file))
    return found


def standing_of(checksum: str, places: Iterable[str], cache_dir: Path | None) -> Standing:
    """Where a file stands: in the cache, and at the places that are paths of this machine."""
    paths: list[tuple[str, bool]] = []
    if cache_dir is not None and is_checksum(checksum):
        paths.append((str(BlobCache(cache_dir).path_of(checksum)), True))
    for place in places:
        source = source_of(place)
        if isinstance(source, LocalFile):
            paths.append((source.path, False))
    states, contents = [], None
    for path, is_blob in dict.fromkeys(paths):
        state, data = _state_of(path, checksum, is_blob)
        states.append((path, state))
        contents = contents if contents is not None else data
    return Standing(tuple(states), contents)


def excerpt_of(kind: str, contents: bytes) -> str:
    """The beginning of a file as text, of JSON that holds a template the template's; 4 KiB at most."""
    text = _template_in(contents) if kind in _CONFIGS else None
    plain = text.encode() if text is not None else contents
    return plain[:EXCERPT_BYTES_MAX].decode(errors="replace")


def is_template(kind: str) -> bool:
    """Whether a file of this kind holds, or may hold, a chat template."""
    return kind in _TEMPLATES


def _files(workers: Iterable[Worker], pins: Pins) -> Iterable[Advertised]:
    found: dict[tuple[int, str, str | None], Advertised] = {}
    for worker in workers:
        named = worker.artifacts
        rows: list[tuple[str, str, str | None, int | None, tuple[str, ...]]] = [
            (slot, file.kind.label, file.checksum, file.size, (file.path,)) for slot, file in named.slots()
        ]
        rows += [(slot, "malformed", None, None, ()) for slot in named.malformed]
        if named.tokenizer is None and SLOTS[0] not in named.malformed:
            rows.append((SLOTS[0], "absent", None, None, ()))
        for slot, kind, checksum, size, places in rows:
            key = (SLOTS.index(slot), kind, checksum)
            known = found.get(key)
            if known is None:
                is_pinned = checksum in pins.checksums
                found[key] = Advertised(slot, kind, checksum, size, places, 1, is_pinned)
            else:
                joined = tuple(dict.fromkeys((*known.places, *places)))
                found[key] = known._replace(places=joined, workers=known.workers + 1)
    order = sorted(found, key=lambda key: (key[0], -found[key].workers, key[1], key[2] or ""))
    return [found[key] for key in order]


def _state_of(path: str, checksum: str, is_blob: bool) -> tuple[str, bytes | None]:
    """The cache never reads through a link, and neither does this."""
    if is_blob and os.path.islink(path):
        return "changed", None
    if not os.path.exists(path):
        return "absent", None
    try:
        return "verified", verified(read_local(path), checksum)
    except ArtifactUnusable as problem:
        is_other = problem.result is ArtifactResult.CHECKSUM_MISMATCH
        return "changed" if is_other else str(problem), None


def _template_in(contents: bytes) -> str | None:
    if len(contents) > _PARSED_BYTES_MAX:
        return None
    try:
        found = json.loads(contents).get("chat_template")
        return found if isinstance(found, str) and found.encode() else None
    except (ValueError, AttributeError, RecursionError):
        return None
