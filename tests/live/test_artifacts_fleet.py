"""Files of real models, fetched from the workers that host them, and read from the disk they share."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import aggregated_plan
from ingest.discovery.settings import DiscoverySettings, FileStore, SourceKind
from projections.events.discovery import KeyPut
from projections.events.picks import KvResult
from router.prompt.artifact_cache import BlobCache
from router.prompt.artifact_set import artifacts_of_model
from router.prompt.artifact_source import scheme_of
from router.prompt.artifacts import ArtifactSet, ArtifactSettings, ArtifactStore, LoadedFiles, Refused
from tests.live.conftest import FleetMaker
from tests.live.discovery_watch import LiveWatch
from tests.projections.fleet_script import Script
from tests.router.rig import until

pytestmark = pytest.mark.live("dynamo")
MODEL_FOLDER = Path(__file__).parents[2] / "deploy" / "demo" / "tiny-chat"


async def announced(fleet: Fleet) -> ArtifactSet:
    """What the workers of the fleet's one model agree on."""
    rows = await asyncio.to_thread(fleet.workers)
    namespaces = tuple(sorted({row["namespace"] for row in rows}))
    settings = DiscoverySettings(SourceKind.FILE, namespaces, file=FileStore(str(fleet.file_store)))
    script = Script()
    async with LiveWatch(settings) as watch:
        await watch.settled()
        for fact in watch.of(KeyPut):
            script.say(fact)
    (model,) = script.fleet.models()
    assert len(script.fleet.workers_of(model)) == len(rows)
    found = artifacts_of_model(script.fleet, model)
    assert isinstance(found, ArtifactSet), found
    return found


@pytest.mark.req("ART-01", "ART-04", "ART-08")
@pytest.mark.parametrize("release", ["1.4.2", "1.6.1"])
@pytest.mark.parametrize("hosted", [False, True], ids=["shared-disk", "self-hosted"])
async def test_files_of_a_fleet_are_loaded_once_they_are_pinned(
    make_fleet: FleetMaker, tmp_path: Path, release: str, hosted: bool
) -> None:
    plan = dataclasses.replace(aggregated_plan(), system_ports=hosted)
    fleet = await asyncio.to_thread(lambda: make_fleet(plan, release=release))
    wanted = await announced(fleet)
    schemes = {scheme_of(place) for file in wanted.files for place in file.sources}
    counts: Counter[str] = Counter()
    lines: list[str] = []
    store = ArtifactStore(
        ArtifactSettings(cache_dir=tmp_path),
        asyncio.get_running_loop().time,
        lambda event, **fields: lines.append(event),
        lambda one: counts.update([one]),
    )
    try:
        refused = store.files_of(wanted)
        assert isinstance(refused, Refused) and refused.reason is KvResult.ARTIFACT_UNPINNED
        pins = frozenset(file.checksum for file in wanted.files)
        store.reconfigure(ArtifactSettings(cache_dir=tmp_path, pinned=pins))
        await until(lambda: isinstance(store.files_of(wanted), LoadedFiles | Refused))
        files = store.files_of(wanted)
        assert isinstance(files, LoadedFiles), files
        assert files.tokenizer == (MODEL_FOLDER / "tokenizer.json").read_bytes()
        assert files.tokenizer_config == (MODEL_FOLDER / "tokenizer_config.json").read_bytes()
        assert counts == {"unpinned": 2, "loaded": 2}
        assert lines == ["artifacts of a model are not pinned"]
        kept = {file.checksum for file in wanted.files if BlobCache(tmp_path).path_of(file.checksum).exists()}
        assert (schemes, kept) == (({"http"}, pins) if hosted else ({"file"}, frozenset()))
    finally:
        await store.close()
