"""What is wrong with a configuration, said so that a person can put it right.

A `Finding` names one key, what is the matter and what to do, and where the key was written. Findings
never hold a value of the configuration that could be a secret (CFG-07, CFG-18): messages are made of key
names, limits and names of backends or namespaces, never of URLs, passwords or file contents.

Exceptions of the configuration: `ConfigError` (bad content, exit status 2), `ConfigUnreadable` (the named
file cannot be reached, exit status 3).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

KeyPath = tuple[str | int, ...]

FINDINGS_SHOWN_MAX = 50
"""Findings of one severity that are kept; a file of a thousand wrong keys is told by its first fifty."""


KEY_CHARACTERS_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key was written. source: a file path or the name of an environment variable; line from 1."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, warning or suggestion. keys: path from the root; hint: what to do, may be empty."""

    keys: KeyPath
    message: str
    hint: str = ""
    place: Place | None = None

    @property
    def path(self) -> str:
        """The key as people write it: `backends[0].url`; empty for the whole file."""
        return key_text(self.keys)

    @property
    def line(self) -> int | None:
        return None if self.place is None else self.place.line

    def __str__(self) -> str:
        where = [] if self.place is None else [str(self.place)]
        key = [self.path] if self.keys else []
        text = ": ".join([*where, *key, self.message])
        return f"{text}; {self.hint}" if self.hint else text

    def to_json(self) -> dict[str, object]:
        source = None if self.place is None else self.place.source
        return {
            "path": self.path,
            "message": self.message,
            "hint": self.hint,
            "source": source,
            "line": self.line,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All findings of one configuration: errors refuse it, warnings and suggestions are said."""

    errors: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    suggestions: tuple[Finding, ...] = ()

    @property
    def is_valid(self) -> bool:
        return not self.errors


class ConfigError(Exception):
    """A configuration that is refused. findings: at least one, in the order of the file."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings: tuple[Finding, ...] = tuple(findings)[:FINDINGS_SHOWN_MAX]
        super().__init__("\n".join(str(finding) for finding in self.findings))


class ConfigUnreadable(ConfigError):
    """The configuration file (or a file that it names) is missing or cannot be read."""


@dataclass(slots=True)
class Places:
    """Where each key of a merged configuration came from; a key without a place has its parent's."""

    known: dict[KeyPath, Place] = field(default_factory=dict)

    def put(self, keys: KeyPath, place: Place) -> None:
        self.known[keys] = place

    def forget_below(self, keys: KeyPath) -> None:
        """Drop the places under a key that a stronger source has replaced."""
        self.known = {path: place for path, place in self.known.items() if path[: len(keys)] != keys}

    def of(self, keys: KeyPath) -> Place | None:
        for length in range(len(keys), 0, -1):
            place = self.known.get(keys[:length])
            if place is not None:
                return place
        return self.known.get(())

    def located(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """The findings with their places, in the order of the file where lines are known."""
        placed = [
            found if found.place is not None else replace(found, place=self.of(found.keys))
            for found in findings
        ]
        placed.sort(key=lambda found: (found.line is None, found.line or 0))
        return tuple(placed[:FINDINGS_SHOWN_MAX])


def key_text(keys: KeyPath) -> str:
    """`("backends", 0, "url")` as `backends[0].url`."""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else ("." if text else "") + _shown(key)
    return text


def _shown(key: str) -> str:
    """A key fit for one line of a terminal, whatever the file calls it."""
    return key if key.isprintable() and len(key) <= KEY_CHARACTERS_SHOWN else repr(key[:KEY_CHARACTERS_SHOWN])


def value_at(data: object, keys: KeyPath) -> object:
    """The value at a path of plain data, or None where the path leads nowhere."""
    for key in keys:
        if isinstance(data, Mapping) and isinstance(key, str):
            data = data.get(key)
        elif isinstance(data, list | tuple) and isinstance(key, int) and 0 <= key < len(data):
            data = data[key]
        else:
            return None
    return data
