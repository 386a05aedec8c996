"""Rules of the `dynamo` section that one key's type cannot say: CFG-04 to CFG-31, each a small function.

A rule takes the whole configuration and yields findings; `config_rules` runs them from its table. Words
name keys, limits, namespaces and backends, never an endpoint or a secret.
"""

from collections import Counter
from collections.abc import Iterator

from app.config_addresses import AddressFault, Endpoint, is_network, looks_external, read_etcd_endpoint
from app.config_dynamo import (
    CIDRS_MAX,
    DEFAULT_NAMESPACE,
    ENDPOINTS_MAX,
    MODEL_MAP_MAX,
    SHIM_BACKENDS_MAX,
    BackoffSettings,
    DiscoverySource,
    LoadTransport,
)
from app.config_findings import Finding, KeyPath
from app.config_model import Config
from projections.bounds import NAMESPACES_MAX

ETCD: KeyPath = ("dynamo", "discovery", "etcd")
FILE: KeyPath = ("dynamo", "discovery", "file")
SHIM: KeyPath = ("dynamo", "shim")
CIDRS: KeyPath = ("dynamo", "load", "direct_allow_cidrs")


def etcd_endpoints(config: Config) -> tuple[Endpoint, ...]:
    """The endpoints that can be read, normalised (CFG-06)."""
    endpoints = []
    for text in config.dynamo.discovery.etcd.endpoints:
        try:
            endpoints.append(read_etcd_endpoint(text))
        except AddressFault:
            continue
    return tuple(endpoints)


def endpoints_are_addresses(config: Config) -> Iterator[Finding]:
    for index, text in enumerate(config.dynamo.discovery.etcd.endpoints):
        try:
            read_etcd_endpoint(text)
        except AddressFault as fault:
            yield Finding((*ETCD, "endpoints", index), fault.message, fault.hint)


def endpoints_are_counted(config: Config) -> Iterator[Finding]:
    discovery = config.dynamo.discovery
    count = len(discovery.etcd.endpoints)
    if count > ENDPOINTS_MAX:
        yield Finding(
            (*ETCD, "endpoints"), f"has {count} entries, at most {ENDPOINTS_MAX}", "name fewer members"
        )
    if not count and config.dynamo.enabled and discovery.source is DiscoverySource.ETCD:
        yield Finding((*ETCD, "endpoints"), "is empty while discovery is enabled", "name 1 to 16 members")


def endpoints_share_a_scheme(config: Config) -> Iterator[Finding]:
    schemes = {endpoint.scheme for endpoint in etcd_endpoints(config)}
    if len(schemes) > 1:
        yield Finding(
            (*ETCD, "endpoints"),
            "mixes http and https (an endpoint without a scheme is http)",
            "use one scheme",
        )
    elif "http" in schemes and config.dynamo.discovery.etcd.tls is not None:
        yield Finding(
            (*ETCD, "tls"), "stands beside http endpoints", "write https:// endpoints or leave tls out"
        )


def etcd_tls_is_whole(config: Config) -> Iterator[Finding]:
    tls = config.dynamo.discovery.etcd.tls
    if tls is not None and (tls.client_cert is None) != (tls.client_key is None):
        missing = "client_key" if tls.client_key is None else "client_cert"
        yield Finding((*ETCD, "tls"), f"lacks {missing}", "set client_cert and client_key together")


def backoff_grows(config: Config) -> Iterator[Finding]:
    discovery = config.dynamo.discovery
    sections: tuple[tuple[str, BackoffSettings], ...] = (
        ("etcd", discovery.etcd.watch_reconnect_backoff),
        ("kubernetes", discovery.kubernetes.watch_reconnect_backoff),
    )
    for name, backoff in sections:
        if backoff.max < backoff.initial:
            path = ("dynamo", "discovery", name, "watch_reconnect_backoff", "max")
            yield Finding(path, "is shorter than `initial`", "raise max or lower initial")


def is_namespace(text: str) -> bool:
    """Non-empty, no `/`, no white space, no control characters (CFG-11)."""
    return bool(text) and not any(
        character == "/" or character.isspace() or _is_control(character) for character in text
    )


def _is_control(character: str) -> bool:
    return character < " " or "\x7f" <= character <= "\x9f"


def namespaces_are_names(config: Config) -> Iterator[Finding]:
    discovery = config.dynamo.discovery
    for base, section in ((ETCD, discovery.etcd), (FILE, discovery.file)):
        named: list[tuple[KeyPath, str]] = [((*base, "namespace"), section.namespace)]
        named += [((*base, "namespaces", index), text) for index, text in enumerate(section.namespaces)]
        for keys, text in named:
            if not is_namespace(text):
                yield Finding(
                    keys, "is empty or has a slash, white space or a control character", "write a plain name"
                )


def namespaces_are_a_set(config: Config) -> Iterator[Finding]:
    discovery = config.dynamo.discovery
    for base, section in ((ETCD, discovery.etcd), (FILE, discovery.file)):
        keys, listed = (*base, "namespaces"), section.namespaces
        if len(listed) > NAMESPACES_MAX:
            yield Finding(keys, f"has {len(listed)} entries, at most {NAMESPACES_MAX}", "run several routers")
        if len(set(listed)) < len(listed):
            yield Finding(keys, "names a namespace twice", "name each once")
        if listed and section.namespace != DEFAULT_NAMESPACE:
            yield Finding((*base, "namespace"), "stands beside `namespaces`", "keep one of the two")


def file_store_has_a_root(config: Config) -> Iterator[Finding]:
    discovery = config.dynamo.discovery
    if config.dynamo.enabled and discovery.source is DiscoverySource.FILE and not discovery.file.root:
        yield Finding(
            (*FILE, "root"), "is missing while `source: file` is enabled", "name the workers' DYN_FILE_KV"
        )


def pools_fit_namespaces(config: Config) -> Iterator[Finding]:
    """CFG-14, CFG-15."""
    shim, namespaces = config.dynamo.shim, config.dynamo.discovery.namespaces
    if shim.backends and shim.pools:
        yield Finding((*SHIM, "backends"), "stands beside `pools`", "keep one of the two")
    elif shim.backends and len(namespaces) > 1:
        yield Finding(
            (*SHIM, "backends"), "cannot serve several namespaces", "write one entry of `pools` for each"
        )
    counts = Counter(pool.namespace for pool in shim.pools)
    for index, pool in enumerate(shim.pools):
        if pool.namespace not in namespaces:
            keys = (*SHIM, "pools", index, "namespace")
            yield Finding(
                keys, "is not a configured Dynamo namespace", "add it to `namespaces` or drop the pool"
            )
    for namespace, count in sorted(counts.items()):
        if count > 1:
            yield Finding(
                (*SHIM, "pools"), f"has {count} pools for {namespace!r}", "keep one pool for a namespace"
            )
    needs_pools = bool(shim.pools) or (len(namespaces) > 1 and not shim.backends)
    for namespace in namespaces if needs_pools else ():
        if namespace not in counts:
            yield Finding((*SHIM, "pools"), f"has no pool for {namespace!r}", "add one")


def shim_lists(config: Config) -> Iterator[tuple[KeyPath, tuple[str, ...]]]:
    shim = config.dynamo.shim
    yield (*SHIM, "backends"), shim.backends
    for index, pool in enumerate(shim.pools):
        yield (*SHIM, "pools", index, "backends"), pool.backends


def shim_backends_are_known(config: Config) -> Iterator[Finding]:
    """CFG-16, CFG-24."""
    known = {backend.name for backend in config.backends}
    owner: dict[str, KeyPath] = {}
    for keys, names in shim_lists(config):
        if len(names) > SHIM_BACKENDS_MAX:
            yield Finding(
                keys, f"has {len(names)} entries, at most {SHIM_BACKENDS_MAX}", "use fewer replicas"
            )
        for index, name in enumerate(names):
            if name not in known:
                yield Finding((*keys, index), "is not the name of an entry of `backends`", "add it there")
            if owner.get(name) == keys:
                yield Finding((*keys, index), "is named twice", "name it once")
            elif name in owner:
                yield Finding((*keys, index), "is in another pool already", "a replica serves one namespace")
            owner.setdefault(name, keys)


def empty_pools_are_refused(config: Config) -> Iterator[Finding]:
    for index, pool in enumerate(config.dynamo.shim.pools):
        if not pool.backends:
            yield Finding((*SHIM, "pools", index, "backends"), "is empty", "name at least one backend")


def model_map_is_filled(config: Config) -> Iterator[Finding]:
    pairs = config.dynamo.shim.model_map
    if len(pairs) > MODEL_MAP_MAX:
        yield Finding(
            (*SHIM, "model_map"), f"has {len(pairs)} pairs, at most {MODEL_MAP_MAX}", "map fewer models"
        )
    if any(not key.strip() or not value.strip() for key, value in pairs.items()):
        yield Finding((*SHIM, "model_map"), "has an empty model name", "write both names of each pair")


def cidrs_are_networks(config: Config) -> Iterator[Finding]:
    networks = config.dynamo.load.direct_allow_cidrs or ()
    if len(networks) > CIDRS_MAX:
        yield Finding(CIDRS, f"has {len(networks)} entries, at most {CIDRS_MAX}", "join networks")
    for index, text in enumerate(networks):
        if not is_network(text):
            yield Finding((*CIDRS, index), "is not a network", "write address/length, such as 10.0.0.0/8")


def auth_in_the_clear(config: Config) -> Iterator[Finding]:
    etcd = config.dynamo.discovery.etcd
    if etcd.auth is not None and any(endpoint.scheme == "http" for endpoint in etcd_endpoints(config)):
        yield Finding(
            (*ETCD, "auth"), "user and password travel unencrypted", "use https:// endpoints and tls"
        )


def shim_without_its_switches(config: Config) -> Iterator[Finding]:
    if not any(names for _, names in shim_lists(config)):
        return
    off = []
    if not config.dynamo.enabled:
        off.append("dynamo.enabled")
    if not config.disaggregated_serving.enabled:
        off.append("disaggregated_serving.enabled")
    if off:
        yield Finding(
            SHIM, f"is not used while {' and '.join(off)} is false", "switch it on or drop the pool"
        )


def shim_replica_out_of_service(config: Config) -> Iterator[Finding]:
    state = {backend.name: backend for backend in config.backends}
    for keys, names in shim_lists(config):
        for index, name in enumerate(names):
            backend = state.get(name)
            if backend is not None and (backend.internal or not backend.enabled):
                cause = "is disabled" if not backend.enabled else "is internal"
                yield Finding(
                    (*keys, index), f"{name!r} {cause} and gets no requests", "enable it or drop it"
                )


def pinned_path_without_frontend(config: Config) -> Iterator[Finding]:
    """Every chat would miss the pinned path (field report B-143)."""
    pinned = config.dynamo.enabled and config.disaggregated_serving.enabled
    if pinned and not any(names for _, names in shim_lists(config)):
        yield Finding(
            SHIM, "names no frontend, so no request can be pinned", "set shim.backends or shim.pools"
        )


def empty_allow_list(config: Config) -> Iterator[Finding]:
    if config.dynamo.enabled and config.dynamo.load.direct_allow_cidrs == ():
        yield Finding(
            CIDRS, "is empty, so no publisher may be dialled", "name the Pod networks or drop the key"
        )


def external_endpoints(config: Config) -> Iterator[Finding]:
    dynamo = config.dynamo
    direct = dynamo.load.transport is LoadTransport.DIRECT and dynamo.discovery.source is DiscoverySource.ETCD
    if (
        dynamo.enabled
        and direct
        and any(looks_external(endpoint.host) for endpoint in etcd_endpoints(config))
    ):
        yield Finding(
            (*ETCD, "endpoints"),
            "look external, but `load.transport: direct` dials worker addresses inside the cluster",
            "run the router inside the cluster",
        )


def allow_list_suggestion(config: Config) -> Iterator[Finding]:
    load = config.dynamo.load
    if config.dynamo.enabled and load.direct_allow_cidrs is None and load.transport is LoadTransport.DIRECT:
        yield Finding(
            CIDRS, "is not set, so any address that the fleet announces is dialled", "add the Pod CIDRs"
        )
