"""Chats sent through the router, and whether each went where the router's pick said.

Three parties must tell the same story: the router's answer headers (`X-Continuum-Decode-Worker`,
`X-Continuum-Prefill-Worker`; told because the request carries `x-backend`), the frontend's answer
(`nvext.worker_id`; told because the body asks for it), and the processes of the fleet.

Standard library only.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ANSWER_BYTES_MAX = 4 * 1024 * 1024
CHAT_S_MAX = 60.0
DECODE_HEADER = "x-continuum-decode-worker"
PREFILL_HEADER = "x-continuum-prefill-worker"


@dataclass(frozen=True, slots=True)
class Chat:
    """One chat to send. `identifier` becomes its x-request-id and finds its pick later.

    text: what the user says now. before: the messages before that, oldest first.
    """

    identifier: str
    model: str
    text: str
    streamed: bool
    tokens_max: int = 16
    before: tuple[Mapping[str, str], ...] = ()

    def body(self) -> bytes:
        document = {
            "model": self.model,
            "messages": [*self.before, {"role": "user", "content": self.text}],
            "max_tokens": self.tokens_max,
            "stream": self.streamed,
            "nvext": {"extra_fields": ["worker_id"]},
        }
        if self.streamed:
            document["stream_options"] = {"include_usage": True}
        return json.dumps(document).encode()


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `headers` have lower-case names; `served_by` is the frontend's `nvext.worker_id`.

    prompt_tokens, cached_tokens: of the answer's usage; None where it does not say.
    """

    status: int
    headers: Mapping[str, str]
    text: str
    served_by: Mapping[str, int]
    problem: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Pin:
    """`<namespace>/<decimal id>[#rank]`, as the answer's headers say it."""

    namespace: str
    instance_id: str
    rank: int | None

    @classmethod
    def parse(cls, text: str) -> Pin | None:
        """None for anything that does not read like a pin."""
        worker, _, rank = text.strip().partition("#")
        namespace, slash, instance_id = worker.rpartition("/")
        if not slash or not namespace or not instance_id.isdecimal() or (rank and not rank.isdecimal()):
            return None
        return cls(namespace, instance_id, int(rank) if rank else None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a chat was pinned, and what is wrong with that; `complaint` is empty when all is well."""

    decode: Pin | None
    prefill: Pin | None
    complaint: str


def send(router: str, chat: Chat) -> Answer:
    """Send one chat and read its whole answer. Never raises for what the router does."""
    request = urllib.request.Request(f"{router}/v1/chat/completions", chat.body(), method="POST")
    request.add_header("content-type", "application/json")
    request.add_header("x-request-id", chat.identifier)
    request.add_header("x-backend", "show")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=CHAT_S_MAX) as reply:
            headers = {name.lower(): value for name, value in reply.headers.items()}
            body = reply.read(ANSWER_BYTES_MAX)
            documents = list(sse_documents(body)) if chat.streamed else [json.loads(body)]
            told = (text_of(documents), served_by_of(documents))
            return Answer(reply.status, headers, *told, "", *tokens_of(documents))
    except urllib.error.HTTPError as refusal:
        said = refusal.read(2000).decode(errors="replace").strip()
        return Answer(refusal.code, dict(refusal.headers), "", {}, f"status {refusal.code}: {said}")
    except (OSError, ValueError, http.client.HTTPException) as problem:
        return Answer(0, {}, "", {}, f"{type(problem).__name__}: {problem}")


def sse_documents(body: bytes) -> Iterable[dict[str, Any]]:
    """The JSON documents of a server-sent-events answer, without the closing [DONE]."""
    for line in body.decode().splitlines():
        if line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            if data != "[DONE]":
                yield json.loads(data)


def text_of(documents: Iterable[Mapping[str, Any]]) -> str:
    """The answer's words, from a buffered body or from the chunks of a stream."""
    parts = []
    for document in documents:
        for choice in document.get("choices", []):
            said = choice.get("message") or choice.get("delta") or {}
            parts.append(said.get("content") or "")
    return "".join(parts)


def served_by_of(documents: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The last `nvext.worker_id` in the answer; empty when the frontend told none."""
    found: dict[str, int] = {}
    for document in documents:
        told = (document.get("nvext") or {}).get("worker_id")
        if isinstance(told, dict):
            found = told
    return found


def tokens_of(documents: Iterable[Mapping[str, Any]]) -> tuple[int | None, int | None]:
    """(prompt tokens, those of them that were cached) as the last usage tells them."""
    found: tuple[int | None, int | None] = (None, None)
    for document in documents:
        usage = document.get("usage")
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details") or {}
            found = (usage.get("prompt_tokens"), details.get("cached_tokens"))
    return found


def judge(answer: Answer, *, is_paired: bool) -> Verdict:
    """Compare the router's pick with what the frontend says it used.

    is_paired: the model has a prefill and a decode pool, so both must be pinned.
    """
    decode = Pin.parse(answer.headers.get(DECODE_HEADER, ""))
    prefill = Pin.parse(answer.headers.get(PREFILL_HEADER, ""))
    return Verdict(decode, prefill, _complaint(answer, decode, prefill, is_paired))


def _complaint(answer: Answer, decode: Pin | None, prefill: Pin | None, is_paired: bool) -> str:
    if answer.problem or answer.status != 200:
        return answer.problem or f"status {answer.status}"
    if not answer.text:
        return "the answer has no words"
    if decode is None:
        return "the router pinned no worker"
    if is_paired and prefill is None:
        return "the router pinned no prefill worker"
    if not is_paired and prefill is not None:
        return "the router pinned a prefill worker beside an aggregated one"
    served = answer.served_by
    first = prefill if prefill is not None else decode
    for role, pin in (("decode", decode), ("prefill", first)):
        told = served.get(f"{role}_worker_id")
        if str(told) != pin.instance_id:
            return f"the frontend says {role} was {told}, the pick was {pin.instance_id}"
        rank = served.get(f"{role}_dp_rank")
        if rank is not None and pin.rank is not None and rank != pin.rank:
            return f"the frontend says {role} rank was {rank}, the pick was {pin.rank}"
    return ""


def demo_chats(models: Iterable[str]) -> list[Chat]:
    """Two buffered and two streamed chats for each model, with prompts of several lengths."""
    words = (
        "Say hello.",
        "Which worker are you? Answer in one short sentence.",
        "Tell me why a router that writes down every pick can repeat it later. " * 8,
        "Count the words of this text. " * 40,
    )
    chats: list[Chat] = []
    for text_index, text in enumerate(words):
        for model in models:
            identifier = f"demo-chat-{len(chats) + 1}"
            chats.append(Chat(identifier, model, text, streamed=text_index % 2 == 1))
    return chats
