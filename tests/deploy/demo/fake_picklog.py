#!/usr/bin/env python3
"""Stands in for the console script where only the demo's driver is under test.

`serve` reads the demo's configuration, takes workers from the file store by turns, pins them in front
of the frontend and tells whom it pinned; while `dynamo.kv.enabled` is true, chats with a system prompt go
where the first of them went. `replay` answers canned documents. PICKLOG_FAKE may say `lie` (the headers
name another worker than the pins), `silent` (no headers), `dies` (ends at its start), `differs` (verify
finds a difference), `strays` (conversations do not stay) or `deaf` (no change is taken up).
"""

from __future__ import annotations

import http.server
import itertools
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

import yaml

MODE = os.environ.get("PICKLOG_FAKE", "")


def instances(root: Path, component: str) -> list[str]:
    ids = []
    for path in sorted((root / "v1" / "instances").glob(f"dynamo%2F{component}%2Fgenerate%2F*")):
        ids.append(str(json.loads(path.read_text())["instance_id"]))
    return ids


class Handler(http.server.BaseHTTPRequestHandler):
    config: dict[str, Any]
    config_file: Path
    turns = itertools.count()
    turn_of: dict[str, int] = {}  # noqa: RUF012

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        root = Path(self.config["dynamo"]["discovery"]["file"]["root"])
        models = self.config["backends"][0]["models"]
        kv = (yaml.safe_load(self.config_file.read_text()) if MODE != "deaf" else self.config)["dynamo"]["kv"]
        heard = [{"family": "kv-events", "state": "connected"}] * 2 if kv["enabled"] else []
        answer = {
            "ready": True,
            "data": [{"id": model} for model in models],
            "dynamo": {"kv": kv},
            "subscriptions": heard,
        }
        self._answer(200 if instances(root, "backend") else 503, json.dumps(answer).encode(), {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        root = Path(self.config["dynamo"]["discovery"]["file"]["root"])
        asked = json.loads(body)
        is_paired = asked["model"] == "tiny-chat"
        turn = next(self.turns)
        if asked["messages"][0]["role"] == "system" and MODE != "strays":
            turn = self.turn_of.setdefault(asked["messages"][0]["content"] + asked["model"], turn)
        workers = instances(root, "decode" if is_paired else "backend")
        pin = workers[turn % len(workers)]
        headers = {"x-dynamo-worker-instance-id": pin, "content-type": "application/json"}
        told = {"X-Continuum-Decode-Worker": f"dynamo/{pin}#0"}
        if is_paired:
            prefill = instances(root, "prefill")[turn % 2]
            headers["x-dynamo-prefill-instance-id"] = prefill
            told["X-Continuum-Prefill-Worker"] = f"dynamo/{prefill}#0"
        if MODE == "lie":
            told["X-Continuum-Decode-Worker"] = f"dynamo/{workers[(turn + 1) % len(workers)]}#0"
        url = self.config["backends"][0]["url"] + self.path
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as reply:
            self._answer(reply.status, reply.read(), {} if MODE == "silent" else told)

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def replay(verb: str) -> int:
    if verb == "verify":
        different = 1 if MODE == "differs" else 0
        document = {"picks": 32, "equal": 32 - different, "different": different, "unverifiable": 0}
        print(json.dumps(document))
        return different
    phase = {"winner": {}, "reason": "load_based", "margin": 0.25, "candidates": [{}, {}]}
    print(json.dumps({"phases": {"decode": phase}, "repeated": "equal"}))
    return 0


def main() -> int:
    if sys.argv[1] == "replay":
        return replay(sys.argv[2])
    if MODE == "dies":
        print("config.yaml:3: server.bind_address is not an address")
        return 2
    Path(sys.argv[sys.argv.index("--data") + 1]).mkdir(parents=True)
    Handler.config_file = Path(sys.argv[sys.argv.index("-c") + 1])
    Handler.config = yaml.safe_load(Handler.config_file.read_text())
    host, _, port = Handler.config["server"]["bind_address"].rpartition(":")
    http.server.ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
