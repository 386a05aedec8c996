"""What PromQL expressions ask for, by the grammar of Prometheus. Runs in the tools' environment.

Standard input: a JSON list of expressions. Standard output: a list as long, each
`{"error": text}` or `{"selectors": [{"name", "matchers": [[label, operator, value]]}],
"labels": [...]}`; `labels` are those that the expression groups or matches by.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

OPERATORS = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def described(text: str) -> dict[str, Any]:
    """One expression, taken apart."""
    parser = importlib.import_module("promql_parser")
    selectors: list[dict[str, Any]] = []
    labels: set[str] = set()

    def visit(node: Any) -> None:
        kind = type(node).__name__
        if kind == "VectorSelector":
            matchers = [
                [one.name, OPERATORS[str(one.op).rpartition(".")[2]], one.value]
                for one in node.matchers.matchers
            ]
            selectors.append({"name": node.name, "matchers": matchers})
        elif kind == "AggregateExpr" and node.modifier is not None:
            labels.update(node.modifier.labels)
        elif kind == "BinaryExpr" and node.modifier is not None:
            matching = node.modifier.matching
            labels.update(matching.labels if matching is not None else [])

    try:
        parser.walk(parser.parse(text), visit)
    except ValueError as problem:
        return {"error": str(problem)}
    return {"selectors": selectors, "labels": sorted(labels)}


if __name__ == "__main__":
    json.dump([described(text) for text in json.load(sys.stdin)], sys.stdout)
