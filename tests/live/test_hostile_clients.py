"""Clients that mean harm, against a real router process: pins, memory, connections that break off."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.live.hostile_peers import Hostile, counted, hostile, request
from tests.live.router_process import until

PLAIN = b'{"model":"tiny-chat","messages":[]}'
HEADERS = [
    b"x-dynamo-worker-instance-id: 99",
    b"X-DYNAMO-Dp-Rank: 9",
    b"X_Dynamo_Worker_Instance_Id: 99",
    b"x-dynamo_prefill-instance-id: 99",
    b"x-worker-instance-id: 99",
    b"X-Prefill-Instance-ID: 99",
    b"x_dp_rank: 9",
    b"x-data-parallel-rank: 9",
    b"x-prefill-dp-rank: 9",
    b"x-dynamo-: 9",
    b"connection: x-dynamo-dp-rank, x-dynamo-worker-instance-id, content-length",
]
MEMBERS = [
    b'"nvext":{"backend_instance_id":99,"decode_worker_id":99,"prefill_worker_id":99}',
    b'"nv\\u0065xt":{"dp_rank":9,"prefill_dp_rank":9}',
    b'"nvext":{"backend_instance\\u005fid":99}',
    b'"nvext":{"router":{"worker_id":99},"token_data":[1],"routing_constraints":{}}',
    b'"nvext":{"annotations":["query_instance_id:99"," X-Bypass-Remote-Prefill"]}',
    b'"nvext":{"extra_fields":["worker_id"]}',
]
TWICE = [
    b'"nvext":{},"nvext":{"decode_worker_id":99}',
    b'"nvext":null,"nv\\u0065xt":{"decode_worker_id":99}',
    b'"nvext":{"dp_rank":null,"dp_rank":9}',
    b'"nvext":[99,99]',
    b'"model":"other"',
    b'"mod\\u0065l":"other"',
    b'"stream":false,"stream":true',
]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    with hostile(tmp_path_factory.mktemp("clients")) as made:
        yield made


@pytest.fixture(autouse=True)
def at_peace(peers: Hostile) -> None:
    peers.frontend.answering = None
    peers.frontend.forget()


def pins_of(head: bytes) -> list[bytes]:
    names = (b"dynamo", b"instance-id", b"rank", b"worker")
    lines = head.split(b"\r\n")[1:]
    return [line for line in lines if any(name in line.lower().replace(b"_", b"-") for name in names)]


def is_ours(head: bytes) -> bool:
    return pins_of(head) in [
        [b"x-dynamo-worker-instance-id: %d" % worker, b"x-dynamo-dp-rank: 0"] for worker in (31, 32)
    ]


@pytest.mark.req("SHIM-10", "SHIM-11", "SHIM-12", "SHIM-15")
def test_nothing_that_a_client_writes_reaches_a_frontend_as_a_pin(peers: Hostile) -> None:
    for path, text in ((b"/v1/chat/completions", b'"messages":[]'), (b"/v1/completions", b'"prompt":"a"')):
        for member in MEMBERS:
            body = b'{"model":"tiny-chat",' + member + b"," + text + b"}"
            assert peers.status(body, *HEADERS, path=path) == 200, member
    chunked = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
    chunked += b"connection: close\r\ntrailer: x-dynamo-dp-rank\r\n\r\n"
    chunked += b"%x\r\n%b\r\n0\r\nx-dynamo-worker-instance-id: 99\r\n\r\n" % (len(PLAIN), PLAIN)
    assert peers.exchange(chunked).startswith(b"HTTP/1.1 200")
    assert len(peers.frontend.heads) == 2 * len(MEMBERS) + 1
    assert [pins_of(head) for head in peers.frontend.heads if not is_ours(head)] == []
    assert [body for body in peers.frontend.bodies if b"99" in body or "nvext" in json.loads(body)] == []


@pytest.mark.req("SHIM-12")
def test_a_body_that_could_be_read_in_two_ways_goes_nowhere(peers: Hostile) -> None:
    for member in TWICE:
        assert peers.status(b'{"model":"tiny-chat","messages":[],' + member + b"}") == 400, member
    assert peers.frontend.bodies == []


@pytest.mark.req("MEM-08")
def test_requests_under_way_hold_their_text_and_not_their_parsed_bodies(peers: Hostile) -> None:
    release = threading.Event()

    def late(connection: socket.socket, body: bytes) -> bool:
        release.wait(30)
        connection.sendall(counted())
        return True

    values = b",".join([b"{}"] * 500_000)  # some 40 MiB as objects
    body = b'{"model":"tiny-chat","messages":[' + values + b"]}"
    assert peers.status(body) == 200  # whatever is taken once is taken now
    before = peers.resident_mib()
    peers.frontend.forget()
    peers.frontend.answering = late
    clients = [peers.connect() for _ in range(6)]
    try:
        for client in clients:
            client.sendall(request(body, b"connection: close"))
        until(lambda: len(peers.frontend.bodies) == len(clients), "all of them under way")
        # texts, one parsed body, and what the allocator keeps of those before it; six of them would be 220
        assert peers.resident_mib() - before < 150
    finally:
        release.set()
        for client in clients:
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            client.close()


@pytest.mark.req("SHIM-27")
def test_clients_that_break_off_anywhere_leave_nothing_behind(peers: Hostile) -> None:
    def slowly(connection: socket.socket, body: bytes) -> bool:
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(8):
            connection.sendall(b"a\r\ndata: {}\n\n\r\n")
            time.sleep(0.05)
        connection.sendall(b"0\r\n\r\n")
        return True

    peers.frontend.answering = slowly
    draw = random.Random(11)
    whole = request(PLAIN)
    for _ in range(60):
        client = peers.connect()
        cut = draw.choice([0, draw.randrange(len(whole)), len(whole), len(whole)])
        client.sendall(whole[:cut])
        if cut == len(whole) and draw.random() < 0.5:
            client.recv(10)
        if draw.random() < 0.5:  # a reset instead of an end
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        client.close()
    in_flight = 'picklog_backend_in_flight{backend="frontend-1"}'
    until(lambda: peers.router.metrics()[in_flight] == 0, "nothing in flight")
    peers.frontend.answering = None
    assert peers.status(PLAIN, b"x-request-id: last-one") == 200
    until(lambda: peers.router.records("DispatchEnded"), "ends in the log")
    picks = {record["fields"]["pick_id"] for record in peers.router.records("PickMade")}
    ended = [record["fields"]["pick_id"] for record in peers.router.records("DispatchEnded")]
    assert len(ended) == len(set(ended)), "each dispatch ends once"
    assert set(ended) == picks
    peers.router.verify()


@pytest.mark.req("MEM-08")
def test_a_frontend_that_floods_a_client_who_reads_nothing_waits(peers: Hostile) -> None:
    sent = 0

    def flood(connection: socket.socket, body: bytes) -> bool:
        nonlocal sent
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        event = b"ea62\r\ndata: " + b"x" * 59994 + b"\n\n\r\n"
        for _ in range(5000):
            connection.sendall(event)
            sent += len(event)
        return False

    before = peers.resident_mib()
    peers.frontend.answering = flood
    with peers.connect() as client:
        client.sendall(request(PLAIN))
        until(lambda: sent > 0, "the flood begins")
        time.sleep(1)
        reached = sent
        time.sleep(0.5)
        assert sent == reached < 50_000_000
        assert peers.resident_mib() - before < 20
    peers.frontend.answering = None
    assert peers.status(PLAIN) == 200
