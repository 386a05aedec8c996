"""Rules of the `dynamo` section, row by row: a change of a valid document, and what the validator says."""

import copy
from typing import Any

import pytest

from app.config_findings import ConfigError, Report
from app.config_load import check_data

EXTRAS = frozenset({"etcd"})
ETCD = "dynamo.discovery.etcd"


def document() -> dict[str, Any]:
    """A valid document without a warning or a suggestion."""
    return {
        "backends": [{"name": "a", "url": "http://a:1"}, {"name": "b", "url": "http://b:1"}],
        "disaggregated_serving": {"enabled": True},
        "dynamo": {
            "enabled": True,
            "discovery": {"etcd": {"endpoints": ["http://etcd.dynamo.svc:2379"]}},
            "load": {"direct_allow_cidrs": ["10.0.0.0/8"]},
            "shim": {"backends": ["a"]},
        },
    }


def changed(changes: dict[str, object]) -> dict[str, Any]:
    """The valid document with some dotted keys set; the value `del` removes a key."""
    data = copy.deepcopy(document())
    for dotted, value in changes.items():
        holder = data
        *above, last = dotted.split(".")
        for key in above:
            holder = holder.setdefault(key, {})
        if value == "del":
            holder.pop(last, None)
        else:
            holder[last] = value
    return data


def errors(changes: dict[str, object]) -> list[str]:
    try:
        check_data(changed(changes), extras=EXTRAS)
    except ConfigError as error:
        return [f"{finding.path}: {finding.message}" for finding in error.findings]
    return []


def report(changes: dict[str, object]) -> Report:
    return check_data(changed(changes), extras=EXTRAS)[1]


def warnings(changes: dict[str, object]) -> list[str]:
    return [f"{finding.path}: {finding.message}" for finding in report(changes).warnings]


def test_the_valid_document_has_no_finding() -> None:
    assert report({}) == Report()


@pytest.mark.req("CFG-03")
def test_source_is_one_of_four() -> None:
    assert errors({"dynamo.discovery.source": "consul"})[0].startswith("dynamo.discovery.source: ")
    for source in ("etcd", "file", "kubernetes", "kubernetes_pods"):
        assert not any(
            line.startswith("dynamo.discovery.source") for line in errors({"dynamo.discovery.source": source})
        )


@pytest.mark.req("CFG-04")
@pytest.mark.parametrize(("count", "is_valid"), [(0, False), (1, True), (16, True), (17, False)])
def test_one_to_sixteen_endpoints_when_enabled(count: int, is_valid: bool) -> None:
    found = errors({f"{ETCD}.endpoints": [f"h{number}:2379" for number in range(count)]})
    assert (not found) is is_valid
    assert all(line.startswith(f"{ETCD}.endpoints: ") for line in found)


@pytest.mark.req("CFG-04")
def test_no_endpoint_is_needed_while_discovery_is_off() -> None:
    assert not errors({f"{ETCD}.endpoints": [], "dynamo.enabled": False})


@pytest.mark.req("CFG-05", "CFG-07", "CFG-08")
@pytest.mark.parametrize(
    "endpoint", ["::1:2379", "http://u:hunter2@h:2379", "http://hunter2@h:1", "h:1/?hunter2", "h:1#"]
)
def test_bad_endpoint_is_named_by_position_and_never_printed(endpoint: str) -> None:
    found = errors({f"{ETCD}.endpoints": ["h:1", endpoint]})
    assert len(found) == 1 and found[0].startswith(f"{ETCD}.endpoints[1]: ")
    assert "hunter2" not in found[0]


@pytest.mark.req("CFG-06", "CFG-09")
def test_bare_endpoint_beside_https_is_a_mix_of_schemes() -> None:
    assert "mixes http and https" in errors({f"{ETCD}.endpoints": ["h:1", "https://g:1"]})[0]
    assert not errors({f"{ETCD}.endpoints": ["h:1", "http://g:1"]})


@pytest.mark.req("CFG-06", "CFG-10")
@pytest.mark.parametrize(
    ("endpoint", "is_valid"), [("http://h:1", False), ("h:1", False), ("https://h:1", True)]
)
def test_tls_block_needs_https(endpoint: str, is_valid: bool) -> None:
    found = errors({f"{ETCD}.endpoints": [endpoint], f"{ETCD}.tls": {"ca_cert": "/ca.pem"}})
    assert (not found) is is_valid


@pytest.mark.req("CFG-11", "FILE-01")
@pytest.mark.parametrize("section", ["etcd", "file"])
@pytest.mark.parametrize(
    ("name", "is_valid"),
    [
        ("dynamo", True),
        ("ns.one", True),
        ("é", True),
        ("", False),
        ("a/b", False),
        ("a b", False),
        ("a\tb", False),
        ("a\x7f", False),
        ("a\x01", False),
        ("a\xa0b", False),
        ("a\x85", False),
    ],
)
def test_namespace_is_a_plain_name(section: str, name: str, is_valid: bool) -> None:
    assert (not errors({f"dynamo.discovery.{section}.namespace": name})) is is_valid


@pytest.mark.req("CFG-11")
def test_namespace_defaults_to_dynamo() -> None:
    config, _ = check_data(document(), extras=EXTRAS)
    assert config.dynamo.discovery.namespaces == ("dynamo",)


def pools(*names: str) -> dict[str, object]:
    """One pool for each namespace, every pool with a backend of its own."""
    return {
        "backends": [{"name": f"shim-{name}", "url": "http://a:1"} for name in names],
        "dynamo.shim": {"pools": [{"namespace": name, "backends": [f"shim-{name}"]} for name in names]},
    }


@pytest.mark.req("CFG-12")
@pytest.mark.parametrize(("count", "is_valid"), [(2, True), (16, True), (17, False)])
def test_up_to_sixteen_namespaces(count: int, is_valid: bool) -> None:
    names = [f"n{number}" for number in range(count)]
    assert (not errors({f"{ETCD}.namespaces": names, **pools(*names)})) is is_valid


@pytest.mark.req("CFG-12")
def test_namespaces_are_unique_and_plain() -> None:
    assert "twice" in errors({f"{ETCD}.namespaces": ["a", "a"], **pools("a")})[0]
    assert errors({f"{ETCD}.namespaces": ["a", "b/c"], **pools("a", "b/c")})[0].startswith(
        f"{ETCD}.namespaces[1]"
    )


@pytest.mark.req("CFG-13")
def test_list_of_namespaces_stands_only_beside_the_default_scalar() -> None:
    two = {f"{ETCD}.namespaces": ["a", "b"], **pools("a", "b")}
    assert not errors({f"{ETCD}.namespace": "dynamo", **two})
    assert errors({f"{ETCD}.namespace": "other", **two}) == [f"{ETCD}.namespace: stands beside `namespaces`"]


@pytest.mark.req("CFG-14")
def test_several_namespaces_need_pools_and_refuse_a_plain_list() -> None:
    two: dict[str, object] = {f"{ETCD}.namespaces": ["x", "y"]}
    assert errors(two) == ["dynamo.shim.backends: cannot serve several namespaces"]
    assert len(errors({**two, "dynamo.shim": {}})) == 2
    both = {"backends": ["a"], "pools": [{"namespace": "dynamo", "backends": ["b"]}]}
    assert "stands beside `pools`" in errors({"dynamo.shim": both})[0]


@pytest.mark.req("CFG-15")
def test_every_namespace_has_exactly_one_pool() -> None:
    two: dict[str, object] = {f"{ETCD}.namespaces": ["x", "y"], **pools("x", "y")}
    assert not errors(two)
    missing = {"pools": [{"namespace": "x", "backends": ["shim-x"]}]}
    assert errors({**two, "dynamo.shim": missing}) == ["dynamo.shim.pools: has no pool for 'y'"]
    doubled = {"pools": [{"namespace": n, "backends": [b]} for n, b in (("x", "shim-x"), ("x", "shim-y"))]}
    assert "dynamo.shim.pools: has 2 pools for 'x'" in errors({**two, "dynamo.shim": doubled})
    unknown = {"pools": [{"namespace": n, "backends": [f"shim-{n}"]} for n in ("x", "y")]}
    found = errors({**two, f"{ETCD}.namespaces": ["x", "z"], "dynamo.shim": unknown})
    assert "dynamo.shim.pools[1].namespace: is not a configured Dynamo namespace" in found


@pytest.mark.req("CFG-16")
def test_backend_is_in_one_pool_only() -> None:
    shared = {"pools": [{"namespace": "x", "backends": ["a"]}, {"namespace": "y", "backends": ["a"]}]}
    found = errors({f"{ETCD}.namespaces": ["x", "y"], "dynamo.shim": shared})
    assert found == ["dynamo.shim.pools[1].backends[0]: is in another pool already"]


@pytest.mark.req("CFG-17")
@pytest.mark.parametrize("only", ["client_cert", "client_key"])
def test_client_certificate_and_key_come_together(only: str) -> None:
    https: dict[str, object] = {f"{ETCD}.endpoints": ["https://h:1"]}
    assert "lacks" in errors({**https, f"{ETCD}.tls": {only: "/hunter2.pem"}})[0]
    assert not errors({**https, f"{ETCD}.tls": {"client_cert": "/c.pem", "client_key": "/k.pem"}})


@pytest.mark.req("CFG-20")
def test_login_over_plaintext_is_a_warning() -> None:
    login: dict[str, object] = {f"{ETCD}.auth": {"username": "u", "password": "p"}}
    assert warnings(login) == [f"{ETCD}.auth: user and password travel unencrypted"]
    assert not warnings({**login, f"{ETCD}.endpoints": ["https://h:1"]})


@pytest.mark.req("CFG-22")
def test_backoff_has_defaults_and_grows() -> None:
    backoff = check_data(document(), extras=EXTRAS)[0].dynamo.discovery.etcd.watch_reconnect_backoff
    assert (str(backoff.initial), str(backoff.max)) == ("500ms", "30s")
    found = errors({f"{ETCD}.watch_reconnect_backoff": {"initial": "2s", "max": "1s"}})
    assert found == [f"{ETCD}.watch_reconnect_backoff.max: is shorter than `initial`"]
    assert not errors({f"{ETCD}.watch_reconnect_backoff": {"initial": "1s", "max": "1s"}})


@pytest.mark.req("CFG-23")
@pytest.mark.parametrize(
    ("text", "is_valid"), [("99ms", False), ("100ms", True), ("5m", True), ("301s", False)]
)
def test_max_staleness_lies_in_its_range(text: str, is_valid: bool) -> None:
    assert (not errors({"dynamo.load.max_staleness": text})) is is_valid


@pytest.mark.req("CFG-23")
def test_max_staleness_defaults_to_three_seconds() -> None:
    assert check_data({}, extras=EXTRAS)[0].dynamo.load.max_staleness.us == 3_000_000


@pytest.mark.req("CFG-24")
def test_shim_backends_are_known_unique_and_at_most_64() -> None:
    many = [{"name": f"s{number}", "url": "http://a:1"} for number in range(65)]
    names = [entry["name"] for entry in many]
    assert not errors({"backends": many, "dynamo.shim.backends": names[:64]})
    assert "at most 64" in errors({"backends": many, "dynamo.shim.backends": names})[0]
    assert errors({"dynamo.shim.backends": ["a", "c"]})[0].startswith(
        "dynamo.shim.backends[1]: is not the name"
    )
    assert errors({"dynamo.shim.backends": ["a", "a"]}) == ["dynamo.shim.backends[1]: is named twice"]


@pytest.mark.req("CFG-25")
def test_model_map_has_at_most_1024_filled_pairs() -> None:
    pairs = {f"m{number}": "x" for number in range(1025)}
    assert "at most 1024" in errors({"dynamo.shim.model_map": pairs})[0]
    del pairs["m0"]
    assert not errors({"dynamo.shim.model_map": pairs})
    assert "empty model name" in errors({"dynamo.shim.model_map": {"": "x"}})[0]
    assert "empty model name" in errors({"dynamo.shim.model_map": {"x": " "}})[0]


@pytest.mark.req("CFG-26")
@pytest.mark.parametrize("switch", ["dynamo.enabled", "disaggregated_serving.enabled"])
def test_pool_without_its_switches_is_a_warning(switch: str) -> None:
    assert warnings({switch: False}) == [f"dynamo.shim: is not used while {switch} is false"]


@pytest.mark.req("CFG-27")
@pytest.mark.parametrize(
    ("key", "value", "word"), [("internal", True, "internal"), ("enabled", False, "disabled")]
)
def test_pool_with_a_replica_out_of_service_is_a_warning(key: str, value: bool, word: str) -> None:
    backends = [{"name": "a", "url": "http://a:1", key: value}, {"name": "b", "url": "http://b:1"}]
    found = warnings({"backends": backends})
    assert found == [f"dynamo.shim.backends[0]: 'a' is {word} and gets no requests"]


@pytest.mark.req("CFG-28")
def test_allow_list_holds_at_most_64_networks() -> None:
    cidrs = [f"10.{number}.0.0/16" for number in range(64)]
    assert not errors({"dynamo.load.direct_allow_cidrs": cidrs})
    assert "at most 64" in errors({"dynamo.load.direct_allow_cidrs": [*cidrs, "fd00::/8"]})[0]
    assert errors({"dynamo.load.direct_allow_cidrs": ["fd00::/8", "10.0.0.0/33"]}) == [
        "dynamo.load.direct_allow_cidrs[1]: is not a network"
    ]


@pytest.mark.req("CFG-29")
def test_omitted_allow_list_brings_a_suggestion() -> None:
    found = report({"dynamo.load.direct_allow_cidrs": "del"})
    assert not found.warnings
    assert [finding.hint for finding in found.suggestions] == ["add the Pod CIDRs"]


def test_empty_allow_list_is_a_warning_since_nothing_may_be_dialled() -> None:
    assert "no publisher may be dialled" in warnings({"dynamo.load.direct_allow_cidrs": []})[0]


@pytest.mark.req("CFG-30")
def test_external_endpoints_in_direct_mode_are_one_warning() -> None:
    public: dict[str, object] = {f"{ETCD}.endpoints": ["8.8.8.8:2379", "etcd.example.com:2379"]}
    assert [line.split(",")[0] for line in warnings(public)] == [f"{ETCD}.endpoints: look external"]


@pytest.mark.req("CFG-31")
def test_transport_is_direct_or_broker() -> None:
    assert check_data({}, extras=EXTRAS)[0].dynamo.load.transport == "direct"
    assert errors({"dynamo.load.transport": "carrier pigeon"})
    assert not errors({"dynamo.load.transport": "broker"})


@pytest.mark.req("FILE-01")
def test_file_source_needs_a_root() -> None:
    assert errors({"dynamo.discovery.source": "file"})[0].startswith("dynamo.discovery.file.root: ")
    assert not errors({"dynamo.discovery.source": "file", "dynamo.discovery.file.root": "/store"})


def test_pinned_path_without_a_frontend_is_a_warning() -> None:
    assert "no request can be pinned" in warnings({"dynamo.shim": {}})[0]


def test_pool_without_a_backend_is_an_error() -> None:
    assert "is empty" in errors({"dynamo.shim": {"pools": [{"namespace": "dynamo", "backends": []}]}})[0]
