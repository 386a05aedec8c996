"""From the one configuration to the settings that each part is started with.

Parts do not know the configuration file; they take their own frozen settings, secrets
included where they need them. Every translation stands here, so a key's way into a part is
found in one place.
"""

from __future__ import annotations

import os
from pathlib import Path

from app.config_dynamo import DiscoverySource, EtcdSettings, LoadTransport
from app.config_kv import EngineSourceSettings
from app.config_model import Config
from app.config_rules_kv import inactive_kv
from app.config_sections import ApiKeyMode, ApiKeySettings
from app.config_storage import LogKind, QuestionDetail
from app.config_units import SizeOrShare
from ingest.discovery.settings import (
    DiscoverySettings,
    EtcdAuth,
    EtcdConnection,
    EtcdTls,
    FileStore,
    SourceKind,
)
from ingest.log.log_writer import WriterSettings
from ingest.log.raw_frames import BYTES_UNLIMITED, RawSettings
from ingest.log.segment_settings import SegmentSettings
from ingest.subscriptions.connectors import SubscriptionSettings
from ingest.wire.engine_events import EngineSource
from projections.events.signals import Transport
from router.prompt.artifact_set import HUB, ArtifactSettings
from router.settings import (
    BackendSettings,
    BreakerSettings,
    DeadlineSettings,
    HealthSettings,
    KeySettings,
    PoolSettings,
    PromptSettings,
    RouterSettings,
)


def discovery_settings(config: Config, inactive: str | None) -> DiscoverySettings:
    """What the watcher is started with. inactive: why discovery does not run, None where it does."""
    discovery = config.dynamo.discovery
    namespaces = tuple(sorted(discovery.namespaces))
    enabled = config.dynamo.enabled and inactive is None
    if discovery.source is DiscoverySource.FILE:
        file = discovery.file
        return DiscoverySettings(
            SourceKind.FILE,
            namespaces,
            file=FileStore(file.root or "", file.poll.us, file.ttl.us),
            enabled=enabled,
        )
    etcd = discovery.etcd
    return DiscoverySettings(
        SourceKind.ETCD,
        namespaces,
        etcd=_etcd_connection(etcd),
        backoff_initial_us=etcd.watch_reconnect_backoff.initial.us,
        backoff_max_us=etcd.watch_reconnect_backoff.max.us,
        enabled=enabled,
    )


def _etcd_connection(etcd: EtcdSettings) -> EtcdConnection:
    tls = auth = None
    if etcd.tls is not None:
        key = etcd.tls.client_key
        tls = EtcdTls(
            etcd.tls.ca_cert,
            etcd.tls.client_cert,
            key.get_secret_value() if key is not None else None,
            etcd.tls.server_name,
        )
    if etcd.auth is not None:
        auth = EtcdAuth(etcd.auth.username, etcd.auth.password.get_secret_value())
    return EtcdConnection(etcd.endpoints, tls, auth)


def segment_settings(config: Config) -> SegmentSettings:
    """What the embedded log is opened with."""
    retention = config.log.retention
    size, share = retention.bytes.size, retention.bytes.percent
    return SegmentSettings(
        retention_age_us=retention.age.us,
        retention_bytes=size.count if size is not None else None,
        retention_share=share if share is not None else 25,
    )


def writer_settings(config: Config) -> WriterSettings:
    """Group commit. Reads of a topic wait for brokers."""
    fsync = config.log.fsync
    return WriterSettings(
        every_us=fsync.every_ms * 1000,
        every_bytes=fsync.every_bytes.count,
        reads_apart=config.log.kind is LogKind.KAFKA,
    )


def raw_settings(config: Config, file_system_bytes: int) -> RawSettings:
    """How long raw frames are kept beside the log."""
    raw = config.log.raw
    return RawSettings(age_us=raw.age.us, bytes_max=bytes_of(raw.bytes, file_system_bytes))


def topic_raw_settings(config: Config) -> RawSettings:
    """How long a topic keeps raw frames. A share is of no disk that this process sees: no limit."""
    size = config.log.raw.bytes.size
    return RawSettings(
        age_us=config.log.raw.age.us, bytes_max=size.count if size is not None else BYTES_UNLIMITED
    )


def subscription_settings(config: Config) -> SubscriptionSettings:
    """What subscriptions are started with."""
    load = config.dynamo.load
    transport = Transport.BROKER if load.transport is LoadTransport.BROKER else Transport.DIRECT
    namespaces = config.dynamo.discovery.namespaces
    sources = tuple(
        _engine_source(source, source.namespace or namespaces[0])
        for source in config.dynamo.kv.engine_sources
        if source.namespace or namespaces
    )
    return SubscriptionSettings(transport, load.direct_allow_cidrs, sources)


def _engine_source(source: EngineSourceSettings, namespace: str) -> EngineSource:
    return EngineSource(
        source.endpoint,
        namespace,
        source.instance_number,
        source.block_size,
        source.dp_rank,
        source.topic,
        source.component,
        source.model,
        source.system_port,
    )


def bytes_of(ceiling: SizeOrShare, file_system_bytes: int) -> int:
    """A ceiling in bytes, whichever way the file says it."""
    return ceiling.bytes_of(file_system_bytes)


def prompt_settings(config: Config, data: Path, extras: frozenset[str]) -> PromptSettings | None:
    """How prompts are read, None where they are not. The hub's place and token are the environment's."""
    kv = config.dynamo.kv
    if not kv.enabled or inactive_kv(config, extras) is not None:
        return None
    artifacts = ArtifactSettings(
        cache_dir=Path(kv.artifact_cache_dir) if kv.artifact_cache_dir is not None else data / "artifacts",
        pinned=frozenset(kv.pinned_artifacts),
        allow_http=kv.allow_http_artifacts,
        allow_hf=kv.allow_hf_artifacts,
        hf_endpoint=os.environ.get("HF_ENDPOINT") or HUB,
        hf_token=os.environ.get("HF_TOKEN") or None,
    )
    return PromptSettings(
        artifacts,
        kv.engine.value,
        kv.match_ratio_min,
        kv.send_token_data,
        config.log.questions is QuestionDetail.FULL,
    )


def router_settings(config: Config, prompt: PromptSettings | None = None) -> RouterSettings:
    """What the front door and the dispatch are told. prompt: see prompt_settings."""
    health, breaker, request = config.health_checks, config.circuit_breaker, config.request
    return RouterSettings(
        backends=tuple(
            BackendSettings(
                backend.name,
                backend.url,
                backend.api_key.get_secret_value() if backend.api_key is not None else None,
                backend.models,
                backend.enabled,
                backend.internal,
            )
            for backend in config.backends
        ),
        pools=tuple(PoolSettings(namespace, names) for namespace, names in config.dynamo.shim_pools),
        pinning=config.disaggregated_serving.enabled and config.dynamo.enabled,
        fallback_to_unified=config.disaggregated_serving.fallback_to_unified,
        allow_metadata_upload=config.dynamo.shim.allow_metadata_upload,
        keys=tuple(map(_key_settings, config.api_keys.keys)),
        keys_required=config.api_keys.mode is ApiKeyMode.BLOCKING,
        body_bytes_max=config.server.body_bytes_max.count,
        deadlines=DeadlineSettings(
            total_us=request.timeout.us,
            connect_us=request.connect_timeout.us,
            first_byte_us=request.first_byte_timeout.us,
            retries_max=request.max_retries,
        ),
        health=HealthSettings(
            health.enabled,
            health.path,
            health.interval.us,
            health.timeout.us,
            health.unhealthy_threshold,
            health.healthy_threshold,
            health.warmup_check_interval.us,
            health.max_warmup_duration.us,
        ),
        breaker=BreakerSettings(
            breaker.enabled, breaker.failure_threshold, breaker.open_for.us, breaker.half_open_requests
        ),
        prompt=prompt,
    )


def _key_settings(key: ApiKeySettings) -> KeySettings:
    return KeySettings(
        key.id,
        key.key.get_secret_value(),
        key.enabled,
        key.expires_at.timestamp() if key.expires_at is not None else None,
        frozenset(key.allowed_backends) if key.allowed_backends is not None else None,
    )
