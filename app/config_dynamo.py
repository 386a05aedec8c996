"""The `dynamo` section: where the fleet is found, how its load is heard, which frontends execute pins.

Keys and defaults are those of the specification's Configuration chapters; `discovery.file` is ours
(FILE-01). Sections of features that this release lacks (Kubernetes sources, `event_bus`) are read
and checked all the same, so that a site's file parses; `config_rules` says that they are ignored.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field, SecretStr

from app.config_kv import KvSettings
from app.config_sections import Name, Section, Text
from app.config_units import ByteSize, Duration, duration_within, size_within
from projections.bounds import NAMESPACES_MAX

ENDPOINTS_MAX = 16
SHIM_BACKENDS_MAX = 64
MODEL_MAP_MAX = 1024
CIDRS_MAX = 64
KUBERNETES_MODELS_MAX = 256
KUBERNETES_SOURCES = frozenset({"kubernetes", "kubernetes_pods"})
BROKERS_MAX = 1024

DEFAULT_NAMESPACE = "dynamo"


class BackoffSettings(Section):
    """Wait between two discovery passes; doubles on repeated failures."""

    initial: Annotated[Duration, duration_within("1ms", "1h")] = Field(
        default=Duration(500_000), description="First wait. 1ms to 1h."
    )
    max: Annotated[Duration, duration_within("1ms", "1h")] = Field(
        default=Duration(30_000_000), description="Longest wait, at least `initial`. 1ms to 1h."
    )


class EtcdTlsSettings(Section):
    """TLS towards etcd."""

    ca_cert: Text | None = Field(default=None, description="PEM file of the authority.")
    client_cert: Text | None = Field(default=None, description="PEM file; only together with `client_key`.")
    client_key: SecretStr | None = Field(
        default=None, description="PEM file; only with `client_cert`. Masked."
    )
    server_name: Name | None = Field(default=None, description="Name checked in the server certificate.")


class EtcdAuthSettings(Section):
    """User and password of etcd."""

    username: Name = Field(description="etcd user.")
    password: SecretStr = Field(description='etcd password; write "${ETCD_PASSWORD}". Masked.')


class EtcdSettings(Section):
    """`source: etcd`."""

    endpoints: tuple[Text, ...] = Field(
        default=(), description="1 to 16 of http(s)://host:port or host:port; one scheme for all."
    )
    namespace: Text = Field(default=DEFAULT_NAMESPACE, description="The workers' DYN_NAMESPACE.")
    namespaces: tuple[Text, ...] = Field(
        default=(), description="Up to 16 namespaces, instead of `namespace`."
    )
    tls: EtcdTlsSettings | None = Field(default=None, description="Only with https endpoints.")
    auth: EtcdAuthSettings | None = Field(default=None, description="Where etcd asks for a user.")
    watch_reconnect_backoff: BackoffSettings = Field(default=BackoffSettings(), description="Between passes.")


class FileSettings(Section):
    """`source: file`: Dynamo's file store, read only."""

    root: Text | None = Field(
        default=None, description="The workers' DYN_FILE_KV: directory that holds `v1`."
    )
    namespace: Text = Field(default=DEFAULT_NAMESPACE, description="The workers' DYN_NAMESPACE.")
    namespaces: tuple[Text, ...] = Field(
        default=(), description="Up to 16 namespaces, instead of `namespace`."
    )
    poll: Annotated[Duration, duration_within("20ms", "1m")] = Field(
        default=Duration(500_000), description="Between two looks at the store. 20ms to 1m."
    )
    ttl: Annotated[Duration, duration_within("1s", "1h")] = Field(
        default=Duration(10_000_000), description="A key file older than this is dead. 1s to 1h."
    )


class KubernetesModelSettings(Section):
    """One worker component of a namespace and the model it serves."""

    component: Name = Field(description="Value of the label nvidia.com/dynamo-component; unique.")
    model: Name = Field(description="Served model name, without whitespace.")
    dynamo_namespace: Text | None = Field(default=None, description="Needed with several Dynamo namespaces.")


class KubernetesSettings(Section):
    """`source: kubernetes` and `kubernetes_pods`; not in this release."""

    namespace: Text | None = Field(default=None, description="Kubernetes namespace, a DNS-1123 label.")
    dynamo_namespace: Text | None = Field(default=None, description="The workers' DYN_NAMESPACE label.")
    dynamo_namespaces: tuple[Text, ...] = Field(default=(), description="Up to 16, instead of the scalar.")
    model: Text | None = Field(default=None, description="kubernetes_pods: the one served model.")
    models: tuple[KubernetesModelSettings, ...] | None = Field(
        default=None, description="kubernetes_pods: 1 to 256 components with their models."
    )
    watch_reconnect_backoff: BackoffSettings = Field(default=BackoffSettings(), description="Between passes.")


class DiscoverySource(StrEnum):
    ETCD = "etcd"
    FILE = "file"
    KUBERNETES = "kubernetes"
    KUBERNETES_PODS = "kubernetes_pods"


class DiscoverySettings(Section):
    """Where the fleet is found."""

    source: DiscoverySource = Field(
        default=DiscoverySource.ETCD,
        description="etcd or file; kubernetes, kubernetes_pods: not in this release.",
    )
    etcd: EtcdSettings = Field(default=EtcdSettings(), description="For `source: etcd`.")
    file: FileSettings = Field(default=FileSettings(), description="For `source: file`.")
    kubernetes: KubernetesSettings = Field(
        default=KubernetesSettings(), description="For the Kubernetes sources."
    )

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The Dynamo namespaces of the source in use, as configured, never empty but for Kubernetes."""
        if self.source is DiscoverySource.ETCD:
            return self.etcd.namespaces or (self.etcd.namespace,)
        if self.source is DiscoverySource.FILE:
            return self.file.namespaces or (self.file.namespace,)
        scalar = self.kubernetes.dynamo_namespace
        return self.kubernetes.dynamo_namespaces or (() if scalar is None else (scalar,))

    @property
    def namespaces_listed(self) -> bool:
        """Whether the list form is in use."""
        section = {
            DiscoverySource.ETCD: self.etcd.namespaces,
            DiscoverySource.FILE: self.file.namespaces,
        }
        return bool(section.get(self.source, self.kubernetes.dynamo_namespaces))


class LoadTransport(StrEnum):
    DIRECT = "direct"
    BROKER = "broker"


class LoadSettings(Section):
    """How the workers' load samples are heard and judged."""

    max_staleness: Annotated[Duration, duration_within("100ms", "5m")] = Field(
        default=Duration(3_000_000),
        description="How old a sample may be and still count as fresh. 100ms to 5m.",
    )
    direct_allow_cidrs: tuple[Text, ...] | None = Field(
        default=None, description="Up to 64 networks that may be dialled; absent: any address; empty: none."
    )
    transport: LoadTransport = Field(
        default=LoadTransport.DIRECT, description="direct; broker is not in this release."
    )


class ShimPoolSettings(Section):
    """The frontends of one Dynamo namespace."""

    namespace: Text = Field(description="One of the configured Dynamo namespaces.")
    backends: tuple[Name, ...] = Field(description="Up to 64 names from `backends`, each in one pool only.")


class ShimSettings(Section):
    """The direct-mode frontends that execute pins."""

    backends: tuple[Name, ...] = Field(
        default=(), description="Up to 64 names from `backends`; one namespace only."
    )
    pools: tuple[ShimPoolSettings, ...] = Field(
        default=(), description="With several namespaces: one pool for each."
    )
    model_map: dict[str, str] = Field(
        default_factory=dict,
        description="Client model id to Dynamo display name, up to 1024 pairs; matching only.",
    )
    allow_metadata_upload: bool = Field(
        default=False,
        description="true lets clients send nvext.metadata_upload (a backend then uploads to a URL).",
    )


class EventBusTlsSettings(Section):
    """Certificate of the listener."""

    cert: Text | None = Field(default=None, description="PEM file.")
    key: SecretStr | None = Field(default=None, description="PEM file. Masked.")
    client_ca: Text | None = Field(default=None, description="PEM file; lets brokers use certificates.")


class BrokerRole(StrEnum):
    BROKER = "broker"
    KV_LISTENER = "kv_listener"


class BrokerSettings(Section):
    """One agent that may dial in."""

    id: Name = Field(description="Unique; with certificates a lower case DNS name without wildcard.")
    role: BrokerRole = Field(default=BrokerRole.BROKER, description="broker or kv_listener.")
    token_hash: Text | None = Field(default=None, description="sha256: and 64 lower case hex digits.")
    namespaces: tuple[Text, ...] = Field(
        default=(), max_length=NAMESPACES_MAX, description="Empty: any (warns)."
    )
    backends: tuple[Name, ...] = Field(
        default=(), max_length=BROKERS_MAX, description="Grant of a kv_listener."
    )


def _text_of_port(value: object) -> object:
    return f"0.0.0.0:{value}" if isinstance(value, int) and not isinstance(value, bool) else value


class EventBusSettings(Section):
    """Inbound listener for in-cluster agents; not in this release."""

    enabled: bool = Field(default=False, description="true asks for the listener.")
    listen: Annotated[Text, BeforeValidator(_text_of_port)] = Field(
        default="0.0.0.0:7443", description="host:port of its own."
    )
    tls: EventBusTlsSettings = Field(default=EventBusTlsSettings(), description="Certificate.")
    brokers: tuple[BrokerSettings, ...] = Field(
        default=(), max_length=BROKERS_MAX, description="Who may dial in."
    )
    max_sessions: int = Field(default=64, ge=1, le=65_536, description="Sessions at one time. 1 to 65536.")
    max_streams_per_session: int = Field(
        default=1024, ge=1, le=65_536, description="Streams each. 1 to 65536."
    )
    max_session_buffer_bytes: Annotated[ByteSize, size_within("64KiB", "64GiB")] = Field(
        default=ByteSize(64 << 20), description="Memory of a session, at least 64KiB for each stream."
    )
    heartbeat_interval: Annotated[Duration, duration_within("100ms", "1h")] = Field(
        default=Duration(10_000_000), description="Between heartbeats. 100ms to 1h."
    )
    idle_timeout: Annotated[Duration, duration_within("100ms", "1d")] = Field(
        default=Duration(30_000_000), description="Silence that ends a session. 100ms to 1d."
    )


class DynamoSettings(Section):
    """Everything about the Dynamo fleet. Nothing in here needs a restart of the process (REL-01)."""

    enabled: bool = Field(default=False, description="true starts discovery (with the extra of its source).")
    picker: Name = Field(
        default="load_based",
        description="Name of the picking rule: load_based, or round_robin, which looks at no load.",
    )
    discovery: DiscoverySettings = Field(default=DiscoverySettings(), description="Where the fleet is found.")
    load: LoadSettings = Field(default=LoadSettings(), description="Load samples.")
    shim: ShimSettings = Field(default=ShimSettings(), description="Frontends that execute pins.")
    kv: KvSettings = Field(default=KvSettings(), description="Prefix-aware picks.")
    event_bus: EventBusSettings = Field(
        default=EventBusSettings(), description="Agents; not in this release."
    )

    @property
    def shim_pools(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(namespace, backend names) of every pool, whichever form the file uses; may be empty."""
        if self.shim.pools:
            return tuple((pool.namespace, pool.backends) for pool in self.shim.pools)
        namespaces = self.discovery.namespaces
        if self.shim.backends and len(namespaces) == 1:
            return ((namespaces[0], self.shim.backends),)
        return ()
