"""What 1,024 idle load subscriptions cost in resident memory.

    python -m bench.idle_subscriptions [--subscriptions N] [--json]

A libzmq XPUB in a process of its own is the publisher of all of them: each subscription has a
socket, its handshake done, and hears nothing. Growth is measured from the moment when one
subscription stands (so that modules, the event loop and the first of everything are paid) to
the moment when all do, garbage collected. The buffers by account are printed beside it.

Target: growth under 16 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import sys
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import zmq

from bench import floor
from ingest.subscriptions.connectors import SubscriptionSettings
from ingest.subscriptions.supervisor import Subscriptions
from ingest.wire.zmtp_limits import KV_METRICS_LIMITS
from projections.bounds import KIB, MIB, SUBSCRIPTIONS_MAX
from projections.events.signals import SubscriptionChanged, SubscriptionState
from projections.identity import PublisherKey
from projections.registry.fleet import Fleet, Publisher

GOAL_BYTES = 16 * MIB
PATIENCE_S = 120.0


def publish(control: Connection) -> None:
    """The publisher's process: tells its port, stays until it is told to go."""
    allow_files()
    socket = zmq.Context().socket(zmq.XPUB)
    socket.linger = 0
    socket.setsockopt(zmq.BACKLOG, 1024)
    control.send(socket.bind_to_random_port("tcp://127.0.0.1"))
    control.recv()
    socket.close()


def allow_files() -> None:
    """As many open files as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def resident_bytes() -> int:
    """Resident memory of this process, garbage collected before."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def fleet_of(count: int, port: int) -> Fleet:
    """`count` publishers at one address."""
    publishers = [
        Publisher(
            PublisherKey("dynamo", number), "kv_metrics", "backend", "generate", f"tcp://127.0.0.1:{port}"
        )
        for number in range(1, count + 1)
    ]
    return Fleet(count, {}, tuple(publishers), {}, {})


async def measure(count: int, port: int) -> int:
    """Bytes that `count` subscriptions added to one."""
    connected, changed = 0, asyncio.Event()

    def note(fact: tuple[Any, ...]) -> None:
        nonlocal connected
        connected += isinstance(fact, SubscriptionChanged) and fact.state == SubscriptionState.CONNECTED
        changed.set()

    subscriptions = Subscriptions(note, SubscriptionSettings())

    async def until(wanted: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while connected < wanted:
                changed.clear()
                await changed.wait()

    subscriptions.follow(fleet_of(1, port))
    await until(1)
    everyone = fleet_of(count + 1, port)
    before = resident_bytes()
    subscriptions.follow(everyone)
    await until(min(count + 1, SUBSCRIPTIONS_MAX))
    await asyncio.sleep(1)
    after = resident_bytes()
    await subscriptions.stop()
    return after - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--subscriptions", type=int, default=SUBSCRIPTIONS_MAX)
    parser.add_argument("--json", action="store_true")
    settings = parser.parse_args()
    count = settings.subscriptions - 1
    allow_files()
    here, there = get_context("spawn").Pipe()
    child = get_context("spawn").Process(target=publish, args=(there,), daemon=True)
    child.start()
    try:
        grown = asyncio.run(measure(count, here.recv()))
    finally:
        here.send(0)
        child.join(10)
    each = grown / count
    if settings.json:
        print(
            json.dumps({"subscriptions": settings.subscriptions, "bytes": grown, "bytes_each": round(each)})
        )
    else:
        print(floor.line())
        print(
            f"{settings.subscriptions} idle subscriptions: {grown / MIB:.1f} MiB resident, "
            f"{each / KIB:.1f} KiB each, of which buffers {KV_METRICS_LIMITS.idle_bytes} bytes "
            f"(goal: under {GOAL_BYTES // MIB} MiB)"
        )
    return 0 if grown < GOAL_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
