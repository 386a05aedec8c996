"""Dialling: which endpoint is tried when, and what a login that fails leaves behind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingest.discovery.etcd_session import EtcdLimits
from ingest.discovery.etcd_source import EtcdSource
from ingest.discovery.settings import EtcdConnection, EtcdTls
from ingest.discovery.source import EndReason, SourceFailed
from tests.ingest.discovery.fake_etcd import FakeEtcd, hang
from tests.source_suite import WATCHED, read_all

QUICK = EtcdLimits(dial_s=0.5, quiet_s=0.05, ask_s=0.05, asks_max=2)


@pytest.fixture
async def fakes() -> AsyncIterator[list[FakeEtcd]]:
    made = [FakeEtcd(), FakeEtcd()]
    for one in made:
        one.endpoint = await one.start()  # type: ignore[attr-defined]
    yield made
    for one in made:
        await one.stop()


def source_on(*endpoints: str) -> EtcdSource:
    return EtcdSource(EtcdConnection(endpoints), QUICK)


def _quiet(what: str) -> None:
    raise AssertionError(what)


@pytest.mark.req("ETCD-18")
@pytest.mark.field("B-122")
async def test_dead_and_deaf_endpoints_are_passed_over_within_their_dial(fakes: list[FakeEtcd]) -> None:
    with socket.socket() as deaf, socket.socket() as closed:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        closed.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in (closed, deaf)]
        living = fakes[0].endpoint  # type: ignore[attr-defined]
        source = source_on(*(f"127.0.0.1:{port}" for port in ports), living)
        session = await asyncio.wait_for(source.connect(_quiet), 10)
        assert f"http://{session.where}" == living
        await session.close()
        again = await asyncio.wait_for(source.connect(_quiet), 0.4)
        assert again.where == session.where, "the one that answered last is tried first"
        await again.close()


@pytest.mark.req("ETCD-18")
async def test_endpoint_that_failed_is_tried_last(fakes: list[FakeEtcd]) -> None:
    first, second = (one.endpoint for one in fakes)  # type: ignore[attr-defined]
    fakes[0].watch_script = hang
    source = source_on(first, second)
    session = await source.connect(_quiet)
    assert f"http://{session.where}" == first
    with pytest.raises(SourceFailed):
        async for _ in session.changes((await read_all(session, WATCHED)).listed):
            pass
    await session.close()
    session = await source.connect(_quiet)
    assert f"http://{session.where}" == second
    await session.close()


async def test_no_endpoint_that_takes_a_connection_is_unreachable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        source = source_on(f"127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(SourceFailed) as failure:
            await asyncio.wait_for(source.connect(_quiet), 10)
    assert failure.value.reason is EndReason.UNREACHABLE


async def test_certificate_files_that_cannot_be_read_are_a_failed_pass(tmp_path: Path) -> None:
    tls = EtcdTls(str(tmp_path / "missing.pem"))
    source = EtcdSource(EtcdConnection(("https://127.0.0.1:1",), tls), QUICK)
    with pytest.raises(SourceFailed) as failure:
        await source.connect(_quiet)
    assert failure.value.reason is EndReason.UNREACHABLE
    assert str(tmp_path) not in str(failure.value)
