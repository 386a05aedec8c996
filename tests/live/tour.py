"""Reads `docs/tour.md` as a script: its commands, what each shall print, and where an output departs.

A fenced block that begins with ```` ```console ```` holds commands, `$ ` before the first line of each and
`> ` before those that continue it. What follows is their output, as a terminal shows it: both streams.
A last line `# exit status N` belongs to a command that does not end with 0.

The page shows one real run. What another run must have differently is compared by its shape alone: ids,
times, durations, sizes, offsets and counts of records. Padding, empty lines, the lines of tables and the
order of rows that begin with the id of a rank do not count at all. A block that begins with
```` ```console numbers ```` depends on the pace of the machine: there any number, verdict and reason is a
shape too. `...` stands for anything within a line, or, alone on a line, for any lines or none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

FENCE = "```"
CONSOLE = f"{FENCE}console"
PACED = "numbers"
ANYTHING = "..."

_STATUS = re.compile(r"# exit status (\d+)")
_TABLE_LINES = re.compile(r"[\s┏━┳┓┡╇┩└─┴┘├┼┤│┃]+")
_ROW = re.compile(r"[\w-]+/<id>#")
_SHAPES = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z|\d{4}-\d\d-\d\d \d\d:\d\d"), "<time>"),
    (re.compile(r"\b(?:\d{10,}|[0-9a-f]{16,})\b"), "<id>"),
    (re.compile(r"\b(?:offsets?|mark|as of|byte)( up to)? (?:0:)?\d+(?: to \d+)?"), "<offset>"),
    (re.compile(r"\b\d+ (?:records|ticks|rows from)|\brecords \d+ to \d+"), "<count>"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:bytes|kB|MB)\b"), "<size>"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:us|ms|s|h|a second)\b"), "<duration>"),
)
_PACED_SHAPES = (
    (re.compile(r", margin \d+\.\d+"), ""),  # there is none where workers take turns
    (re.compile(r"(?<![\w.#/=-])-?\d+(?:\.\d+)?%?(?![\w/])|(?<= )-(?= |$)|<duration>"), "<number>"),
    (re.compile(r"\b(?:fresh|quiet|silent|stalled)\b"), "<verdict>"),
    (re.compile(r"\b(?:load|kv_aware|round_robin_stale)\b"), "<reason>"),
)


class TourUnreadable(ValueError):
    """The page is no script; says at which line, and why."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command: its line in the page, the text for `sh`, and how it shall end."""

    line: int
    command: str
    output: tuple[str, ...]
    exit_status: int
    is_paced: bool


def steps(page: str) -> list[Step]:
    """The commands of a page, in order. Raises TourUnreadable."""
    found: list[Step] = []
    block: list[str] = []
    opened_at, info = 0, ""
    for number, line in enumerate(page.splitlines(), 1):
        if not opened_at and line.startswith(FENCE):
            opened_at, info, block = number, line, []
        elif opened_at and line.strip() == FENCE:
            if info.split()[0] == CONSOLE:
                found += _steps_of(block, opened_at + 1, info.split()[1:])
            opened_at = 0
        elif opened_at:
            block.append(line)
    if opened_at:
        raise TourUnreadable(f"line {opened_at}: the block has no end")
    return found


def departure(step: Step, printed: str, exit_status: int) -> str | None:
    """None where the command did as the page says; else lines for a person, the failed one marked `!`."""
    lines = printed.splitlines()
    missed = _first_missed(_shaped(step.output, step.is_paced), _shaped(lines, step.is_paced))
    if missed is None and exit_status == step.exit_status:
        return None
    said = [f"docs/tour.md, line {step.line}: $ {step.command}"]
    if exit_status != step.exit_status:
        said.append(f"ends with status {exit_status}, not {step.exit_status}")
    if missed is not None:
        said.append("the page says:")
        said += [f"{'!' if place == missed else ' '} {line}" for place, line in enumerate(step.output)]
        if missed < 0:
            said.append("! (nothing more)")
    said.append("it printed:")
    return "\n".join([*said, *(f"  {line}" for line in lines)])


def _steps_of(block: Sequence[str], first_line: int, words: Sequence[str]) -> list[Step]:
    if words not in ([], [PACED]):
        raise TourUnreadable(
            f"line {first_line - 1}: a console block may say `{PACED}`, not {' '.join(words)!r}"
        )
    found: list[Step] = []
    place = 0
    while place < len(block):
        line = first_line + place
        if not block[place].startswith("$ "):
            raise TourUnreadable(f"line {line}: output without a command before it")
        command = [block[place][2:]]
        place += 1
        while place < len(block) and block[place].startswith("> "):
            command.append(block[place][2:])
            place += 1
        output: list[str] = []
        while place < len(block) and not block[place].startswith("$ "):
            output.append(block[place])
            place += 1
        status = _STATUS.fullmatch(output[-1]) if output else None
        if status:
            output.pop()
        found.append(
            Step(line, "\n".join(command), tuple(output), int(status[1]) if status else 0, bool(words))
        )
    return found


def _shaped(lines: Sequence[str], is_paced: bool) -> list[tuple[int, str]]:
    """Each line that counts with its place, and shapes for what runs have differently."""
    shaped: list[tuple[int, str]] = []
    rows_begin: int | None = None
    for place, line in enumerate(lines):
        text = _TABLE_LINES.sub(" ", line).strip()
        for pattern, shape in (*_SHAPES, *(_PACED_SHAPES if is_paced else ())):
            text = pattern.sub(shape, text)
        if not text:
            continue
        shaped.append((place, text))
        if not _ROW.match(text):
            rows_begin = None
            continue
        rows_begin = len(shaped) - 1 if rows_begin is None else rows_begin
        shaped[rows_begin:] = sorted(shaped[rows_begin:], key=lambda row: row[1])
    return shaped


def _first_missed(expected: Sequence[tuple[int, str]], printed: Sequence[tuple[int, str]]) -> int | None:
    """Place of the first expected line that nothing printed fits; -1 where too much was printed."""
    reached = {0}  # counts of printed lines that the expected ones so far may stand for
    for place, line in expected:
        if line == ANYTHING:
            reached = set(range(min(reached), len(printed) + 1))
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in line.split(ANYTHING)))
        reached = {at + 1 for at in reached if at < len(printed) and pattern.fullmatch(printed[at][1])}
        if not reached:
            return place
    return None if len(printed) in reached else -1
