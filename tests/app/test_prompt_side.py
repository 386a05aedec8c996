"""What reads prompts is put together when settings ask for it, and counts what becomes of files."""

from __future__ import annotations

import os
from pathlib import Path

from structlog.testing import capture_logs

from app.prompt_side import prompt_maker
from projections.events.picks import KvResult
from projections.registry.artifacts import Artifact, ArtifactKind, CardArtifacts
from projections.registry.fleet import Role
from router.metrics import NoMetrics
from router.prompt.artifact_set import ArtifactResult, ArtifactSettings
from router.question import PromptAsked, PromptFacts
from router.settings import PromptSettings
from tests.router.rig import fleet_of, worker

CHECKSUM = "blake3:" + "0" * 64


class Counts(NoMetrics):
    def __init__(self) -> None:
        self.artifacts: list[ArtifactResult] = []

    def artifact(self, result: ArtifactResult) -> None:
        self.artifacts.append(result)


async def test_files_that_are_not_pinned_are_counted_and_told_and_nothing_is_read(tmp_path: Path) -> None:
    counts = Counts()
    prompts = prompt_maker(counts)(PromptSettings(ArtifactSettings(tmp_path)))
    files = CardArtifacts(Artifact(ArtifactKind.HF_TOKENIZER_JSON, str(tmp_path / "t.json"), CHECKSUM))
    fleet = fleet_of(worker(7, Role.AGGREGATED)._replace(artifacts=files))
    asked = PromptAsked({"messages": []}, {}, "/v1/chat/completions", "tiny-chat", ("dynamo",))
    with capture_logs() as lines:
        assert await prompts.read(asked, fleet) == PromptFacts(KvResult.ARTIFACT_UNPINNED)
    assert counts.artifacts == [ArtifactResult.UNPINNED]
    assert len(lines) == 1 and CHECKSUM in lines[0]["artifacts"]
    await prompts.close()
    assert os.listdir(tmp_path) == []
