"""The repository's own sources, parsed: what the tidy tests look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PRODUCT_FOLDERS = ("app", "ingest", "projections", "replay", "router")
PYTHON_FOLDERS = (*PRODUCT_FOLDERS, "bench", "deploy", "tests")
OUR_NAMES = tuple(f"{folder}." for folder in PRODUCT_FOLDERS)
PURE = (
    "projections/",
    "router/picker/",
    "router/pinning.py",
    "ingest/log/appender.py",
    "ingest/log/claim.py",
    "app/tail.py",
)
"""Folders and modules under the purity rules: the fold, the pick, the step machines."""

TEXT_SUFFIXES = {".cfg", ".md", ".py", ".sh", ".toml", ".yaml", ".yml", ".ini"}
NOT_OURS = {".git", ".venv", ".venvs", ".run", "__pycache__", "node_modules", "build", "dist"}


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file: `path` relative to the repository, with slashes."""

    path: str
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Dotted, `__init__` left out: `projections.load.store`."""
        parts = self.path.removesuffix(".py").split("/")
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")

    @property
    def is_pure(self) -> bool:
        return self.path.startswith(PURE)

    @property
    def lines(self) -> int:
        return self.text.count("\n")


def modules(*folders: str) -> tuple[Module, ...]:
    """All Python files below the folders, in path order."""
    return tuple(module for folder in folders for module in _modules_below(folder))


@cache
def _modules_below(folder: str) -> tuple[Module, ...]:
    found = []
    for path in sorted((REPOSITORY / folder).rglob("*.py")):
        relative = path.relative_to(REPOSITORY)
        if NOT_OURS.isdisjoint(relative.parts):
            text = path.read_text()
            found.append(Module(relative.as_posix(), text, ast.parse(text, relative.as_posix())))
    return tuple(found)


def text_files() -> Iterator[tuple[str, str]]:
    """Path and text of every file of ours that people write: code, configuration, prose."""
    for path in sorted(REPOSITORY.rglob("*")):
        relative = path.relative_to(REPOSITORY)
        if not NOT_OURS.isdisjoint(relative.parts) or not path.is_file():
            continue
        if path.suffix in TEXT_SUFFIXES or path.name in {"Makefile", "run", "Dockerfile"}:
            yield relative.as_posix(), path.read_text(errors="replace")


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported_names(module: Module) -> set[str]:
    """Every dotted name that the module may import: `a.b` and `a.b.c` for `from a.b import c`.

    A string that is the name of a module of ours counts: parts of an extra are loaded by name.
    """
    names = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} if node.value.startswith(OUR_NAMES) else set()
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names
