"""The Dockerfile as data: stages, and the steps of each in order. Reads what ours uses, refuses the rest."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.sources import REPOSITORY

DOCKERFILE = REPOSITORY / "deploy" / "Dockerfile"
WORDS = frozenset(
    ("FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD", "LABEL")
)


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: its word in capitals and the rest, continuation lines joined."""

    word: str
    text: str


@dataclass(slots=True)
class Stage:
    """From one FROM to the next. base: the image; name: empty for the last stage."""

    base: str
    name: str
    steps: list[Step] = field(default_factory=list)

    def texts(self, word: str) -> list[str]:
        return [step.text for step in self.steps if step.word == word]

    def environment(self) -> dict[str, str]:
        pairs = [pair for text in self.texts("ENV") for pair in re.findall(r"(\w+)=(\S+)", text)]
        return dict(pairs)


def stages(text: str) -> list[Stage]:
    found: list[Stage] = []
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        word, _, rest = line.partition(" ")
        if word not in WORDS:
            raise ValueError(f"unknown instruction: {line}")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base, name))
        else:
            found[-1].steps.append(Step(word, rest.strip()))
    return found


def health_command(stage: Stage) -> list[str]:
    (text,) = stage.texts("HEALTHCHECK")
    command: list[str] = json.loads(text.partition("CMD ")[2])
    return command


def context_files() -> list[str]:
    """Tracked and new files that a build is sent: those that .dockerignore lets through."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    )
    rules = [
        line.strip()
        for line in (REPOSITORY / ".dockerignore").read_text().splitlines()
        if line.strip() and not line.startswith("#")
    ]
    names = [name for name in listed.stdout.decode().split("\0") if name]
    return [name for name in names if _is_sent(name, rules) and (REPOSITORY / name).is_file()]


def copied(stage: Stage, files: list[str]) -> dict[str, str]:
    """Target below the working directory -> file of the context, for every COPY that names no other stage."""
    found: dict[str, str] = {}
    for text in stage.texts("COPY"):
        if text.startswith("--"):
            continue
        *sources, target = text.split()
        for source in sources:
            for name in files:
                if name == source:
                    place = Path(target) / Path(name).name if target.endswith("/") else Path(target)
                    found[place.as_posix()] = name
                elif name.startswith(source + "/"):
                    found[(Path(target) / name[len(source) + 1 :]).as_posix()] = name
    return found


def _is_sent(name: str, rules: list[str]) -> bool:
    """The last rule that fits a path or a folder above it decides, as for docker."""
    paths = [name, *(parent.as_posix() for parent in Path(name).parents if parent.as_posix() != ".")]
    sent = True
    for rule in rules:
        pattern = rule.removeprefix("!").removeprefix("**/")
        anywhere = "**/" in rule
        if any(
            fnmatch.fnmatchcase(Path(path).name if anywhere else path, pattern)
            and (anywhere or path.count("/") == pattern.count("/"))
            for path in paths
        ):
            sent = rule.startswith("!")
    return sent
