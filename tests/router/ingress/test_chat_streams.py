"""Chats that do not end well: a log that holds answers back, clients that leave, frontends that break."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from projections.events.envelope import Record
from projections.events.kinds import KIND_OF_FACT
from projections.events.picks import EndStatus, Fault, PickMade
from projections.load.ledger import Ledger
from projections.registry.fleet import Role
from router.settings import BreakerSettings, DeadlineSettings
from tests.router.fake_frontend import FakeFrontend, Misbehaviour, running
from tests.router.ingress.chats import PAIR, ROUTES, code_of, pair_frontend, pair_settings
from tests.router.rig import REPLICA, Rig, fleet_of, rig, settings_for, until, worker

# the log


async def test_first_byte_waits_for_the_picks_acknowledgement() -> None:
    frontend = pair_frontend()
    settings = pair_settings(frontend, deadlines=DeadlineSettings(output_wait_us=60_000_000))
    async with running(frontend), rig(PAIR, settings) as router:
        for stream in (False, True):
            router.log.mode = "holds"
            ended = len(router.log.ends)
            asking = asyncio.create_task(router.chat(stream=stream))
            await until(lambda: len(frontend.chats) > ended)  # noqa: B023
            await asyncio.wait({asking}, timeout=0.05)
            assert not asking.done()
            router.log.acknowledge()
            answer, _ = await asking
            assert answer.status == 200
            await router.ended(ended + 1)
        assert router.counts.unlogged == 0


@pytest.mark.parametrize("how", ["away", "sheds", "slow", "lost"])
async def test_outage_rule_lets_answers_out_and_counts_them(how: str) -> None:
    frontend = pair_frontend()
    wait_us = 30_000 if how == "slow" else 60_000_000
    settings = pair_settings(frontend, deadlines=DeadlineSettings(output_wait_us=wait_us))
    async with running(frontend), rig(PAIR, settings) as router:
        router.log.away = how == "away"
        router.log.mode = "sheds" if how == "sheds" else "holds"
        asking = asyncio.create_task(router.chat(stream=True))
        if how == "lost":
            await until(lambda: bool(router.log.picks))
            router.log.acknowledge(durable=False)
        answer, _ = await asking
        assert answer.status == 200
        assert router.counts.unlogged == 1


async def test_errors_of_ours_wait_for_the_pick_too() -> None:
    frontend = pair_frontend()
    frontend.status = 500
    settings = pair_settings(frontend, deadlines=DeadlineSettings(output_wait_us=60_000_000))
    async with running(frontend), rig(PAIR, settings) as router:
        router.log.mode = "holds"
        asking = asyncio.create_task(router.chat())
        await router.ended()
        await asyncio.wait({asking}, timeout=0.05)
        assert not asking.done()
        router.log.acknowledge()
        assert (await asking)[0].status == 502


@pytest.mark.req("PICK-13")
async def test_settings_that_change_in_between_hold_for_later_requests_only() -> None:
    frontend = pair_frontend()
    frontend.delay_s = 0.05
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        asking = asyncio.create_task(router.chat())
        await until(lambda: len(frontend.chats) == 1)
        router.log.version, router.log.enabled = 2, False
        router.service.reconfigure(replace(pair_settings(), pools=(), backends=()))
        answer, _ = await asking
        assert answer.status == 200
        assert router.log.picks[0].config_version == 1
        answer, body = await router.chat()
        assert (answer.status, code_of(body)) == (404, "model_not_found")


# clients that leave, frontends that break


async def leave(router: Rig, frontend: FakeFrontend, path: str, *, stream: bool, after_bytes: int) -> None:
    """Send a chat and close the connection after so many bytes of its answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    body = json.dumps({"model": "tiny-chat", "messages": [], "stream": stream}).encode()
    head = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body))
    writer.write(head + body)
    await until(lambda: len(frontend.chats) >= 1)
    if after_bytes:
        await reader.readexactly(after_bytes)
    writer.transport.abort()


@pytest.mark.req("SHIM-27", "STORE-11", "DYN-15")
@pytest.mark.field("B-092", "B-093", "B-094")
@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("stream", "after_bytes"), [(False, 0), (True, 0), (True, 400)])
async def test_client_that_leaves_closes_the_upstream_within_a_second(
    stream: bool, after_bytes: int, path: str
) -> None:
    frontend = pair_frontend()
    if after_bytes:
        frontend.events, frontend.event_delay_s = 1000, 0.01
    else:
        frontend.misbehaviour = Misbehaviour.NEVER_ANSWERS
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        await leave(router, frontend, path, stream=stream, after_bytes=after_bytes)
        seen = frontend.chats[0]
        async with asyncio.timeout(5):
            await seen.done.wait()
        assert seen.aborted
        end = await router.ended()
        assert (end.status, end.fault) == (EndStatus.CANCELLED, Fault.NONE)
        assert end.http_status == (200 if after_bytes else 0)
        await until(lambda: router.in_flight() == 0)
        assert len(router.log.ends) == 1
        overlay = router.log.view()
        assert not overlay.is_stalled(worker(21, Role.DECODE).key, 10**9)


@pytest.mark.req("DYN-18", "SHIM-19", "DYN-19")
@pytest.mark.field("B-097", "B-098")
@pytest.mark.parametrize("misbehaviour", [Misbehaviour.CLOSES_MID_STREAM, Misbehaviour.CLOSES_MID_EVENT])
async def test_stream_that_breaks_ends_with_an_error_event_and_is_not_sent_again(
    misbehaviour: Misbehaviour,
) -> None:
    first, second, plain = pair_frontend(), pair_frontend(), FakeFrontend(plain=True)
    for frontend in (first, second):
        frontend.misbehaviour, frontend.event_delay_s = misbehaviour, 0.02
    settings = settings_for({"dynamo": [first, second]}, [plain], fallback_to_unified=True)
    async with running(first, second, plain), rig(PAIR, settings) as router:
        answer, body = await router.chat(stream=True, n=2, response_format={"type": "json_object"})
        assert answer.status == 200
        *begun, error, done, rest = body.split(b"\n\n")
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "upstream_failed"
        assert (done, rest) == (b"data: [DONE]", b"")
        assert len(begun) >= 2
        assert b"127.0.0.1" not in error
        end = await router.ended()
        assert (end.status, end.fault, end.http_status) == (EndStatus.FAILED, Fault.NONE, 200)
        assert len(first.chats) + len(second.chats) == 1
        assert plain.chats == []


@pytest.mark.parametrize(
    ("misbehaviour", "stream"),
    [
        (Misbehaviour.CLOSES_BEFORE_ANSWER, False),
        (Misbehaviour.CLOSES_BEFORE_ANSWER, True),
        (Misbehaviour.CLOSES_AFTER_HEAD, True),
        (Misbehaviour.CLOSES_MID_BODY, False),
        (Misbehaviour.NOT_HTTP, False),
        (Misbehaviour.TWO_LENGTHS, False),
        (Misbehaviour.BOTH_FRAMINGS, False),
    ],
)
@pytest.mark.req("DYN-14", "SHIM-24")
@pytest.mark.field("B-005", "B-086", "B-104")
async def test_connection_lost_before_any_byte_is_not_resent_and_makes_the_workers_suspect(
    misbehaviour: Misbehaviour, stream: bool
) -> None:
    first, second = pair_frontend(), pair_frontend()
    first.misbehaviour = second.misbehaviour = misbehaviour
    async with running(first, second), rig(PAIR, pair_settings(first, second)) as router:
        answer, body = await router.chat(stream=stream)
        assert (answer.status, code_of(body)) == (502, "disaggregated_decode_failed")
        assert len(first.chats) + len(second.chats) == 1
        end = await router.ended()
        assert (end.status, end.fault, end.http_status) == (EndStatus.FAILED, Fault.FAULT, 0)
        now = router.log.log_time()[0]
        assert router.log.view().is_suspect(worker(21, Role.DECODE).key, now)


@pytest.mark.req("DYN-15")
@pytest.mark.field("B-032")
@pytest.mark.parametrize("drops", [False, True])
async def test_a_hundred_failures_leave_no_count_and_no_load_behind(drops: bool) -> None:
    frontend = pair_frontend()
    settings = pair_settings(frontend, breaker=BreakerSettings(enabled=False))
    async with running(frontend), rig(PAIR, settings) as router:
        frontend.status = 500
        frontend.misbehaviour = Misbehaviour.CLOSES_BEFORE_ANSWER if drops else None
        for _ in range(100):
            answer, _ = await router.chat()
            assert answer.status == 502
        assert router.in_flight() == 0
        assert [end.pick_id for end in router.log.ends] == [pick.pick_id for pick in router.log.picks]
        ledger = Ledger()
        for fact in (*router.log.picks, *router.log.ends):
            record = Record(0, 0, KIND_OF_FACT[type(fact)], 1, REPLICA, 0, 1, fact)
            ledger.apply_pick(record, PAIR) if isinstance(fact, PickMade) else ledger.apply_end(record)
        assert ledger.running() == {}
        ledger.prune(10**9)
        assert len(ledger) == 0


@pytest.mark.req("DYN-17")
@pytest.mark.field("B-104", "B-106")
async def test_silent_frontend_is_given_up_by_the_inner_deadline() -> None:
    frontend, plain = pair_frontend(), FakeFrontend(plain=True)
    frontend.misbehaviour = Misbehaviour.NEVER_ANSWERS
    deadlines = DeadlineSettings(first_byte_us=80_000, total_us=60_000_000)
    settings = settings_for({"dynamo": [frontend]}, [plain], deadlines=deadlines, fallback_to_unified=True)
    async with running(frontend, plain), rig(PAIR, settings) as router:
        answer, body = await router.chat()
        assert (answer.status, code_of(body)) == (504, "upstream_timeout")
        end = await router.ended()
        assert (end.status, end.fault) == (EndStatus.EXPIRED, Fault.NONE)
        assert plain.chats == []  # it may still be running
        async with asyncio.timeout(5):
            await frontend.chats[0].done.wait()
        assert frontend.chats[0].aborted


@pytest.mark.req("DYN-17")
@pytest.mark.parametrize(
    "deadlines", [DeadlineSettings(idle_us=80_000), DeadlineSettings(total_us=200_000)], ids=["idle", "total"]
)
async def test_stream_that_stalls_is_ended_by_its_deadline(deadlines: DeadlineSettings) -> None:
    frontend = pair_frontend()
    frontend.misbehaviour = Misbehaviour.STALLS_MID_STREAM
    async with running(frontend), rig(PAIR, pair_settings(frontend, deadlines=deadlines)) as router:
        answer, body = await router.chat(stream=True)
        assert answer.status == 200
        assert b"upstream_timeout" in body
        assert (await router.ended()).status == EndStatus.EXPIRED


@pytest.mark.field("B-099")
async def test_stream_of_single_bytes_arrives_byte_for_byte() -> None:
    frontend = pair_frontend()
    frontend.misbehaviour = Misbehaviour.BYTE_BY_BYTE
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        _, body = await router.chat(stream=True)
        assert body == frontend.stream_body(frontend.chats[0])
        assert (await router.ended()).prompt_tokens == 39


@pytest.mark.field("B-100")
@pytest.mark.parametrize("stream", [False, True])
async def test_compressed_answers_go_through_untouched(stream: bool) -> None:
    frontend = pair_frontend()
    body = b"\x1f\x8b\x08\x00 not really, but nobody looks"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n"
    frontend.raw_answer = head + b"content-length: %d\r\n\r\n" % len(body) + body
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        answer, got = await router.chat(stream=stream)
        assert (got, answer.headers["Content-Encoding"]) == (body, "gzip")
        assert answer.headers["Content-Length"] == str(len(body))
        assert (await router.ended()).prompt_tokens is None


async def test_answer_that_ends_with_its_connection_is_whole() -> None:
    frontend = pair_frontend()
    frontend.raw_answer = b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{}"
    async with running(frontend), rig(PAIR, pair_settings(frontend)) as router:
        asking = asyncio.create_task(router.chat())
        await until(lambda: len(frontend.chats) == 1)
        await asyncio.wait({asking}, timeout=0.05)
        for writer in list(frontend._writers):
            writer.write_eof()
        answer, body = await asking
        assert (answer.status, body) == (200, b"{}")


@pytest.mark.field("B-106")
async def test_rubbish_routing_does_not_wait_for_a_slow_neighbour() -> None:
    """One frontend that accepts and never answers holds up its own requests only."""
    silent, good = FakeFrontend(aggregated={31: 1}), FakeFrontend(aggregated={32: 1}, models=("other",))
    silent.misbehaviour = Misbehaviour.NEVER_ANSWERS
    fleet = fleet_of(
        worker(31, Role.AGGREGATED, namespace="blue"),
        worker(32, Role.AGGREGATED, namespace="green", model="other"),
    )
    async with running(silent, good), rig(fleet, settings_for({"blue": [silent], "green": [good]})) as router:
        stuck = [asyncio.create_task(router.chat()) for _ in range(50)]
        await until(lambda: len(silent.chats) == 50)
        async with asyncio.timeout(10):
            answers = [await router.chat(model="other") for _ in range(5)]
        assert [answer.status for answer, _ in answers] == [200] * 5
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
        await until(lambda: router.in_flight() == 0)
        assert len(router.log.ends) == 55
