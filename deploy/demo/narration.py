"""What the demo says to a person: a line for a pin, for a reason, for a turn, and what to try next."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.demo.chats import Pin
from deploy.demo.conversation import Turn, cached_share

SHOWN_CHARACTERS_MAX = 48


def why_words(document: Mapping[str, Any]) -> str:
    """One line for an explained pick: per phase its reason, and by how much the winner won."""
    words = []
    for phase in ("prefill", "decode"):
        found = (document.get("phases") or {}).get(phase)
        if not found or found.get("winner") is None:
            continue
        count = len(found.get("candidates") or [])
        margin = found.get("margin")
        by = f", ahead by {margin:.4g}" if isinstance(margin, int | float) and margin else ""
        words.append(f"{phase} {found.get('reason')} among {count}{by}")
    repeated = document.get("repeated")
    return "; ".join(words) + (f"; repeated from the log: {repeated}" if repeated else "")


def turn_words(turn: Turn, names: Mapping[str, str]) -> str:
    """One line for a turn: its tokens, those found cached, who computed it, and what the pick knew."""
    answer, pin = turn.answer, turn.prefiller
    cached = "-" if answer.cached_tokens is None else answer.cached_tokens
    worker = names.get(pin.instance_id, "a worker of nobody") if pin is not None else "nobody"
    return (
        f"{turn.chat.identifier:<22} {answer.prompt_tokens or 0:>4} tokens, {cached:>3} cached  "
        f"{worker:<9}  {prefix_words(turn.explained)}"
    )


def prefix_words(document: Mapping[str, Any]) -> str:
    """Why the worker that computes the prompt was taken: blocks it holds, and the terms of its cost."""
    phases = document.get("phases") or {}
    found = phases.get("prefill") or {}
    if not found.get("winner"):
        found = phases.get("decode") or {}
    winner, other = found.get("winner") or {}, found.get("runner_up") or {}
    prefix = winner.get("prefix")
    if not prefix:
        return str(found.get("reason") or "not explained")
    held = winner["overlap_blocks"]
    terms = f"{prefix['raw_blocks']:.1f} to compute - {prefix['credit']:.0f} for {held} held"
    if prefix.get("decode_blocks") is not None:
        terms = f"max(0, {terms}) + {prefix['decode_blocks']} new"
    words = f"{found.get('reason')}: {terms} = {winner['cost']:.1f}"
    if isinstance(other.get("cost"), int | float):
        words += f", the next {other['cost']:.1f}"
    return words


def talk_words(turns: Sequence[Turn]) -> str:
    """How a conversation went: by how many workers it was computed, and what they found cached."""
    workers = len({turn.prefiller for turn in turns})
    words = "one worker computed all turns" if workers == 1 else f"{workers} workers computed the turns"
    share = cached_share(turns)
    if any(turn.verdict.prefill is not None for turn in turns):
        words += " (cached: as the decode worker says, which computes nothing)"
    return words if share is None else f"{words}, and found {share:.0%} of the later ones cached"


def pin_words(pin: Pin, names: Mapping[str, str]) -> str:
    rank = "" if pin.rank is None else f"#{pin.rank}"
    return f"{names.get(pin.instance_id, 'a worker of nobody')} ({pin.namespace}/{pin.instance_id}{rank})"


def shortened(text: str, characters_max: int = SHOWN_CHARACTERS_MAX) -> str:
    """Quoted, on one line, at most `characters_max` characters of it."""
    line = " ".join(text.split())
    return json.dumps(
        line if len(line) <= characters_max else line[: characters_max - 1] + "…", ensure_ascii=False
    )


def what_next(router: str, picklog: str, data: str, model: str, victim: Mapping[str, Any]) -> str:
    """The lines that stand below the chats; `victim` is the row of a worker that may be killed."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]})
    return f"""
try next, in another terminal:
  a chat; the answer's headers name the workers
    curl -si {router}/v1/chat/completions -H 'x-backend: 1' \\
      -H 'content-type: application/json' -d '{body}'
  kill {victim["name"]} and see it leave the fleet within ten seconds; until then one chat may get a 502
    kill -9 {victim["pid"]}; sleep 10; curl -s {router}/admin/dynamo/workers
  why a chat went where it went: every candidate, every cost
    {picklog} replay explain demo-chat-1 --log {data}
  repeat every pick from the log and compare, byte for byte
    {picklog} replay verify --log {data}

Ctrl-C ends all of it; the log stays."""
