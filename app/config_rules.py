"""Every rule of a configuration, as a table of small functions.

`ERRORS` refuse the configuration, `WARNINGS` are said once at start and by the validator, `SUGGESTIONS`
only by the validator. A rule is `rule(config) -> findings`; this module holds those of the gateway and of
the installation, `config_rules_dynamo` those of the fleet, `config_rules_kv` those of prefix-aware picks,
`config_rules_topics` those of names on Kafka, `config_rules_later` those of features still to come.

Sources: requirements CFG-01 to CFG-50; contract, section 6 (admin authentication beyond loopback, public API
without keys); field report B-143: what would fail every request is refused here, with its key named.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import orjson

from app import config_rules_dynamo as fleet
from app import config_rules_kv as kv
from app import config_rules_later as later
from app import config_rules_topics as topics
from app.config_addresses import AddressFault, read_backend_url, read_bind
from app.config_dynamo import DiscoverySource
from app.config_findings import Finding, KeyPath, Report
from app.config_model import Config, plain_settings
from app.config_sections import ApiKeyMode, AuthMethod
from app.config_storage import AuditTarget, LogKind
from app.config_units import Duration
from projections.bounds import RECORD_BYTES_MAX

Rule = Callable[[Config], Iterable[Finding]]

PICKER_NAMES = frozenset({"load_based", "round_robin"})
HORIZON_MIN = Duration(24 * 3600 * 1_000_000)
SETTINGS_BYTES_MAX = RECORD_BYTES_MAX * 3 // 4
"""Masked settings travel in one record of the log beside its other fields."""


def check_config(config: Config, extras: frozenset[str]) -> Report:
    """All findings of a configuration. extras: installed extras of the distribution (CFG-01, CFG-02)."""
    warnings = [found for rule in WARNINGS for found in rule(config)]
    return Report(
        errors=tuple(found for rule in ERRORS for found in rule(config)),
        warnings=(*warnings, *_extra_is_missing(config, extras), *kv.kv_extra_is_missing(config, extras)),
        suggestions=tuple(found for rule in SUGGESTIONS for found in rule(config)),
    )


def inactive_discovery(config: Config, extras: frozenset[str]) -> str | None:
    """Why discovery would not run although `dynamo.enabled`, or None: it runs, or is switched off."""
    source = config.dynamo.discovery.source
    if not config.dynamo.enabled:
        return None
    if source not in (DiscoverySource.ETCD, DiscoverySource.FILE):
        return f"source {source} is not in this release"
    if source is DiscoverySource.ETCD and not extras & {"etcd", "etcd3"}:
        return "the extra picklog[etcd] is not installed"
    return None


def _extra_is_missing(config: Config, extras: frozenset[str]) -> Iterator[Finding]:
    reason = inactive_discovery(config, extras)
    if reason is not None and "extra" in reason:
        keys = ("dynamo", "discovery", "source")
        yield Finding(keys, f"discovery is inactive: {reason}", "pip install 'picklog[etcd]'")


def binds_are_addresses(config: Config) -> Iterator[Finding]:
    for index, text in enumerate(config.server.bind_address):
        try:
            read_bind(text)
        except AddressFault as fault:
            yield Finding(("server", "bind_address", index), fault.message, fault.hint)
    fixed = [text for text in config.server.bind_address if not text.endswith(":0")]
    if len(set(fixed)) < len(fixed):
        yield Finding(("server", "bind_address"), "names an address twice", "name it once")


def beyond_loopback(config: Config) -> int | None:
    """The position of the first bind that other machines can reach."""
    for index, text in enumerate(config.server.bind_address):
        try:
            if not read_bind(text).is_loopback:
                return index
        except AddressFault:
            continue
    return None


def admin_needs_authentication(config: Config) -> Iterator[Finding]:
    if config.admin.auth.method is AuthMethod.NONE and beyond_loopback(config) is not None:
        yield Finding(
            ("admin", "auth", "method"),
            "`none` is accepted only while every server.bind_address is loopback",
            "set bearer_token, basic or api_key, or bind 127.0.0.1",
        )


def admin_secrets_are_set(config: Config) -> Iterator[Finding]:
    auth = config.admin.auth
    needed = {
        AuthMethod.NONE: (),
        AuthMethod.BEARER_TOKEN: ("token",),
        AuthMethod.BASIC: ("username", "password"),
        AuthMethod.API_KEY: ("api_key",),
    }[auth.method]
    for name in needed:
        value = getattr(auth, name)
        text = value if value is None or isinstance(value, str) else value.get_secret_value()
        if not text:
            yield Finding(("admin", "auth", name), f"is required for method {auth.method}", 'write "${NAME}"')


def backends_are_servers(config: Config) -> Iterator[Finding]:
    counts = Counter(backend.name for backend in config.backends)
    for index, backend in enumerate(config.backends):
        keys: KeyPath = ("backends", index)
        if counts[backend.name] > 1:
            yield Finding(
                (*keys, "name"), f"{backend.name!r} is used twice", "give each backend its own name"
            )
        if not all("!" <= character <= "~" for character in backend.name):
            yield Finding((*keys, "name"), "has characters outside visible ASCII", "it is shown in a header")
        try:
            read_backend_url(backend.url)
        except AddressFault as fault:
            yield Finding((*keys, "url"), fault.message, fault.hint)
        if backend.type != "openai":
            yield Finding((*keys, "type"), "is not openai, the only type of this router", "write openai")
        if backend.role != "unified":
            yield Finding((*keys, "role"), "is not unified, the only role of this router", "write unified")


def api_keys_are_usable(config: Config) -> Iterator[Finding]:
    """Unique, and in blocking mode at least one enabled: else every request would get 401 (B-143)."""
    section = config.api_keys
    known = {backend.name for backend in config.backends}
    ids: set[str] = set()
    secrets: set[str] = set()
    for index, entry in enumerate(section.keys):
        keys: KeyPath = ("api_keys", "keys", index)
        secret = entry.key.get_secret_value()
        if entry.id in ids:
            yield Finding((*keys, "id"), "is used twice", "give each key its own id")
        if secret in secrets:
            yield Finding((*keys, "key"), "is the secret of another key too", "give each key its own secret")
        ids.add(entry.id)
        secrets.add(secret)
        if entry.expires_at is not None and entry.expires_at.tzinfo is None:
            yield Finding((*keys, "expires_at"), "has no offset from UTC", "end it with Z or +00:00")
        for place, name in enumerate(entry.allowed_backends or ()):
            if name not in known:
                yield Finding(
                    (*keys, "allowed_backends", place), "is not the name of an entry of `backends`", ""
                )
    if section.mode is ApiKeyMode.BLOCKING and not any(entry.enabled for entry in section.keys):
        yield Finding(
            ("api_keys", "mode"), "blocking without an enabled key refuses every request", "add a key"
        )


def log_has_brokers(config: Config) -> Iterator[Finding]:
    if config.log.kind is LogKind.KAFKA and not config.log.kafka.bootstrap_servers:
        keys = ("log", "kafka", "bootstrap_servers")
        yield Finding(keys, "is empty, and log.kind is kafka", "name host:port of a broker")


def audit_stream_has_brokers(config: Config) -> Iterator[Finding]:
    if config.audit.sink is AuditTarget.STREAM and not config.log.kafka.bootstrap_servers:
        keys = ("log", "kafka", "bootstrap_servers")
        yield Finding(keys, "is empty, and audit.sink is stream", "name host:port of a broker")


def audit_web_view_is_open(config: Config) -> Iterator[Finding]:
    stream = config.audit.stream
    if config.audit.sink is AuditTarget.STREAM and stream.web_port and stream.web_bind not in _LOOPBACK:
        keys = ("audit", "stream", "web_bind")
        yield Finding(keys, "lets other machines see a worker's web view", "write 127.0.0.1")


_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def picker_is_known(config: Config) -> Iterator[Finding]:
    if config.dynamo.picker not in PICKER_NAMES:
        yield Finding(("dynamo", "picker"), "names no picker", f"one of {', '.join(sorted(PICKER_NAMES))}")


def settings_fit_a_record(config: Config) -> Iterator[Finding]:
    if len(orjson.dumps(plain_settings(config, masked=True))) > SETTINGS_BYTES_MAX:
        yield Finding(
            (), f"the settings exceed {SETTINGS_BYTES_MAX >> 20} MiB as JSON", "name fewer keys and models"
        )


def open_public_api(config: Config) -> Iterator[Finding]:
    index = beyond_loopback(config)
    if index is not None and config.api_keys.mode is not ApiKeyMode.BLOCKING:
        keys = ("server", "bind_address", index)
        yield Finding(keys, "other machines may use the API without a key", "set api_keys.mode: blocking")


def short_horizon(config: Config) -> Iterator[Finding]:
    if config.log.retention.age < HORIZON_MIN:
        yield Finding(("log", "retention", "age"), "keeps less than 24h to replay", "raise it")


def no_backend_in_service(config: Config) -> Iterator[Finding]:
    if not any(backend.enabled for backend in config.backends):
        yield Finding(("backends",), "holds no enabled server, so no request can be answered", "add one")


def checkpoints_are_reachable(config: Config) -> Iterator[Finding]:
    """The folder is absolute, since processes begin in different ones; peers are servers."""
    folder = config.checkpoints.folder
    if folder is not None and (not folder.startswith("/") or "\0" in folder):
        yield Finding(("checkpoints", "folder"), "is no absolute path", "begin with /")
    for index, text in enumerate(config.checkpoints.peers):
        try:
            _, prefix = read_backend_url(text)
        except AddressFault as fault:
            yield Finding(("checkpoints", "peers", index), fault.message, fault.hint)
            continue
        if prefix:
            yield Finding(("checkpoints", "peers", index), "has a path", "end it after the port")


ERRORS: tuple[Rule, ...] = (
    binds_are_addresses,
    admin_needs_authentication,
    admin_secrets_are_set,
    backends_are_servers,
    api_keys_are_usable,
    log_has_brokers,
    topics.topic_names_are_legal,
    topics.topics_stand_apart,
    audit_stream_has_brokers,
    checkpoints_are_reachable,
    picker_is_known,
    settings_fit_a_record,
    fleet.endpoints_are_addresses,
    fleet.endpoints_are_counted,
    fleet.endpoints_share_a_scheme,
    fleet.etcd_tls_is_whole,
    fleet.backoff_grows,
    fleet.namespaces_are_names,
    fleet.namespaces_are_a_set,
    fleet.file_store_has_a_root,
    fleet.pools_fit_namespaces,
    fleet.shim_backends_are_known,
    fleet.empty_pools_are_refused,
    fleet.model_map_is_filled,
    fleet.cidrs_are_networks,
    later.kubernetes_names,
    later.kubernetes_models,
    kv.artifacts_are_checksums,
    kv.engine_sources_are_addresses,
    kv.engine_sources_stand_apart,
    later.bus_listens_apart,
    later.bus_buffers_hold_streams,
    later.bus_clients_are_named,
)

WARNINGS: tuple[Rule, ...] = (
    open_public_api,
    short_horizon,
    audit_web_view_is_open,
    no_backend_in_service,
    fleet.auth_in_the_clear,
    fleet.shim_without_its_switches,
    fleet.shim_replica_out_of_service,
    fleet.pinned_path_without_frontend,
    fleet.empty_allow_list,
    fleet.external_endpoints,
    later.kubernetes_advice,
    kv.bypass_is_refused_by_frontends,
    kv.nothing_is_pinned,
    later.bus_namespaces_are_open,
    later.bus_sources_and_grants,
    later.not_in_this_release,
    later.not_of_this_router,
)

SUGGESTIONS: tuple[Rule, ...] = (fleet.allow_list_suggestion,)
