"""Workers whose cards name files, for tests of agreement and of the store."""

from __future__ import annotations

from projections.registry.artifacts import Artifact, ArtifactKind, CardArtifacts
from projections.registry.fleet import Role, Worker
from router.prompt.artifact_cache import checksum_of
from router.prompt.artifact_set import ArtifactSet, agreed_artifacts
from tests.router.rig import worker


def named(
    data: bytes,
    path: str,
    kind: ArtifactKind = ArtifactKind.HF_TOKENIZER_JSON,
    size: int | None = None,
    checksum: str | None = None,
) -> Artifact:
    """A checked file of these contents."""
    return Artifact(kind, path, checksum or checksum_of(data), len(data) if size is None else size)


def config(data: bytes, path: str) -> Artifact:
    """A tokenizer_config.json."""
    return named(data, path, ArtifactKind.HF_TOKENIZER_CONFIG_JSON)


def serving_worker(
    number: int,
    tokenizer: Artifact | None = None,
    formatter: Artifact | None = None,
    template: Artifact | None = None,
    model: str = "tiny-chat",
    malformed: tuple[str, ...] = (),
    role: Role = Role.AGGREGATED,
) -> Worker:
    """A worker of a model whose card names these files."""
    artifacts = CardArtifacts(tokenizer, formatter, template, malformed)
    return worker(number, role, model=model)._replace(artifacts=artifacts)


def wanted(
    tokenizer: Artifact,
    formatter: Artifact | None = None,
    template: Artifact | None = None,
    model: str = "tiny-chat",
) -> ArtifactSet:
    """The set of a model with one worker."""
    found = agreed_artifacts([serving_worker(1, tokenizer, formatter, template, model)])
    assert isinstance(found, ArtifactSet)
    return found
