"""What Helm makes of the chart, and what Kubernetes' schemas say of that. Runs in the tools' environment.

Standard input: JSON `{"chart", "values", "name", "namespace", "versions"}`; `values` are laid
over the chart's own, `versions` are releases of Kubernetes. Standard output: JSON `{"findings",
"refused", "manifests", "invalid"}`: findings of the linter with their severity, why Helm
renders nothing (or null), documents as Helm wrote them by template, and one line for each
that a schema refuses. Kinds that are no part of Kubernetes have no schema and are left out.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

INFORMATION = 1
"""Severity of a finding below a warning."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """See the module."""
    helm = importlib.import_module("helm_python")
    values = request["values"]
    report = helm.lint(request["chart"], values, strict=True)
    found: dict[str, Any] = {
        "findings": [one for one in report["messages"] or [] if one["severity"] > INFORMATION],
        "refused": None,
        "manifests": {},
        "invalid": [],
    }
    try:
        with helm.Chart.load(request["chart"]) as chart:
            chart.validate_schema(values)
            found["manifests"] = chart.render(values, name=request["name"], namespace=request["namespace"])
    except helm.HelmError as refusal:
        found["refused"] = str(refusal)
    for path, text in sorted(found["manifests"].items()):
        if path.endswith(".yaml"):
            found["invalid"] += _invalid(path, text, request["versions"])
    return found


def _invalid(path: str, text: str, versions: list[str]) -> list[str]:
    yaml = importlib.import_module("yaml")
    kubernetes = importlib.import_module("kubernetes_validate")
    lines = []
    for document in yaml.safe_load_all(text):
        for version in versions if document else ():
            try:
                kubernetes.validate(document, version, strict=True)
            except kubernetes.SchemaNotFoundError:
                continue
            except kubernetes.ValidationError as refusal:
                lines.append(f"{path}: {document['kind']} for {version}: {refusal.message}")
    return lines


if __name__ == "__main__":
    json.dump(answer(json.load(sys.stdin)), sys.stdout)
