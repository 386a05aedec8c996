"""What a real frontend makes of the conversations, for every template of the corpus.

    python -m tests.live.template_fleet RELEASE FILE.jsonl.gz    records it anew

Each template becomes a model of its own: the demo's tokenizer, the template in the place of
its own. They are served in a few fleets one after another, since a frontend with the file
store watches each model with an inotify instance and a user has 128 of those.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from deploy.demo import fleet_plan, install_dynamo
from deploy.demo.children import Child
from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import TINY_MODEL, FrontendSpec, aggregated_plan
from tests.router.prompt.conversations import CONVERSATIONS, TEMPLATES

MODELS_A_FLEET = 26
LISTED_S_MAX = 60.0
ANNOTATIONS = ("formatted_prompt", "token_ids")


def answers(release: str, run_dir: Path) -> Iterator[dict[str, Any]]:
    """One row a template and conversation: template, case, status and, of 200, text and token_ids."""
    templates = sorted(TEMPLATES.glob("*.jinja"))
    for at in range(0, len(templates), MODELS_A_FLEET):
        batch = templates[at : at + MODELS_A_FLEET]
        yield from _answers_of(release, run_dir / str(at), batch)


def _answers_of(release: str, run_dir: Path, templates: list[Path]) -> Iterator[dict[str, Any]]:
    folders = [model_folder(run_dir / "models", template) for template in templates]
    plan = aggregated_plan(1)
    front = FrontendSpec("frontend-1", extra=("--router-mode", "round-robin"))
    plan = dataclasses.replace(plan, frontends=(front,))
    fleet = Fleet(plan, run_dir / "fleet", release=release)
    python = install_dynamo.python_of(release)
    argv = [str(python), str(Path(__file__).with_name("mock_models.py")), "dynamo", *map(str, folders)]
    env = fleet_plan.fleet_environment(os.environ, plan, fleet.run_dir, None) | {"DYN_NAMESPACE": "dynamo"}
    fleet._nursery.add(Child("models", argv, env, fleet.run_dir / "models.log", fleet._workdir))
    for folder in folders:
        (fleet._workdir / folder.name).symlink_to(folder)
    with fleet:
        fleet._nursery.start("models")
        wanted = {folder.name for folder in folders}
        deadline = time.monotonic() + LISTED_S_MAX
        while not wanted <= set(fleet.models()):
            if time.monotonic() > deadline:
                raise AssertionError(f"the frontend lists no {wanted - set(fleet.models())}")
            time.sleep(0.2)
        url = fleet.frontend_url()
        cases = [(folder.name, case) for folder in folders for case in CONVERSATIONS]
        with ThreadPoolExecutor(8) as pool:
            for (name, case), row in zip(
                cases, pool.map(lambda one: ask(url, one[0], CONVERSATIONS[one[1]]), cases), strict=True
            ):
                yield {"template": name, "case": case, **row}


def model_folder(where: Path, template: Path) -> Path:
    """A copy of the demo's model with this template."""
    folder = where / template.stem
    shutil.copytree(TINY_MODEL, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = template.read_text()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def ask(url: str, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """What the frontend renders and encodes: it says so before the answer's first event."""
    asked = {**body, "model": model, "max_tokens": 1, "stream": True, "nvext": {"annotations": ANNOTATIONS}}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(asked).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
    except urllib.error.HTTPError as refusal:
        return {"status": refusal.code}
    found = dict(named_values(lines))
    return {"status": 200, "text": found["formatted_prompt"], "token_ids": found["token_ids"]}


def named_values(lines: list[str]) -> Iterator[tuple[str, Any]]:
    """Names and values: an `event:` line, then a comment that holds JSON, mostly of JSON."""
    for before, line in pairwise(lines):
        if before.startswith("event: ") and line.startswith(": "):
            value = json.loads(line[2:])
            if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
                value = value[0]
            name = before.removeprefix("event: ")
            yield name, json.loads(value) if name == "token_ids" and isinstance(value, str) else value


def main() -> None:
    """Record what a release answers."""
    release, path = sys.argv[1], Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as run_dir, gzip.open(path, "wt") as out:
        for row in answers(release, Path(run_dir)):
            row["date"] = time.strftime("%Y-%m-%d")
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
