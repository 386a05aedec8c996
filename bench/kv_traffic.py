"""Chats whose prefixes come back, the same for every router that is compared, and clients that send them.

Three kinds are mixed, as assistants, document tools and one-off questions do:

- conversations: one of a few long system prompts (some far more wanted than others), then turns that
  each repeat all before them;
- groups: several questions about one long document, none knows of the others;
- singles: a prompt that nothing else shares.

Every request is written before anything is sent (seeded; the assistant's turns are canned, so that no
prompt depends on an answer), and every client has its own list with a few sessions open at a time. So each
router sees the same prompts in the same order from each client; only how clients interleave differs.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from deploy.demo.fleet_plan import PAIRED_MODEL

ANSWER_S_MAX: Final = 60.0
SYSTEM_PROMPTS: Final = 6
SYSTEM_WORDS: Final = 120
DOCUMENT_WORDS: Final = 200
SINGLE_WORDS: Final = 100
TURN_WORDS: Final = (15, 45)
REPLY_WORDS: Final = (10, 30)
TURNS: Final = (3, 8)
QUESTIONS: Final = (3, 6)
OPEN_SESSIONS: Final = 2
TOKENS_MAX: Final = 24
PAUSE_S: Final = 0.3
KINDS: Final = ("conversation",) * 6 + ("group",) * 2 + ("single",) * 2

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Request:
    """One chat to send. kind: conversation, group or single. turn: 0 for what opens a session.

    pause_s: what its client waits before it, after the answer before.
    """

    kind: str
    turn: int
    messages: tuple[Message, ...]
    pause_s: float = 0.0

    def body(self) -> bytes:
        return json.dumps(
            {
                "model": PAIRED_MODEL,
                "messages": self.messages,
                "max_tokens": TOKENS_MAX,
                "stream": True,
                "stream_options": {"include_usage": True},
                "nvext": {"extra_fields": ["worker_id"]},
            }
        ).encode()


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. first_byte_s: to the first token. worker: decimal id, as the frontend says."""

    request: Request
    first_byte_s: float
    seconds: float
    prompt_tokens: int
    cached_tokens: int
    worker: str


@dataclass(frozen=True, slots=True)
class Load:
    """All replies of one closed loop. failed: requests that were not answered whole."""

    replies: tuple[Reply, ...]
    failed: int
    seconds: float


def write_traffic(seed: int, clients: int, requests: int, pause_s: float = PAUSE_S) -> list[list[Request]]:
    """One list for each client, `requests` in all or a few more. pause_s: mean wait between two requests."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghilmnoprstu", k=draw.randint(2, 8))) for _ in range(400)]
    systems = [_text(draw, words, SYSTEM_WORDS) for _ in range(SYSTEM_PROMPTS)]
    lists = []
    for _ in range(clients):
        wanted = -(-requests // clients)
        sent: list[Request] = []
        opened: list[list[Request]] = []
        while len(sent) < wanted:
            while len(opened) < OPEN_SESSIONS:
                opened.append(_session(draw, words, systems))
            session = draw.choice(opened)
            sent.append(replace(session.pop(0), pause_s=draw.uniform(0, 2 * pause_s)))
            if not session:
                opened.remove(session)
        lists.append(sent)
    return lists


def _session(draw: random.Random, words: Sequence[str], systems: Sequence[str]) -> list[Request]:
    kind = draw.choice(KINDS)
    if kind == "single":
        return [Request(kind, 0, (_said("user", _text(draw, words, SINGLE_WORDS)),))]
    if kind == "group":
        document = _said("system", _text(draw, words, DOCUMENT_WORDS))
        return [
            Request(kind, turn, (document, _said("user", _text(draw, words, draw.randint(*TURN_WORDS)))))
            for turn in range(draw.randint(*QUESTIONS))
        ]
    # the first system prompt is wanted as often as the second and third together, and so on
    system = draw.choices(systems, [1 / (place + 1) for place in range(len(systems))])[0]
    said = [_said("system", system)]
    session = []
    for turn in range(draw.randint(*TURNS)):
        said.append(_said("user", _text(draw, words, draw.randint(*TURN_WORDS))))
        session.append(Request(kind, turn, tuple(said)))
        said.append(_said("assistant", _text(draw, words, draw.randint(*REPLY_WORDS))))
    return session


def _said(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def _text(draw: random.Random, words: Sequence[str], count: int) -> str:
    return " ".join(draw.choices(words, k=count))


def run_clients(url: str, lists: Sequence[Sequence[Request]]) -> Load:
    """Send each list from a thread of its own, one request after another; returns when all have ended."""
    replies: list[Reply] = []
    failed: list[str] = []
    threads = [threading.Thread(target=_client, args=(url, sent, replies, failed)) for sent in lists]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Load(tuple(replies), len(failed), time.monotonic() - began)


def _client(url: str, sent: Sequence[Request], replies: list[Reply], failed: list[str]) -> None:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=ANSWER_S_MAX)
    for request in sent:
        time.sleep(request.pause_s)
        try:
            replies.append(_ask(connection, request))
        except (OSError, ValueError, KeyError, http.client.HTTPException) as problem:
            failed.append(f"{type(problem).__name__}: {problem}")
            connection.close()  # the next request opens it again
    connection.close()


def _ask(connection: http.client.HTTPConnection, request: Request) -> Reply:
    """Raises OSError, HTTPException, ValueError or KeyError for anything but a whole answer with usage."""
    began = time.monotonic()
    headers = {"content-type": "application/json", "x-backend": "bench"}
    connection.request("POST", "/v1/chat/completions", request.body(), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise ValueError(f"status {answer.status}: {answer.read(500)!r}")
    first_byte_s = 0.0
    documents: list[dict[str, Any]] = []
    for line in answer:
        if line.startswith(b"data: {"):
            first_byte_s = first_byte_s or time.monotonic() - began
            # of the chunks between only their number would be learned
            if not documents or b'"usage":{' in line:
                documents.append(json.loads(line[len(b"data: ") :]))
    usage = documents[-1]["usage"]
    return Reply(
        request,
        first_byte_s,
        time.monotonic() - began,
        usage["prompt_tokens"],
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        str(documents[0]["nvext"]["worker_id"]["decode_worker_id"]),
    )
