"""A resolver may hang, lie or fail; that is the matter of those who asked for that name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from ingest.subscriptions.resolver import (
    ANSWERS_MAX,
    LOOKUPS_MAX,
    LookupFailed,
    Resolver,
    ResolverBusy,
    system_lookup,
)


class HangingNames:
    """Names that begin with `hung` answer when the test says so, all others at once."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        if host.startswith("hung"):
            self.release.wait()
        return ["10.0.0.7"]


@pytest.fixture
def names() -> Iterator[HangingNames]:
    names = HangingNames()
    yield names
    names.release.set()


@pytest.mark.req("ZMTP-11")
@pytest.mark.field("B-001")
async def test_a_name_that_hangs_delays_no_other(names: HangingNames) -> None:
    resolver = Resolver(names)
    hung = [asyncio.ensure_future(resolver.addresses(f"hung-{n}")) for n in range(LOOKUPS_MAX - 1)]
    await asyncio.sleep(0)
    assert await resolver.addresses("worker") == [ip_address("10.0.0.7")]
    assert not any(one.done() for one in hung)
    names.release.set()
    await asyncio.gather(*hung)


async def test_lookups_are_bounded_and_places_come_back(names: HangingNames) -> None:
    resolver = Resolver(names)
    hung = [asyncio.ensure_future(resolver.addresses(f"hung-{n}")) for n in range(LOOKUPS_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(ResolverBusy):
        await resolver.addresses("worker")
    names.release.set()
    await asyncio.gather(*hung)
    assert await resolver.addresses("worker") == [ip_address("10.0.0.7")]


async def test_those_who_ask_for_a_hung_name_share_its_lookup_and_may_leave(names: HangingNames) -> None:
    resolver = Resolver(names)
    askers = [asyncio.ensure_future(resolver.addresses("hung")) for _ in range(10)]
    await asyncio.sleep(0)
    askers[0].cancel()
    names.release.set()
    answers = await asyncio.gather(*askers, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [[ip_address("10.0.0.7")]] * 9
    assert names.asked == ["hung"]


async def test_answers_are_not_kept(names: HangingNames) -> None:
    resolver = Resolver(names)
    await resolver.addresses("worker")
    await resolver.addresses("worker")
    assert names.asked == ["worker", "worker"]


@pytest.mark.parametrize("problem", [OSError("no such name"), UnicodeError("label too long"), KeyError("x")])
async def test_a_lookup_that_fails_is_typed(problem: Exception) -> None:
    def lookup(host: str) -> list[str]:
        raise problem

    with pytest.raises(LookupFailed):
        await Resolver(lookup).addresses("worker")


async def test_what_is_no_address_is_left_out_and_answers_are_bounded() -> None:
    resolver = Resolver(lambda host: ["fe80::1%eth0", "bogus", "10.0.0.1", "10.0.0.1"])
    assert [str(ip) for ip in await resolver.addresses("worker")] == ["fe80::1%eth0", "10.0.0.1"]
    with pytest.raises(LookupFailed):
        await Resolver(lambda host: ["bogus"]).addresses("worker")
    many = Resolver(lambda host: [f"10.0.{n // 256}.{n % 256}" for n in range(5000)])
    assert len(await many.addresses("worker")) == ANSWERS_MAX


def test_the_system_knows_itself() -> None:
    assert "127.0.0.1" in system_lookup("localhost")
