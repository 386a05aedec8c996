"""What the repository holds, what the product depends on, and which limits of others it tells its users."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
FOLDERS = (
    "app",
    "ingest",
    "projections",
    "router",
    "migrations",
    "tests",
    "replay",
    "deploy",
    "docs",
    "bench",
    ".ci",
)
FILES = (
    "pyproject.toml",
    "README.md",
    "Makefile",
    "uv.lock",
    "CHANGELOG.md",
    "LICENSE",
    "CONTRIBUTING.md",
    "SECURITY.md",
)


def installed_with(*extras: str) -> set[str]:
    """Names of the libraries that an installation with these extras asks for."""
    wanted = list(PROJECT["dependencies"])
    for extra in extras:
        wanted += PROJECT["optional-dependencies"][extra]
    return {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() for line in wanted}


@pytest.mark.req("EVS-22")
def test_the_layout_is_the_documented_one() -> None:
    assert [name for name in FOLDERS if not (REPOSITORY / name).is_dir()] == []
    assert [name for name in FILES if not (REPOSITORY / name).is_file()] == []
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (REPOSITORY / "LICENSE").read_text()


@pytest.mark.req("ZMTP-01", "SHIM-28")
def test_nothing_reads_the_wire_or_tokens_in_place_of_our_decoders_and_the_frontend() -> None:
    extras = set(PROJECT["optional-dependencies"]) - {"kv", "all"}
    names = installed_with(*extras)
    assert "aiohttp" in names and "msgspec" in names, "the list is read"
    assert names & {"pyzmq", "zmq", "transformers", "tokenizers", "tiktoken"} == set()
    with_kv = installed_with("kv")
    assert "tokenizers" in with_kv, "to predict blocks; answers are the frontend's all the same"
    assert with_kv & {"pyzmq", "zmq", "transformers", "tiktoken"} == set()


@pytest.mark.req("MIX-09", "SHIM-30")
@pytest.mark.parametrize(
    "limit",
    ["aggregated workers *and* by a prefill/decode pool", "chat processor of an unpatched Dynamo 1.4.2"],
)
def test_limits_of_the_frontends_stand_in_the_readme(limit: str) -> None:
    text = " ".join((REPOSITORY / "README.md").read_text().split())
    limits = text.partition("## Limits, honestly")[2]
    assert limit in limits


@pytest.mark.req("KVX-17")
def test_nothing_speaks_to_the_endpoint_that_workers_answer_queries_of_their_index_at() -> None:
    """A gap costs overlap credit; the router stays off the fleet's request plane."""
    words = ("worker_kv_query_source", "kv_query", "recovery_target")
    offenders = [
        (path.name, word)
        for folder in ("app", "ingest", "projections", "replay", "router")
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        for word in words
        if word in path.read_text(encoding="utf-8")
    ]
    assert offenders == []
