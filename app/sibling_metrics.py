"""The figures of all processes of a group, in the answer of whichever of them was asked.

Routers that share a port answer a scrape in turns, so each would tell another story. The one that is
asked asks its siblings on their own sockets and answers for all: every series carries `process`, the
name of the one that it is of. A sibling that does not answer is left out and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import structlog

from app.doors import SOCKET_FOLDER

PATIENCE_S = 2.0
BODY_BYTES_MAX = 16 << 20  # of one sibling
LABEL = "process"

log = structlog.get_logger("picklog")


async def group_metrics(own_name: str, own: bytes, data: Path) -> bytes:
    """The exposition of all processes whose sockets lie under `data`. own: this one's."""
    folder = data / SOCKET_FOLDER
    others = sorted(path for path in folder.glob("*.sock") if path.stem != own_name)
    answers = await asyncio.gather(*(_asked(path) for path in others))
    found = {own_name: own}
    for path, answer in zip(others, answers, strict=True):
        if answer is not None:
            found[path.stem] = answer
    missed = len(others) + 1 - len(found)
    gauge = b"# HELP picklog_siblings_silent Processes of this group that did not tell their figures.\n"
    gauge += b"# TYPE picklog_siblings_silent gauge\npicklog_siblings_silent %d\n" % missed
    return merged(found) + gauge


def merged(expositions: Mapping[str, bytes]) -> bytes:
    """Expositions as one, by process name: families once, each sample with its process."""
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    for name, text in expositions.items():
        label = b'%s="%s"' % (LABEL.encode(), name.encode())
        family = b""
        for line in text.splitlines():
            if line.startswith((b"# HELP ", b"# TYPE ")):
                family = line.split(b" ", 3)[2]
                head = heads.setdefault(family, [])
                if not any(one.startswith(line[:7]) for one in head):
                    head.append(line)
            elif line and not line.startswith(b"#"):
                samples.setdefault(family, []).append(_labelled(line, label))
    lines = [line for family, head in heads.items() for line in (*head, *samples.get(family, ()))]
    return b"\n".join((*lines, b""))


def _labelled(line: bytes, label: bytes) -> bytes:
    """A sample with one label more, in front of its own."""
    space, brace = line.find(b" "), line.find(b"{")
    if brace < 0 or space < brace:
        return b"%s{%s}%s" % (line[:space], label, line[space:])
    comma = b"" if line[brace + 1 : brace + 2] == b"}" else b","
    return line[: brace + 1] + label + comma + line[brace + 1 :]


async def _asked(path: Path) -> bytes | None:
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path)), timeout=timeout) as session,
            session.get("http://sibling/metrics") as answer,
        ):
            if answer.status != 200:
                return None
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > BODY_BYTES_MAX:
                    log.warning("the figures of a process are too long", process=path.stem)
                    return None
            return bytes(body)
    except (aiohttp.ClientError, OSError, TimeoutError) as problem:
        log.warning(
            "a process of this group does not tell its figures",
            process=path.stem,
            cause=str(problem) or type(problem).__name__,
        )
        return None
