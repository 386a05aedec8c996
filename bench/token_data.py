"""What `nvext.token_data` spares a frontend: its CPU and the time to the first token, with long prompts.

    python -m bench.token_data [--release R] [--requests N] [--json]

The same chat goes to a direct-mode `dynamo.frontend` before one mock worker without simulated time, once as
text and once with the rendered prompt's token ids beside it, in turns. Each prompt is new in its first words,
so that no cache of the frontend or the worker helps. Both must be answered with the same number of prompt
tokens, and a prompt that was sent as text must be found cached when it comes again as tokens.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tokenizers import Tokenizer

from bench import floor
from deploy.demo import fleet as demo_fleet
from deploy.demo.fleet import Fleet
from deploy.demo.fleet_plan import DEFAULT_RELEASE, PAIRED_MODEL, TINY_MODEL, aggregated_plan

REQUESTS: Final = 60
WORDS: Final = (100, 700, 2600)  # about 350, 2,500 and 9,000 tokens
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def chat_of(draw: random.Random, words: int) -> tuple[dict[str, Any], str]:
    """A body without tokens, and what the tiny model's template makes of it."""
    text = " ".join("".join(draw.choices("abcdefghilmnoprstu", k=draw.randint(2, 8))) for _ in range(words))
    body = {"model": PAIRED_MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    return body, f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


class Frontend:
    """One kept connection to the frontend under test."""

    def __init__(self, url: str, pid: int) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        self._pid = pid

    def ask(self, body: bytes, worker: str) -> tuple[float, float, dict[str, Any]]:
        """(seconds, the frontend's CPU seconds, usage). Raises SystemExit for anything but 200."""
        before, began = cpu_s(self._pid), time.perf_counter()
        headers = {"content-type": "application/json", "x-dynamo-worker-instance-id": worker}
        self._connection.request("POST", "/v1/chat/completions", body, headers)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise SystemExit(f"status {answer.status}: {data[:300]!r}")
        usage: dict[str, Any] = json.loads(data)["usage"]
        return time.perf_counter() - began, cpu_s(self._pid) - before, usage


def measure(frontend: Frontend, worker: str, words: int, requests: int) -> dict[str, Any]:
    """One prompt length. Times in milliseconds; CPU is the mean, since its clock is coarse."""
    tokenizer = Tokenizer.from_file(str(TINY_MODEL / "tokenizer.json"))
    draw = random.Random(words)
    seconds: dict[str, list[float]] = {"text": [], "tokens": []}
    cpu = {"text": 0.0, "tokens": 0.0}
    tokens = 0
    for number in range(requests + 2):
        for kind in ("text", "tokens"):
            body, rendered = chat_of(draw, words)
            ids = tokenizer.encode(rendered, add_special_tokens=False).ids
            if kind == "tokens":
                body["nvext"] = {"token_data": ids}
            taken, used, usage = frontend.ask(json.dumps(body).encode(), worker)
            if usage["prompt_tokens"] != len(ids):
                raise SystemExit(f"{kind}: {usage['prompt_tokens']} prompt tokens, not {len(ids)}")
            if number >= 2:  # connections and memory are warm
                seconds[kind].append(taken)
                cpu[kind] += used
                tokens += len(ids)
    return {
        "tokens": round(tokens / (2 * requests)),
        **{f"{kind}_p50_ms": statistics.median(found) * 1000 for kind, found in seconds.items()},
        **{f"{kind}_cpu_ms": used / requests * 1000 for kind, used in cpu.items()},
        "found_again": found_again(frontend, worker, draw, words, tokenizer),
    }


def found_again(
    frontend: Frontend, worker: str, draw: random.Random, words: int, tokenizer: Tokenizer
) -> float | None:
    """Cached share of a prompt that comes as tokens after it came as text; None where usage does not tell."""
    body, rendered = chat_of(draw, words)
    frontend.ask(json.dumps(body).encode(), worker)
    ids = tokenizer.encode(rendered, add_special_tokens=False).ids
    usage = frontend.ask(json.dumps(body | {"nvext": {"token_data": ids}}).encode(), worker)[2]
    details = usage.get("prompt_tokens_details") or {}
    found = details.get("cached_tokens")
    return None if found is None else found / len(ids)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--release", default=DEFAULT_RELEASE)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    demo_fleet.stay_on_loopback(given.release)
    plan = aggregated_plan(1, speedup=0.0, blocks=16_384)
    with tempfile.TemporaryDirectory() as place, Fleet(plan, Path(place), release=given.release) as fleet:
        pid = fleet.pid("frontend-1")
        worker = fleet.workers()[0]["instance_id"]
        rows = [
            measure(Frontend(fleet.frontend_url(), pid or 0), worker, words, given.requests)
            for words in WORDS
        ]
    if given.json:
        print(json.dumps({"release": given.release, "rows": rows}))
        return 0
    print(f"Dynamo {given.release}, direct frontend, one token of answer, {given.requests} chats a row")
    columns = ("p50 as text", "p50 as tokens", "CPU as text", "CPU as tokens", "found again")
    print(f"{'prompt':>12}" + "".join(f"{column:>15}" for column in columns))
    for row in rows:
        again = "not told" if row["found_again"] is None else f"{row['found_again']:.1%}"
        print(
            f"{row['tokens']:>8} tok{row['text_p50_ms']:>12.1f} ms{row['tokens_p50_ms']:>12.1f} ms"
            f"{row['text_cpu_ms']:>12.1f} ms{row['tokens_cpu_ms']:>12.1f} ms{again:>15}"
        )
    print(floor.line())
    return 0


if __name__ == "__main__":
    sys.exit(main())
