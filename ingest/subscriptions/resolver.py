"""Name lookups in threads of their own, since a resolver may hang and a thread cannot be stopped.

Whoever waits for a lookup brings a limit; the thread is left alone when it passes and is a
daemon, so it keeps no process from ending. One name has one lookup under way: those who ask
meanwhile share it. So a name that hangs costs one thread, and it takes LOOKUPS_MAX such names
before another name is refused; numeric addresses never come here.

An answer is given to those who wait and then forgotten: there is no cache that could answer
differently at check and at dial.

Source: requirement rows LOAD-24, ZMTP-11.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Final

from ingest.subscriptions.addresses import IpAddress, ip_of

LOOKUPS_MAX: Final = 64
ANSWERS_MAX: Final = 16  # addresses of one name that are looked at

Lookup = Callable[[str], list[str]]


class LookupFailed(Exception):
    """The name has no address, or the resolver says so."""


class ResolverBusy(Exception):
    """LOOKUPS_MAX lookups are out; try later."""


def system_lookup(host: str) -> list[str]:
    """Addresses of a name as the system's resolver gives them; blocks."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class Resolver:
    """Resolves names for all subscriptions of a process. `lookup` blocks and may raise OSError."""

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup
        self._under_way: dict[str, asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str) -> list[IpAddress]:
        """Addresses of `host`, at least one, in the resolver's order, each once.

        Cancel it at will. Raises LookupFailed and ResolverBusy.
        """
        answer = self._under_way.get(host)
        if answer is None:
            answer = self._begin(host)
        try:
            texts = await asyncio.shield(answer)
        except (OSError, UnicodeError) as problem:
            raise LookupFailed(str(problem)) from None
        found = [ip for ip in (ip_of(text) for text in texts[:ANSWERS_MAX]) if ip is not None]
        if not found:
            raise LookupFailed("no address")
        return list(dict.fromkeys(found))

    def _begin(self, host: str) -> asyncio.Future[list[str]]:
        if len(self._under_way) >= LOOKUPS_MAX:
            raise ResolverBusy
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()
        answer.add_done_callback(_seen)
        self._under_way[host] = answer

        def settle(texts: list[str] | None, problem: Exception | None) -> None:
            self._under_way.pop(host, None)
            if answer.done():
                return
            if texts is not None:
                answer.set_result(texts)
            else:
                answer.set_exception(problem or OSError("no answer"))

        def run() -> None:
            texts, problem = None, None
            try:
                texts = self._lookup(host)
            except Exception as raised:  # handed to whoever waits
                problem = raised if isinstance(raised, OSError | UnicodeError) else OSError(repr(raised))
            try:
                loop.call_soon_threadsafe(settle, texts, problem)
            except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
                pass

        threading.Thread(target=run, name="picklog-lookup", daemon=True).start()
        return answer


def _seen(answer: asyncio.Future[list[str]]) -> None:
    """Nobody may wait any more; a failure is then no one's, and no reason for a complaint."""
    if not answer.cancelled():
        answer.exception()
