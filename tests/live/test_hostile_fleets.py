"""A fleet that means harm, against a real router process: its store, its cards, its publishers."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.live.hostile_peers import MODEL, Hostile, hostile
from tests.live.router_process import picklog, until

PLAIN = b'{"model":"tiny-chat","messages":[]}'
EVIL = 'e\u202e<script>\x00\x1b[31m\r\n2026 info fake: line\n# HELP evil\nevil 1\n"},evil{a="b\\'
NUMBERS: list[Any] = [2**63, 2**200, -1, 0, 1.5, "many", True, None, [], {}]
VALUES = [
    b"",
    b"null",
    b"[]",
    b"{",
    b"\xff",
    b'{"a":' * 100_000,
    b'{"instance_id":1e400}',
    b'{"\\ud800":1}',
    b"{" * (15 << 20),
]
ADDRESSES = [
    "tcp://169.254.169.254:80",
    "tcp://[::ffff:169.254.169.254]:80",
    "tcp://10.0.0.1:80",
    "tcp://user@127.0.0.1:1",
    "tcp://127.0.0.1:99999",
    "tcp://127.0.0.1:-1",
    "tcp://a\r\nb:1",
    "tcp://" + "a" * 300 + ":1",
    "tcp://*:1",
    "ipc:///tmp/x",
    "",
]


def odd_files(peers: Hostile) -> None:
    instances = peers.store.root / "v1" / "instances"
    raw = os.fsencode(instances)
    for name in (
        b"dynamo%2Fbackend%2Fgenerate%2F20\n",
        b"%zz",
        b"%",
        b"\xff\xfe",
        b"a" * 250,
        b"..%2F..%2Fetc",
    ):
        Path(os.fsdecode(os.path.join(raw, name))).write_bytes(b"{}")
    places = [instances / f"dynamo%2Fbackend%2Fgenerate%2F{number:x}" for number in range(0x40, 0x46)]
    os.mkfifo(places[0])
    places[1].mkdir()
    places[2].symlink_to("/dev/zero")
    places[3].write_bytes(b"{}")
    os.truncate(places[3], 100 << 30)
    places[4].write_bytes(b"{}")
    places[4].chmod(0)
    with socket.socket(socket.AF_UNIX) as bound:
        here = os.getcwd()
        os.chdir(instances)  # names of sockets are short
        try:
            bound.bind(places[5].name)
        finally:
            os.chdir(here)


def odd_cards(peers: Hostile) -> None:
    identity = 0x100
    for number in NUMBERS:
        for card in (
            {"kv_cache_block_size": number},
            {"context_length": number},
            {"runtime_config": number},
            {"runtime_config": {"total_kv_blocks": number, "max_num_batched_tokens": number}},
            {"runtime_config": {"data_parallel_size": number, "data_parallel_start_rank": number}},
            {"worker_type": number, "needs": number},
            {"display_name": number},
        ):
            identity += 1
            peers.store.worker(identity, **card)
    peers.store.worker(0x300, display_name=EVIL)
    peers.store.worker(0x301, display_name="a" * 100_000)
    for number, value in enumerate(VALUES):
        key = f"dynamo/backend/generate/{0x400 + number:x}"
        peers.store.put("instances", key, value)
        peers.store.put("mdc", key, value)


@pytest.mark.req("MEM-08", "FILE-02")
def test_a_store_full_of_nonsense_harms_nobody_who_is_well(tmp_path: Path) -> None:
    with hostile(tmp_path) as peers:
        odd_files(peers)
        odd_cards(peers)
        peers.store.worker(0x500)  # the last one to appear: when it is seen, the others were
        until(lambda: str(0x500) in peers.router.workers(), "the last worker")
        assert {"31", "32", str(0x300)} <= set(peers.router.workers())
        assert all(int(row["dp_size"]) <= 4096 for row in peers.router.workers().values())
        for _ in range(20):
            assert peers.status(PLAIN) == 200
        assert peers.resident_mib() < 400
        assert MODEL in peers.router.models()
        assert EVIL in peers.router.models()
        peers.router.chat("evil-one", EVIL)
        assert all(len(name) < 500 and not name.startswith("evil") for name in peers.router.metrics())
        log = "\n".join(peers.router.log_lines())
        assert "\x1b" not in log
        assert "\n2026 info fake" not in log
        assert "Traceback" not in log
        told = picklog("replay", "explain", "evil-one", "--log", str(peers.router.data)).stdout
        assert "\x1b" not in told
        assert "\n2026 info fake" not in told
        peers.router.verify()


@pytest.mark.req("LOAD-25", "LOAD-04", "MEM-08")
def test_publishers_at_any_address_cost_only_themselves(tmp_path: Path) -> None:
    with hostile(tmp_path) as peers, socket.create_server(("127.0.0.1", 0)) as flooding:

        def flood() -> None:
            try:
                while True:
                    connection, _ = flooding.accept()
                    with connection:
                        while True:
                            connection.sendall(b"\xff" + b"\0" * 65536)
            except OSError:
                pass

        threading.Thread(target=flood, daemon=True).start()
        for number, address in enumerate(ADDRESSES):
            peers.store.channel(0x900 + number, address)
        peers.store.channel(0xA00, f"tcp://127.0.0.1:{peers.router.port}")  # the router's own door
        peers.store.channel(0xA01, f"tcp://127.0.0.1:{flooding.getsockname()[1]}")

        def states() -> dict[str, str]:
            rows = peers.router.document("/admin/dynamo/workers")["subscriptions"]
            return {row["publisher_id"]: row["state"] for row in rows}

        wanted = {str(0xA00), str(0xA01)}
        until(lambda: wanted <= set(states()), "both subscriptions")
        until(lambda: all(states()[one] == "backoff" for one in wanted), lambda: str(states()))
        assert "connected" not in states().values()
        for _ in range(20):
            assert peers.status(PLAIN) == 200
        assert peers.router.workers().keys() == {"31", "32"}
        assert peers.router.log_lines("Traceback") == []
        peers.router.verify()
