"""Rules of the `dynamo.kv` section (CFG-39, CFG-50; KVX-01)."""

import re
from collections.abc import Iterator

from app.config_findings import Finding, KeyPath
from app.config_kv import EngineSourceSettings
from app.config_model import Config

KV: KeyPath = ("dynamo", "kv")

_ARTIFACT = re.compile(r"blake3:[0-9a-f]{64}")
_ENDPOINT = re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_U64_MAX = (1 << 64) - 1


def artifacts_are_checksums(config: Config) -> Iterator[Finding]:
    for index, text in enumerate(config.dynamo.kv.pinned_artifacts):
        if not _ARTIFACT.fullmatch(text):
            keys = (*KV, "pinned_artifacts", index)
            yield Finding(
                keys,
                "is not blake3: and 64 lower case hex digits",
                "copy it from `picklog artifacts pin-line`",
            )


def engine_sources_are_addresses(config: Config) -> Iterator[Finding]:
    namespaces = config.dynamo.discovery.namespaces
    seen: set[str] = set()
    for index, source in enumerate(config.dynamo.kv.engine_sources):
        keys = (*KV, "engine_sources", index)
        match = _ENDPOINT.fullmatch(source.endpoint)
        if match is None or not 0 < int(match.group(2)) <= 65_535:
            yield Finding((*keys, "endpoint"), "is not tcp://host:port", "name the engine's publisher")
        if source.endpoint in seen:
            yield Finding((*keys, "endpoint"), "stands twice", "name each publisher once")
        seen.add(source.endpoint)
        if source.namespace is None and len(namespaces) > 1:
            yield Finding((*keys, "namespace"), "is required with several Dynamo namespaces", "name one")
        elif source.namespace is not None and source.namespace not in namespaces:
            yield Finding((*keys, "namespace"), "is not a configured Dynamo namespace", "name one of them")
        yield from _worker_is_named_or_described(source, keys)


def _worker_is_named_or_described(source: EngineSourceSettings, keys: KeyPath) -> Iterator[Finding]:
    number = source.instance_number
    if number is None:
        return
    if not 0 < number <= _U64_MAX:
        yield Finding((*keys, "instance_id"), "is not a 64-bit instance id", "see `picklog replay state`")
    for name in ("component", "model", "system_port"):
        if getattr(source, name) is not None:
            yield Finding((*keys, name), "has no effect beside instance_id", "take one of the two out")


def engine_sources_stand_apart(config: Config) -> Iterator[Finding]:
    """No two entries may stand for one rank: nobody could say which of them is right."""
    seen: dict[object, dict[int | None, int]] = {}
    for index, source in enumerate(config.dynamo.kv.engine_sources):
        number, rank = source.instance_number, source.dp_rank
        host = source.endpoint.rpartition(":")[0].lower()
        described = host, source.component, source.model, source.system_port
        namespace = source.namespace or next(iter(config.dynamo.discovery.namespaces), None)
        ranks = seen.setdefault((namespace, described if number is None else number), {})
        if number is not None:  # engines that say their ranks may share a worker that is named
            others = [ranks[rank]] if rank is not None and rank in ranks else []
        else:
            others = [at for one, at in ranks.items() if rank is None or one in (rank, None)]
        if others:
            yield Finding(
                (*KV, "engine_sources", index),
                f"stands for the same rank of the same worker as engine_sources[{min(others)}]",
                "give each its dp_rank, or what else tells their workers apart",
            )
        ranks.setdefault(rank, index)


def bypass_is_refused_by_frontends(config: Config) -> Iterator[Finding]:
    if config.dynamo.kv.conditional_disaggregation.enabled:
        keys = (*KV, "conditional_disaggregation", "enabled")
        yield Finding(
            keys, "every direct-mode frontend of Dynamo 1.4 to 1.6 refuses a bypass", "leave it off"
        )


def nothing_is_pinned(config: Config) -> Iterator[Finding]:
    if config.dynamo.kv.enabled and not config.dynamo.kv.pinned_artifacts:
        yield Finding(
            (*KV, "pinned_artifacts"),
            "is empty: no prompt can be turned into blocks, picks are by load",
            "review what `picklog artifacts list` shows, then paste `picklog artifacts pin-line`",
        )


def inactive_kv(config: Config, extras: frozenset[str]) -> str | None:
    """Why prefix-aware picks would not be made although `kv.enabled`, None: they are, or are switched off."""
    if config.dynamo.kv.enabled and "kv" not in extras:
        return "the extra picklog[kv] is not installed"
    return None


def kv_extra_is_missing(config: Config, extras: frozenset[str]) -> Iterator[Finding]:
    reason = inactive_kv(config, extras)
    if reason is not None:
        yield Finding((*KV, "enabled"), f"picks are by load: {reason}", "pip install 'picklog[kv]'")
