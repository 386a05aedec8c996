"""Rules of sections whose feature this release lacks: Kubernetes, `event_bus` (CFG-32 to CFG-48).

The sections are checked so that a file that parses here will parse in the release that has the feature, and
each one in use is told of in one warning, so that nothing is silently accepted.
"""

import re
from collections import Counter
from collections.abc import Iterator

from app.config_addresses import WILDCARD_HOSTS, AddressFault, Bind, read_bind
from app.config_dynamo import (
    KUBERNETES_MODELS_MAX,
    KUBERNETES_SOURCES,
    BrokerRole,
    DiscoverySource,
    LoadTransport,
)
from app.config_findings import Finding, KeyPath, value_at
from app.config_model import Config
from app.config_storage import AuditTarget, KafkaSettings, LogKind
from projections.bounds import NAMESPACES_MAX

KUBERNETES: KeyPath = ("dynamo", "discovery", "kubernetes")
BUS: KeyPath = ("dynamo", "event_bus")
STREAM_BUFFER_BYTES_MIN = 64 * 1024

_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DNS_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_TOKEN_HASH = re.compile(r"sha256:[0-9a-f]{64}")


def kubernetes_names(config: Config) -> Iterator[Finding]:
    """CFG-32, CFG-35."""
    section = config.dynamo.discovery.kubernetes
    in_use = config.dynamo.discovery.source in KUBERNETES_SOURCES
    if section.namespace is None and in_use:
        yield Finding((*KUBERNETES, "namespace"), "is required", "name the Kubernetes namespace of the fleet")
    elif section.namespace is not None and not _DNS_LABEL.fullmatch(section.namespace):
        yield Finding(
            (*KUBERNETES, "namespace"), "is not a DNS-1123 label", "lower case letters, digits and -"
        )
    if not config.dynamo.discovery.namespaces and in_use:
        yield Finding((*KUBERNETES, "dynamo_namespace"), "is required", "name the workers' DYN_NAMESPACE")
    scalar, listed = section.dynamo_namespace, section.dynamo_namespaces
    names: list[tuple[KeyPath, str]] = [] if scalar is None else [((*KUBERNETES, "dynamo_namespace"), scalar)]
    names += [((*KUBERNETES, "dynamo_namespaces", index), text) for index, text in enumerate(listed)]
    for keys, text in names:
        if not _LABEL_VALUE.fullmatch(text):
            yield Finding(keys, "is not a label value", "1 to 63 letters, digits, -, _ and .")
    if scalar is not None and listed:
        yield Finding(
            (*KUBERNETES, "dynamo_namespace"), "stands beside `dynamo_namespaces`", "keep one of the two"
        )
    if len(listed) > NAMESPACES_MAX or len(set(listed)) < len(listed):
        yield Finding(
            (*KUBERNETES, "dynamo_namespaces"), "must be up to 16 different names", "name each once"
        )


def kubernetes_models(config: Config) -> Iterator[Finding]:
    """CFG-33, CFG-34, CFG-36."""
    discovery, section = config.dynamo.discovery, config.dynamo.discovery.kubernetes
    if discovery.source is not DiscoverySource.KUBERNETES_PODS:
        return
    if (section.model is None) == (section.models is None):
        yield Finding(
            KUBERNETES, "needs exactly one of `model` and `models`", "Pods do not tell what they serve"
        )
    if section.model is not None and (not section.model or any(map(str.isspace, section.model))):
        yield Finding((*KUBERNETES, "model"), "is empty or has white space", "write the served model name")
    models = section.models
    if models is None:
        return
    if not 1 <= len(models) <= KUBERNETES_MODELS_MAX:
        yield Finding((*KUBERNETES, "models"), f"has {len(models)} entries, 1 to {KUBERNETES_MODELS_MAX}", "")
    counts = Counter((entry.dynamo_namespace, entry.component) for entry in models)
    if any(count > 1 for count in counts.values()):
        yield Finding((*KUBERNETES, "models"), "names a component twice", "name each component once")
    for index, entry in enumerate(models):
        if any(map(str.isspace, entry.model)):
            yield Finding(
                (*KUBERNETES, "models", index, "model"), "has white space", "write the served model name"
            )
        keys = (*KUBERNETES, "models", index, "dynamo_namespace")
        if entry.dynamo_namespace is None and len(discovery.namespaces) > 1:
            yield Finding(keys, "is required with several Dynamo namespaces", "name one of them")
        elif entry.dynamo_namespace is not None and entry.dynamo_namespace not in discovery.namespaces:
            yield Finding(keys, "is not a configured Dynamo namespace", "name one of them")


def bus_listens_apart(config: Config) -> Iterator[Finding]:
    bus = config.dynamo.event_bus
    try:
        listen = read_bind(bus.listen)
    except AddressFault as fault:
        yield Finding((*BUS, "listen"), fault.message, fault.hint)
        return
    if bus.enabled and any(_collide(listen, bind) for bind in _binds(config)):
        yield Finding((*BUS, "listen"), "collides with server.bind_address", "give the bus a port of its own")


def _collide(one: Bind, other: Bind) -> bool:
    if one.unix_path is not None or other.unix_path is not None or one.port != other.port or one.port == 0:
        return False
    return one.host == other.host or bool(WILDCARD_HOSTS & {one.host, other.host})


def _binds(config: Config) -> Iterator[Bind]:
    for text in config.server.bind_address:
        try:
            yield read_bind(text)
        except AddressFault:
            continue


def bus_buffers_hold_streams(config: Config) -> Iterator[Finding]:
    bus = config.dynamo.event_bus
    if bus.max_session_buffer_bytes.count < bus.max_streams_per_session * STREAM_BUFFER_BYTES_MIN:
        keys = (*BUS, "max_session_buffer_bytes")
        yield Finding(
            keys, "is less than 64KiB for each of max_streams_per_session", "raise it or allow fewer"
        )


def bus_clients_are_named(config: Config) -> Iterator[Finding]:
    """CFG-46."""
    bus = config.dynamo.event_bus
    counts = Counter(broker.id for broker in bus.brokers)
    for index, broker in enumerate(bus.brokers):
        keys: KeyPath = (*BUS, "brokers", index)
        if counts[broker.id] > 1:
            yield Finding((*keys, "id"), "is used twice", "give each agent an id of its own")
        if bus.tls.client_ca is not None and not _DNS_NAME.fullmatch(broker.id):
            yield Finding(
                (*keys, "id"), "is not a lower case DNS name", "certificates are matched by DNS name"
            )
        if broker.token_hash is not None and not _TOKEN_HASH.fullmatch(broker.token_hash):
            yield Finding(
                (*keys, "token_hash"), "is not sha256: and 64 lower case hex digits", "never the token"
            )
        if broker.token_hash is None and bus.tls.client_ca is None:
            yield Finding((*keys, "token_hash"), "is missing, and no client_ca is set", "set one of the two")


def bus_namespaces_are_open(config: Config) -> Iterator[Finding]:
    for index, broker in enumerate(config.dynamo.event_bus.brokers):
        if broker.role is BrokerRole.BROKER and not broker.namespaces:
            keys = (*BUS, "brokers", index, "namespaces")
            yield Finding(keys, "is empty: the broker may declare any namespace", "name its namespaces")


def bus_sources_and_grants(config: Config) -> Iterator[Finding]:
    """CFG-47, CFG-48: both sides of a push source must be configured."""
    bus = config.dynamo.event_bus
    granted = {
        name for broker in bus.brokers if broker.role is BrokerRole.KV_LISTENER for name in broker.backends
    }
    listed = value_at(config.kv_cache_index, ("sources",))
    wanted: set[str] = set()
    for index, source in enumerate(listed if isinstance(listed, list) else ()):
        if value_at(source, ("transport",)) != "event_bus":
            continue
        keys: KeyPath = ("kv_cache_index", "sources", index)
        if not bus.enabled:
            yield Finding(keys, "uses the event bus, which is disabled", "set dynamo.event_bus.enabled")
        backend = value_at(source, ("backend",))
        if isinstance(backend, str):
            wanted.add(backend)
        if backend not in granted:
            yield Finding(keys, "is granted by no kv_listener entry", "add its backend to a kv_listener")
    for index, broker in enumerate(bus.brokers):
        unused = [name for name in broker.backends if name not in wanted or not bus.enabled]
        if broker.role is BrokerRole.KV_LISTENER and unused:
            yield Finding((*BUS, "brokers", index, "backends"), f"no bus source consumes {unused[0]!r}", "")


def kubernetes_advice(config: Config) -> Iterator[Finding]:
    """CFG-37, CFG-38."""
    discovery, section = config.dynamo.discovery, config.dynamo.discovery.kubernetes
    if discovery.source is DiscoverySource.KUBERNETES and (section.model or section.models):
        yield Finding(
            KUBERNETES, "`model` and `models` are ignored: each worker's card names it", "drop them"
        )
    if discovery.source is DiscoverySource.KUBERNETES_PODS:
        keys = ("dynamo", "discovery", "source")
        yield Finding(keys, "Pods carry no load and no capacity signals: picks rotate", "prefer `kubernetes`")


def not_in_this_release(config: Config) -> Iterator[Finding]:
    """One warning for each feature that the file asks for and this release lacks."""
    dynamo = config.dynamo
    asked: list[tuple[KeyPath, bool, str]] = [
        (
            ("dynamo", "discovery", "source"),
            dynamo.discovery.source in KUBERNETES_SOURCES,
            "use etcd or file",
        ),
        (("dynamo", "load", "transport"), dynamo.load.transport is LoadTransport.BROKER, "use direct"),
        (("dynamo", "event_bus"), dynamo.event_bus.enabled, "no listener is started"),
        (
            ("log", "kafka"),
            config.log.kind is LogKind.SEGMENTS
            and config.audit.sink is AuditTarget.SQL
            and config.log.kafka != KafkaSettings(),
            "`log copy` and `--log kafka:FILE` read it",
        ),
        (("global_prompts",), config.global_prompts is not None, ""),
        (("kv_cache_index",), config.kv_cache_index is not None, ""),
    ]
    for keys, is_asked, hint in asked:
        if is_asked:
            yield Finding(keys, "not in this release: ignored", hint)


def not_of_this_router(config: Config) -> Iterator[Finding]:
    """One warning for each key of the reference product's gateway that is not ours (decision 41)."""
    asked: list[tuple[KeyPath, bool]] = [
        ((name,), getattr(config, name) is not None) for name in _FOREIGN_SECTIONS
    ]
    asked += [(("server", name), getattr(config.server, name) is not None) for name in _FOREIGN_SERVER_KEYS]
    asked += [
        (("metrics", name), getattr(config.metrics, name) is not None) for name in _FOREIGN_METRICS_KEYS
    ]
    for name in _FOREIGN_BACKEND_KEYS:
        using = [index for index, backend in enumerate(config.backends) if getattr(backend, name) is not None]
        asked += [(("backends", using[0], name), True)] if using else []
    limited = [index for index, key in enumerate(config.api_keys.keys) if key.rate_limit is not None]
    asked += [(("api_keys", "keys", limited[0], "rate_limit"), True)] if limited else []
    for keys, is_asked in asked:
        if is_asked:
            yield Finding(keys, "not a feature of this router: ignored", "drop it")


_FOREIGN_SECTIONS = ("cache", "retry", "selection_strategy", "rate_limits")
_FOREIGN_SERVER_KEYS = ("workers", "connection_pool_size", "socket_mode")
_FOREIGN_METRICS_KEYS = ("endpoint", "cardinality_limit", "optional_metrics")
_FOREIGN_BACKEND_KEYS = ("weight", "retry_override", "rate_limit", "responses_api")
