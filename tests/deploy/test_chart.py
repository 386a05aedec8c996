"""The chart: Helm renders it for one node and for many, Kubernetes' schemas take it, it asks for little."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.check import install_tools
from tests.deploy.image_file import DOCKERFILE, stages
from tests.deploy.tools import asked
from tests.sources import REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "picklog"
CHECK = install_tools.PINS.parent / "chart.py"
VERSIONS = ["1.29", "1.37"]
MANY: dict[str, Any] = yaml.safe_load((CHART / "values-many.yaml").read_text())
PODS = {"dynamoPodDiscovery": {"enabled": True, "namespace": "fleet"}}
METADATA = {"dynamoPodDiscovery": {"enabled": True, "namespace": "fleet", "metadata": True}}
STREAM = {**MANY, "stream": {"enabled": True}, "podMonitor": {"enabled": True}}
ONE_AND_STREAM: dict[str, Any] = {
    "stream": {"enabled": True, "replicas": 8},
    "podMonitor": {"enabled": True},
    "config": {"log": {"kafka": MANY["config"]["log"]["kafka"]}, "audit": MANY["config"]["audit"]},
    "networkPolicy": MANY["networkPolicy"],
}
SITES: dict[str, dict[str, Any]] = {
    "one": {},
    "many": MANY,
    "one with a secret": {"secret": {"create": True, "values": {"CLIENT_KEY": "a", "ADMIN_TOKEN": "b"}}},
    "many by hand": {
        **MANY,
        "router": {"autoscaling": {"enabled": False}},
    },
    "pods": PODS,
    "metadata": METADATA,
    "monitored": {**MANY, "podMonitor": {"enabled": True}},
    "open": {"networkPolicy": {"enabled": False}},
    "stream": STREAM,
    "one and stream": ONE_AND_STREAM,
    "stream of pods": {**STREAM, **PODS},
}
Document = dict[str, Any]


@cache
def _answer(site: str) -> dict[str, Any]:
    return answered(SITES[site], VERSIONS)


def answered(values: dict[str, Any], versions: Sequence[str] = ()) -> dict[str, Any]:
    """Findings, manifests and, by the schemas of these releases, faults of one set of values."""
    request = {
        "chart": str(CHART),
        "values": values,
        "name": "picklog",
        "namespace": "dynamo",
        "versions": list(versions),
    }
    found: dict[str, Any] = asked(CHECK, request)
    return found


def documents(site: str, kind: str = "") -> list[Document]:
    """Rendered documents of one kind, or all."""
    answer = _answer(site)
    assert answer["refused"] is None, answer["refused"]
    texts = [text for path, text in sorted(answer["manifests"].items()) if path.endswith(".yaml")]
    found = [document for text in texts for document in yaml.safe_load_all(text) if document]
    return [document for document in found if kind in ("", document["kind"])]


def pods(site: str) -> dict[str, Document]:
    """Role -> the Pod's specification."""
    workloads = documents(site, "StatefulSet") + documents(site, "Deployment")
    return {
        workload["metadata"]["labels"]["app.kubernetes.io/component"]: workload["spec"]["template"]["spec"]
        for workload in workloads
    }


@pytest.mark.parametrize("site", SITES)
def test_helm_and_the_schemas_of_kubernetes_find_nothing(site: str) -> None:
    answer = _answer(site)
    assert (answer["findings"], answer["refused"], answer["invalid"]) == ([], None, [])
    assert documents(site, "ServiceAccount"), "something was rendered"


def test_a_wrong_field_would_be_found(tmp_path: Path) -> None:
    wrong = tmp_path / "picklog"
    shutil.copytree(CHART, wrong)
    pod = wrong / "templates" / "_pod.tpl"
    pod.write_text(pod.read_text().replace("failureThreshold: 60", "failureThreshold: often"))
    request = {"chart": str(wrong), "values": {}, "name": "p", "namespace": "d", "versions": VERSIONS}
    assert asked(CHECK, request)["invalid"]


@pytest.mark.parametrize(
    "values",
    [
        {"mode": "several"},
        {"one": {"routers": 0}},
        {"one": {"routers": 33}},
        {"ingress": {"replicas": 2}},
        {"terminationGracePeriodSeconds": 10},
        {"ingest": {"storage": {"size": "lots"}}},
        {"networkPolicy": {"etcd": {"ports": [0]}}},
        {**STREAM, "stream": {"enabled": True, "replicas": 9}},
    ],
    ids=str,
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any]) -> None:
    assert answered(values)["refused"] is not None


def changed(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one value set, or removed where it is None."""
    copied = copy.deepcopy(values)
    *folders, name = path.split(".")
    place = copied
    for folder in folders:
        place = place.setdefault(folder, {})
    place[name] = value
    if value is None:
        del place[name]
    return copied


@pytest.mark.parametrize(
    ("site", "path", "value", "told"),
    [
        (STREAM, "config.audit.sink", "sql", "config.audit.sink is sql"),
        (MANY, "config.audit.sink", "stream", "no worker would write the rows"),
        ({}, "config.audit.sink", "stream", "no worker would write the rows"),
        (STREAM, "stream.elsewhere", True, "are both true"),
        (STREAM, "config.audit.enabled", False, "no rows would be sent"),
        (STREAM, "config.audit.url", None, "config.audit.url is no server"),
        (STREAM, "config.audit.url", "sqlite:///x", "config.audit.url is no server"),
        (ONE_AND_STREAM, "config.log.kafka.bootstrap_servers", [], "bootstrap_servers is empty"),
        (STREAM, "config.audit.stream.web_bind", "127.0.0.1", "config.audit.stream.web_bind is set"),
        (STREAM, "config.audit.stream.web_port", 9, "config.audit.stream.web_port is set"),
        (ONE_AND_STREAM, "networkPolicy.kafka", None, "networkPolicy.kafka.to is empty"),
        (STREAM, "networkPolicy.database", None, "networkPolicy.database.to is empty"),
    ],
    ids=str,
)
def test_stream_workers_that_would_write_nothing_are_refused_by_name(
    site: dict[str, Any], path: str, value: Any, told: str
) -> None:
    assert told in str(answered(changed(site, path, value))["refused"])


def test_workers_elsewhere_and_a_policy_of_ones_own_are_taken() -> None:
    elsewhere = changed(changed(MANY, "config.audit.sink", "stream"), "stream.elsewhere", True)
    assert answered(elsewhere)["refused"] is None
    rule = {"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}], "ports": [{"port": 5432, "protocol": "TCP"}]}
    narrowed = changed(
        changed(STREAM, "networkPolicy.database", None), "networkPolicy.additionalEgress", [rule]
    )
    answer = answered(narrowed, VERSIONS)
    assert (answer["refused"], answer["invalid"]) == (None, [])


@pytest.mark.parametrize("mode", ["one", "many", "stream", "one and stream"])
def test_the_configuration_that_is_rendered_is_one_that_picklog_takes(mode: str, tmp_path: Path) -> None:
    (config,) = documents(mode, "ConfigMap")
    file = tmp_path / "config.yaml"
    file.write_text(config["data"]["config.yaml"])
    secrets = {"CLIENT_KEY": "a", "ADMIN_TOKEN": "b", "POSTGRES_PASSWORD": "c"}
    clean = {name: text for name, text in os.environ.items() if not name.startswith("PICKLOG__")}
    said = subprocess.run(
        [sys.executable, "-m", "app", "config", "validate", "-c", str(file)],
        cwd=REPOSITORY,
        env={**clean, **secrets},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert yaml.safe_load(file.read_text())["server"]["bind_address"] == "0.0.0.0:8080"


def test_one_node_is_one_pod_with_a_volume_and_many_have_a_role_each() -> None:
    (one,) = documents("one", "StatefulSet")
    assert one["spec"]["replicas"] == 1 and one["spec"]["volumeClaimTemplates"]
    assert pods("one")["one"]["containers"][0]["args"][0] == "serve"
    assert documents("one", "Deployment") == documents("one", "HorizontalPodAutoscaler") == []
    roles = pods("many")
    assert {role: pod["containers"][0]["args"][0] for role, pod in roles.items()} == {
        "ingest": "ingest",
        "audit": "audit",
        "router": "router",
    }
    replicas = {one["metadata"]["name"]: one["spec"]["replicas"] for one in documents("many", "StatefulSet")}
    assert replicas == {"picklog-ingest": 2, "picklog-audit": 1}


@pytest.mark.parametrize(("site", "replicas"), [("stream", 2), ("one and stream", 8)])
def test_stream_workers_are_a_deployment_that_keeps_nothing(site: str, replicas: int) -> None:
    (workers,) = [one for one in documents(site, "Deployment") if one["metadata"]["name"] == "picklog-stream"]
    assert workers["spec"]["replicas"] == replicas and not documents("many by hand", "Deployment")[1:]
    assert workers["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    pod = pods(site)["stream"]
    (container,) = pod["containers"]
    assert container["args"][:2] == ["audit", "stream"]
    assert {volume["name"]: volume.get("emptyDir") for volume in pod["volumes"]}["data"] == {
        "sizeLimit": "64Mi"
    }
    port = int(container["args"][container["args"].index("--web-port") + 1])
    assert container["ports"] == [{"name": "http", "containerPort": port}]
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[name]["httpGet"] == {"path": "/progress/", "port": "http"}
    waits_s = container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"]
    assert waits_s == 600, "the database may be away when it starts"
    (config,) = documents(site, "ConfigMap")
    audit = yaml.safe_load(config["data"]["config.yaml"])["audit"]
    assert (audit["sink"], audit["stream"]) == ("stream", {"web_bind": "0.0.0.0"})
    budgets = {one["metadata"]["name"]: one["spec"] for one in documents(site, "PodDisruptionBudget")}
    assert budgets["picklog-stream"]["maxUnavailable"] == 1


def test_stream_workers_reach_topic_and_database_alone_and_read_no_pods() -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in documents("stream of pods", "NetworkPolicy")}
    own, others = policies["picklog-stream"], policies["picklog"]
    assert {port["port"] for rule in own["egress"] for port in rule["ports"]} == {53, 9092, 5432}
    assert own["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "stream"
    (apart,) = others["podSelector"]["matchExpressions"]
    assert (apart["operator"], apart["values"]) == ("NotIn", ["stream"])
    assert {role: pod["automountServiceAccountToken"] for role, pod in pods("stream of pods").items()} == {
        "ingest": True,
        "audit": True,
        "router": True,
        "stream": False,
    }
    peer = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
    narrowed = changed(STREAM, "networkPolicy.scrapers", [peer])
    text = answered(narrowed)["manifests"]["picklog/templates/networkpolicy.yaml"]
    found = {one["metadata"]["name"]: one["spec"]["ingress"] for one in yaml.safe_load_all(text)}
    assert found["picklog-stream"][0]["from"] == [peer] != found["picklog"][0]["from"]


@pytest.mark.parametrize("site", ["stream", "one and stream"])
def test_series_of_stream_workers_have_their_process(site: str) -> None:
    (monitor,) = documents(site, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")
    (process,) = [rule for rule in endpoint["relabelings"] if rule["targetLabel"] == "process"]
    assert process["sourceLabels"] == ["__meta_kubernetes_pod_label_app_kubernetes_io_component"]
    assert (process.get("regex"), process.get("replacement")) == (
        (None, None) if site == "stream" else ("stream", "stream")
    )


def test_one_nodes_volume_holds_every_ceiling_of_its_configuration() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    config = values["config"]
    parts = [config["log"]["retention"], config["log"]["raw"], config["checkpoints"], config["audit"]]
    assert sum(int(part["bytes"].removesuffix("GiB")) for part in parts) < int(
        values["one"]["storage"]["size"][:-2]
    )


@pytest.mark.parametrize("site", ["one", "many", "metadata", "stream"])
def test_no_pod_may_more_than_it_needs(site: str) -> None:
    (user,) = stages(DOCKERFILE.read_text())[-1].texts("USER")
    for pod in pods(site).values():
        context = pod["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
        assert context["runAsNonRoot"] and context["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]
        assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {
            "/etc/picklog",
            "/tmp",
            "/data",
        }


def test_probes_ask_health_and_ready() -> None:
    for pod in (*pods("one").values(), *pods("many").values()):
        (container,) = pod["containers"]
        assert container["livenessProbe"]["httpGet"]["path"] == "/health"
        assert container["startupProbe"]["httpGet"]["path"] == "/health"
        assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
        assert pod["terminationGracePeriodSeconds"] >= 30 + 5, "requests in flight get 30 s"
        assert len(pod["topologySpreadConstraints"]) == 2


def test_no_service_account_has_a_token_without_kubernetes_discovery() -> None:
    for site in ("one", "many"):
        assert documents(site, "Role") == documents(site, "RoleBinding") == []
        assert not any(pod["automountServiceAccountToken"] for pod in pods(site).values())


@pytest.mark.req("DEP-01", "DEP-06")
def test_discovery_of_pods_brings_a_role_in_the_fleets_namespace_and_a_token() -> None:
    (role,), (binding,), (account,) = (
        documents("pods", kind) for kind in ("Role", "RoleBinding", "ServiceAccount")
    )
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "fleet"
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == (account["metadata"]["name"], "dynamo")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert all(pod["automountServiceAccountToken"] for pod in pods("pods").values())
    assert all(pod["serviceAccountName"] == account["metadata"]["name"] for pod in pods("pods").values())


@pytest.mark.req("DEP-04", "DEP-06")
def test_discovery_by_metadata_adds_two_kinds_and_no_verb() -> None:
    (role,) = documents("metadata", "Role")
    assert [(rule["apiGroups"], rule["resources"]) for rule in role["rules"]] == [
        ([""], ["pods"]),
        (["nvidia.com"], ["dynamoworkermetadatas"]),
        (["discovery.k8s.io"], ["endpointslices"]),
    ]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def egress_ports(site_values: dict[str, Any]) -> list[int]:
    answer = answered(site_values)
    (text,) = [text for path, text in answer["manifests"].items() if path.endswith("networkpolicy.yaml")]
    rules = yaml.safe_load(text)["spec"]["egress"]
    return [port["port"] for rule in rules for port in rule["ports"]]


@pytest.mark.req("DEP-02", "DEP-03")
def test_the_api_server_may_be_reached_with_discovery_alone_and_can_be_narrowed() -> None:
    assert not {443, 6443} & set(egress_ports({}))
    assert {443, 6443} <= set(egress_ports(PODS))
    rule = {"to": [{"ipBlock": {"cidr": "192.0.2.1/32"}}], "ports": [{"port": 6443, "protocol": "TCP"}]}
    narrowed = {**PODS, "networkPolicy": {"apiServerPorts": [], "additionalEgress": [rule]}}
    assert [port for port in egress_ports(narrowed) if port in (443, 6443)] == [6443]
    assert answered(narrowed, VERSIONS)["invalid"] == []


@pytest.mark.req("DEP-07")
def test_publishers_may_be_reached_at_the_ports_that_workers_choose() -> None:
    (policy,) = documents("one", "NetworkPolicy")
    ranges = [port for rule in policy["spec"]["egress"] for port in rule["ports"] if "endPort" in port]
    assert ranges == [{"port": 1024, "endPort": 65535, "protocol": "TCP"}]
    assert documents("open", "NetworkPolicy") == []


def test_a_policy_opens_kafka_and_the_database_to_many_alone() -> None:
    assert not {9092, 5432} & set(egress_ports({}))
    assert {9092, 5432, 2379, 8000, 53} <= set(egress_ports(MANY))


def test_a_changed_configuration_rolls_the_pods_unless_it_is_to_be_taken_up_running() -> None:
    def annotations(values: dict[str, Any]) -> dict[str, str]:
        text = answered(values)["manifests"]["picklog/templates/one.yaml"]
        found: dict[str, str] = yaml.safe_load(text)["spec"]["template"]["metadata"]["annotations"]
        return found

    changed = {"config": {"logging": {"level": "debug"}}}
    assert annotations({})["checksum/config"] != annotations(changed)["checksum/config"]
    assert "checksum/config" not in annotations({**changed, "restartOnConfigChange": False})
    secret = copy.deepcopy(SITES["one with a secret"])
    before = annotations(secret)["checksum/secret"]
    secret["secret"]["values"]["CLIENT_KEY"] = "other"
    assert annotations(secret)["checksum/secret"] != before


def test_routers_grow_with_their_load_and_an_upgrade_takes_none_away() -> None:
    (deployment,) = documents("many", "Deployment")
    (scaler,) = documents("many", "HorizontalPodAutoscaler")
    assert "replicas" not in deployment["spec"], "the scaler's"
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    (fixed,) = documents("many by hand", "Deployment")
    assert fixed["spec"]["replicas"] == 3 and documents("many by hand", "HorizontalPodAutoscaler") == []
    budgets = {
        one["metadata"]["name"]: one["spec"]["maxUnavailable"]
        for one in documents("many", "PodDisruptionBudget")
    }
    assert budgets == {"picklog-router": 1, "picklog-ingest": 1}


def test_new_processes_fetch_their_first_checkpoint_from_the_follower() -> None:
    def peers(config: Document) -> Any:
        return yaml.safe_load(config["data"]["config.yaml"])["checkpoints"].get("peers")

    (one,), (many,) = documents("one", "ConfigMap"), documents("many", "ConfigMap")
    assert peers(one) is None
    (service,) = [
        found for found in documents("many", "Service") if found["metadata"]["name"] == "picklog-audit"
    ]
    assert peers(many) == ["http://picklog-audit:8080"]
    assert service["spec"]["selector"]["app.kubernetes.io/component"] == "audit"
    (policy,) = documents("many", "NetworkPolicy")
    among = [rule for rule in policy["spec"]["egress"] if "podSelector" in str(rule.get("to"))]
    assert [rule["ports"] for rule in among] == [[{"port": 8080, "protocol": "TCP"}]]
    own = answered(
        {**MANY, "config": {**MANY["config"], "checkpoints": {"peers": ["http://elsewhere:8080"]}}}
    )
    assert "elsewhere" in own["manifests"]["picklog/templates/configmap.yaml"]
    assert "picklog-audit:8080" not in own["manifests"]["picklog/templates/configmap.yaml"]


def test_every_selector_chooses_the_pods_that_it_is_meant_for() -> None:
    for mode in ("one", "many", "stream", "one and stream"):
        workloads = documents(mode, "StatefulSet") + documents(mode, "Deployment")
        labels = [workload["spec"]["template"]["metadata"]["labels"] for workload in workloads]
        for workload, own in zip(workloads, labels, strict=True):
            assert workload["spec"]["selector"]["matchLabels"].items() <= own.items()
        services = {found["metadata"]["name"]: found for found in documents(mode, "Service")}
        front, every = services["picklog"], services["picklog-pods"]
        chosen = [own for own in labels if front["spec"]["selector"].items() <= own.items()]
        assert [own["app.kubernetes.io/component"] for own in chosen] == [
            "one" if mode.startswith("one") else "router"
        ]
        assert all(every["spec"]["selector"].items() <= own.items() for own in labels)


def test_versions_agree_with_the_product() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = re.search(r'^version = "(.*)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None and chart["appVersion"] == version[1]
    compose = yaml.safe_load((REPOSITORY / "deploy" / "compose.yaml").read_text())
    assert compose["services"]["router-1"]["image"] == f"picklog:{version[1]}"


@pytest.mark.parametrize("mode", ["one", "many"])
def test_the_helm_command_renders_what_its_library_renders(mode: str) -> None:
    """Where a helm is installed; continuous integration has the library alone."""
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("no helm on this machine; its library has rendered the chart")
    more = ["-f", str(CHART / "values-many.yaml")] if mode == "many" else []
    said = subprocess.run(
        [helm, "template", "picklog", str(CHART), "-n", "dynamo", "--kube-version", "1.37.0", *more],
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = sorted(json.dumps(one, sort_keys=True) for one in yaml.safe_load_all(said.stdout) if one)
    assert theirs == sorted(json.dumps(one, sort_keys=True) for one in documents(mode))
