"""Receiving load samples: our ZMTP machine on asyncio against `zmq.asyncio`, same run, same publisher.

    python -m bench.zmtp_decode [--messages N] [--rounds N]

A libzmq XPUB in a process of its own sends messages of the size of a real sample (4 frames,
177 bytes of body). Each side subscribes, waits until the publisher has queued everything, and
then takes the time to receive it all, so that the publisher's own Python is not measured. Rounds
alternate; the ratios are medians over rounds. With two CPUs the subscriber is pinned to one and
the publisher to another. `cpu` counts the subscriber's process with all its threads (libzmq
reads in a thread of its own) and is what the exit status judges: pinned to one CPU of a quiet
machine both ratios agree, but a busy neighbour falls upon one side's seconds and not the other's.
The last line decodes without a socket, in steps of 2 KiB.

Target: at least 5 times.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import sys
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection

import zmq
import zmq.asyncio

from ingest.wire.publisher_frames import Sample, encode_sample_message
from ingest.wire.zmtp import ZmtpMachine
from ingest.wire.zmtp_frames import GREETING, Message, encode_message, encode_ready
from ingest.wire.zmtp_limits import KV_METRICS_LIMITS

TOPIC = b"kv_metrics"
TARGET_RATIO = 5.0
MESSAGE = encode_sample_message(
    4_113_563_812_675_516, Sample(7, 1_795_969_684_138, 3_246_181_283_018_911_712, 0, None, None, 42)
)


def publish(control: Connection, cpu: int | None) -> None:
    """The publisher's process: for each number asked for, wait for a subscriber and queue so many."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    socket = zmq.Context().socket(zmq.XPUB)
    socket.sndhwm = 0
    socket.linger = 0
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    control.send(port)
    while count := control.recv():
        while socket.recv()[:1] != b"\x01":
            pass
        for _ in range(count):
            socket.send_multipart(MESSAGE, copy=True)
        control.send(count)
    socket.close()


class Receiver(asyncio.BufferedProtocol):
    """The machine behind a socket; stops reading after the subscription until told to go on."""

    def __init__(self, count: int) -> None:
        self.machine = ZmtpMachine(KV_METRICS_LIMITS, TOPIC)
        self.left = count
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.machine.bytes_to_send())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Read into the machine's own room."""
        return self.machine.read_into()

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read; count the messages."""
        messages = self.machine.receive_read(nbytes)
        if messages:
            self.left -= len(messages)
            if self.left <= 0 and not self.done.done():
                self.done.set_result(None)
        elif answer := self.machine.bytes_to_send():
            self.transport.write(answer)
            if TOPIC in answer:
                self.transport.pause_reading()


async def receive_ours(port: int, control: Connection, count: int) -> tuple[float, float]:
    """(seconds, CPU seconds) to receive `count` messages with the machine."""
    loop = asyncio.get_running_loop()
    control.send(count)
    transport, receiver = await loop.create_connection(lambda: Receiver(count), "127.0.0.1", port)
    await asyncio.to_thread(control.recv)
    began, cpu = time.perf_counter(), time.process_time()
    transport.resume_reading()
    await receiver.done
    spent = time.perf_counter() - began, time.process_time() - cpu
    transport.close()
    return spent


async def receive_theirs(port: int, control: Connection, count: int) -> tuple[float, float]:
    """(seconds, CPU seconds) to receive `count` messages with zmq.asyncio."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.SUB)
    socket.linger = 0
    control.send(count)
    socket.subscribe(TOPIC)
    socket.connect(f"tcp://127.0.0.1:{port}")
    await asyncio.to_thread(control.recv)
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        await socket.recv_multipart()
    spent = time.perf_counter() - began, time.process_time() - cpu
    socket.close()
    context.term()
    return spent


def decode_alone(count: int) -> float:
    """Seconds to decode `count` messages from memory in steps of 2 KiB."""
    machine = ZmtpMachine(KV_METRICS_LIMITS, TOPIC)
    machine.receive_bytes(GREETING + encode_ready(b"PUB"))
    stream = memoryview(encode_message(MESSAGE) * count)
    received: list[Message] = []
    began = time.perf_counter()
    for at in range(0, len(stream), 2048):
        received = machine.receive_bytes(stream[at : at + 2048])
    assert received
    return time.perf_counter() - began


def main() -> int:
    """Measure and print; exit status 1 below the target."""
    parser = argparse.ArgumentParser(description="ZMTP receive rate against zmq.asyncio.")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > 1:
        os.sched_setaffinity(0, {cpus[0]})
    control, far = get_context("spawn").Pipe()
    publisher = get_context("spawn").Process(
        target=publish, args=(far, cpus[-1] if len(cpus) > 1 else None), daemon=True
    )
    publisher.start()
    port = control.recv()
    gc.collect()
    gc.freeze()
    rounds = []
    for number in range(asked.rounds):
        ours = asyncio.run(receive_ours(port, control, asked.messages))
        theirs = asyncio.run(receive_theirs(port, control, asked.messages))
        rounds.append((ours, theirs))
        print(
            f"round {number + 1}: ours {asked.messages / ours[0]:9,.0f}/s, "
            f"zmq.asyncio {asked.messages / theirs[0]:9,.0f}/s, "
            f"ratio {theirs[0] / ours[0]:.1f}, cpu {theirs[1] / ours[1]:.1f}",
            flush=True,
        )
    control.send(0)
    publisher.join(10)
    ratio = statistics.median(theirs[0] / ours[0] for ours, theirs in rounds)
    ratio_cpu = statistics.median(theirs[1] / ours[1] for ours, theirs in rounds)
    rate = statistics.median(asked.messages / ours[0] for ours, _ in rounds)
    print(f"zmtp receive: {rate:,.0f}/s, ratio {ratio:.1f} (cpu {ratio_cpu:.1f}), target {TARGET_RATIO:.0f}")
    print(f"zmtp decode without a socket: {asked.messages / decode_alone(asked.messages):,.0f}/s")
    return 0 if ratio_cpu >= TARGET_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
