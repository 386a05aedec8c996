"""The subscriber machine: whole, byte by byte, with a tail; hostile peers; a real libzmq."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Iterator

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.wire.zmtp import ZmtpMachine, ZmtpPhase, ZmtpReason, ZmtpRefused
from ingest.wire.zmtp_frames import Message, encode_message
from ingest.wire.zmtp_limits import KV_EVENTS_LIMITS, KV_METRICS_LIMITS, ZmtpLimits
from tests.ingest.wire import fake_publisher as fake
from tests.ingest.wire.recorded import event_recordings, recorded_messages, sample_recordings

TOPIC = b"kv_metrics"
HANDSHAKE = fake.greeting_bytes() + fake.ready_bytes()
SAMPLE = (TOPIC, bytes(7) + b"\x05", bytes(8), b"\x01" + b"s" * 176)


def machine_of(limits: ZmtpLimits = KV_METRICS_LIMITS, topic: bytes = TOPIC) -> ZmtpMachine:
    """A machine whose handshake is done and whose own bytes are written."""
    machine = ZmtpMachine(limits, topic)
    assert machine.receive_bytes(HANDSHAKE) == []
    assert machine.phase is ZmtpPhase.STREAMING
    machine.bytes_to_send()
    return machine


def outcome(
    chunks: list[bytes], limits: ZmtpLimits = KV_METRICS_LIMITS
) -> tuple[list[Message], object, bytes]:
    """Messages, reason and sent bytes of a fresh machine that is fed `chunks`."""
    machine = ZmtpMachine(limits, TOPIC)
    messages: list[Message] = []
    sent = machine.bytes_to_send()
    for chunk in chunks:
        try:
            messages += machine.receive_bytes(chunk)
        except ZmtpRefused as refused:
            messages += refused.messages
        sent += machine.bytes_to_send()
    return messages, machine.reason, sent


def ways(stream: bytes) -> Iterator[list[bytes]]:
    """One stream as a whole, byte by byte, and in chunks that fall anywhere."""
    yield [stream]
    yield [stream[at : at + 1] for at in range(len(stream))]
    for step in (2, 3, 7, 13, 211, 2048):
        yield [stream[at : at + step] for at in range(0, len(stream), step)]


def refusal_of(machine: ZmtpMachine, stream: bytes) -> ZmtpReason:
    """The reason with which `stream` is refused, by the whole and byte by byte alike."""
    with pytest.raises(ZmtpRefused) as caught:
        machine.receive_bytes(stream)
    return caught.value.reason


# What we say


@pytest.mark.req("ZMTP-02", "ZMTP-03", "LOAD-08")
def test_our_bytes_are_greeting_then_ready_as_sub_then_the_subscription() -> None:
    machine = ZmtpMachine(KV_METRICS_LIMITS, TOPIC)
    assert machine.bytes_to_send() == fake.greeting_bytes(3, 0, b"NULL")
    assert machine.bytes_to_send() == b""
    machine.receive_bytes(fake.greeting_bytes(3, 1))
    assert machine.bytes_to_send() == fake.ready_bytes(b"SUB")
    machine.receive_bytes(fake.ready_bytes(b"PUB"))
    assert machine.bytes_to_send() == b"\x00\x0b\x01kv_metrics"


@pytest.mark.parametrize("peer", [b"PUB", b"XPUB"])
@pytest.mark.parametrize(("major", "minor"), [(3, 0), (3, 1), (3, 9), (4, 0), (255, 255)])
def test_any_version_from_three_on_is_accepted(peer: bytes, major: int, minor: int) -> None:
    machine = ZmtpMachine(KV_METRICS_LIMITS, TOPIC)
    machine.receive_bytes(fake.greeting_bytes(major, minor) + fake.ready_bytes(peer))
    assert machine.phase is ZmtpPhase.STREAMING


def test_padding_and_as_server_of_a_greeting_mean_nothing() -> None:
    greeting = bytearray(fake.greeting_bytes())
    greeting[1:9] = b"\x00\x00\x00\x00\x00\x00\x00\x01"  # libzmq writes an old identity length here
    greeting[32] = 1
    machine = ZmtpMachine(KV_METRICS_LIMITS, TOPIC)
    machine.receive_bytes(bytes(greeting))
    assert machine.phase is ZmtpPhase.HANDSHAKE


def test_property_names_of_ready_have_no_case_and_others_are_ignored() -> None:
    data = b"\x08Identity\x00\x00\x00\x00\x0bsOCKET-tYPE\x00\x00\x00\x04XPUB\x03X-A\x00\x00\x00\x02ab"
    machine = ZmtpMachine(KV_METRICS_LIMITS, TOPIC)
    machine.receive_bytes(fake.greeting_bytes() + fake.command_bytes(b"READY", data))
    assert machine.phase is ZmtpPhase.STREAMING


# Messages, three ways


@pytest.mark.req("LOAD-09")
@pytest.mark.parametrize("tail", [b"", b"\x01", b"\x01\x0akv_met", b"\x04\x05\x04PIN", b"\x03\x00\x00\x00"])
def test_messages_come_out_alike_whole_byte_by_byte_and_with_a_tail(tail: bytes) -> None:
    sent = [
        SAMPLE,
        (*SAMPLE[:3], b"b" * 300),  # a long body
        (b"kv_metrics-x", *SAMPLE[1:]),  # matches the subscription's prefix, not the topic
        (TOPIC,),
        (b"", b"", b"", b""),
        (b"t" * 256, b"p" * 8, b"s" * 8, b"b" * 32768),
        SAMPLE,
    ]
    stream = HANDSHAKE + b"".join(map(fake.message_bytes, sent)) + tail
    expected = outcome([stream])
    assert expected[0] == sent
    assert expected[1] is None
    for chunks in ways(stream):
        assert outcome(chunks) == expected


@pytest.mark.req("LOAD-13", "ZMTP-05")
@pytest.mark.parametrize("frames", [1, 2, 3])
def test_message_of_fewer_than_four_frames_is_delivered_and_the_next_one_too(frames: int) -> None:
    machine = machine_of()
    short = SAMPLE[:frames]
    assert machine.receive_bytes(fake.message_bytes(short) + fake.message_bytes(SAMPLE)) == [short, SAMPLE]


def test_a_short_body_in_the_long_form_is_read() -> None:
    stream = b"".join(
        fake.frame_bytes(body, more=place < 3, declared=len(body)) for place, body in enumerate(SAMPLE)
    )
    for chunks in ways(HANDSHAKE + stream + stream):
        assert outcome(chunks)[0] == [SAMPLE, SAMPLE]


def test_reading_into_the_machines_own_room_gives_the_same_messages() -> None:
    stream = HANDSHAKE + fake.message_bytes(SAMPLE) * 50
    machine, messages = ZmtpMachine(KV_METRICS_LIMITS, TOPIC), []
    while stream:
        room = machine.read_into()
        assert len(room) == 2048
        count = min(len(room), len(stream))
        room[:count] = stream[:count]
        messages += machine.receive_read(count)
        stream = stream[count:]
    assert messages == [SAMPLE] * 50


def test_frames_do_not_change_when_the_room_is_used_again() -> None:
    machine = machine_of()
    room = machine.read_into()
    raw = fake.message_bytes(SAMPLE)
    room[: len(raw)] = raw
    (message,) = machine.receive_read(len(raw))
    room[:] = bytes(2048)
    assert message == SAMPLE


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_messages_within_the_bounds_come_out_of_any_chunks(data: st.DataObject) -> None:
    frames = st.tuples(
        st.sampled_from([TOPIC, b"kv_metricsx", b""]) | st.binary(max_size=256),
        st.binary(min_size=8, max_size=8) | st.binary(max_size=8),
        st.binary(min_size=8, max_size=8) | st.binary(max_size=8),
        st.binary(max_size=600),
    )
    sent = data.draw(st.lists(frames.flatmap(lambda f: st.integers(1, 4).map(lambda n: f[:n])), max_size=6))
    stream = HANDSHAKE + b"".join(map(fake.message_bytes, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert outcome(chunks)[:2] == (sent, None)


@settings(max_examples=200, deadline=None)
@given(noise=st.binary(max_size=400), begin=st.sampled_from([b"", HANDSHAKE]), step=st.integers(1, 9))
def test_any_bytes_end_in_messages_or_in_one_refusal_however_they_are_cut(
    noise: bytes, begin: bytes, step: int
) -> None:
    stream = begin + noise
    chunks = [stream[at : at + step] for at in range(0, len(stream), step)]
    assert outcome(chunks)[:2] == outcome([stream])[:2]


# Commands


@pytest.mark.parametrize("context", [b"", b"c", b"0123456789abcdef"])
def test_ping_is_answered_with_its_context_even_inside_a_message(context: bytes) -> None:
    ping = fake.command_bytes(b"PING", b"\x00\x0a" + context)
    raw = fake.message_bytes(SAMPLE)
    machine = machine_of()
    assert machine.receive_bytes(ping + raw[:12] + ping + raw[12:]) == [SAMPLE]
    assert machine.bytes_to_send() == fake.command_bytes(b"PONG", context) * 2


def test_a_flood_of_pings_fills_no_more_than_the_write_buffer() -> None:
    machine = machine_of()
    machine.receive_bytes(fake.command_bytes(b"PING", b"\x00\x00" + b"x" * 16) * 1000)
    assert len(machine.bytes_to_send()) <= 64
    assert machine.pongs_dropped == 998
    machine.receive_bytes(fake.command_bytes(b"PING", b"\x00\x00"))
    assert machine.bytes_to_send() == fake.command_bytes(b"PONG")


@pytest.mark.parametrize("name", [b"PONG", b"SUBSCRIBE", b"CANCEL", b"JOIN", b"LATER"])
def test_other_commands_are_ignored(name: bytes) -> None:
    machine = machine_of()
    stream = fake.command_bytes(name, b"data") + fake.message_bytes(SAMPLE) + fake.command_bytes(name)
    assert machine.receive_bytes(stream) == [SAMPLE]
    assert machine.bytes_to_send() == b""


# Violations

BAD_GREETINGS = {
    "a web server": (b"HTTP/1.1 400 Bad Request\r\n", ZmtpReason.SIGNATURE),
    "ZMTP 1.0": (b"\x01\x00", ZmtpReason.SIGNATURE),
    "ZMTP 1.0, long identity": (b"\xff" + bytes(8) + b"\x10", ZmtpReason.SIGNATURE),
    "ZMTP 2.0": (fake.OLD_VERSION.greeting, ZmtpReason.VERSION),
    "ZMTP 2.1": (b"\xff" + bytes(8) + b"\x7f\x02", ZmtpReason.VERSION),
    "version 0": (fake.greeting_bytes(0)[:11], ZmtpReason.VERSION),
    "PLAIN": (fake.greeting_bytes(mechanism=b"PLAIN"), ZmtpReason.MECHANISM),
    "CURVE": (fake.greeting_bytes(mechanism=b"CURVE"), ZmtpReason.MECHANISM),
    "no mechanism": (fake.greeting_bytes(mechanism=b""), ZmtpReason.MECHANISM),
    "NULL and more": (fake.greeting_bytes(mechanism=b"NULLX"), ZmtpReason.MECHANISM),
}


@pytest.mark.req("ZMTP-02")
@pytest.mark.parametrize("name", BAD_GREETINGS)
def test_greeting_of_another_kind_is_refused_as_soon_as_a_byte_tells(name: str) -> None:
    stream, reason = BAD_GREETINGS[name]
    for chunks in ways(stream):
        assert outcome(chunks)[:2] == ([], reason)
    assert outcome([stream[:-1]])[1] in (None, reason)


@pytest.mark.parametrize("length", [0, 1, 10, 11, 32, 63])
def test_a_short_greeting_is_waited_for(length: int) -> None:
    machine = ZmtpMachine(KV_METRICS_LIMITS, TOPIC)
    assert machine.receive_bytes(fake.greeting_bytes()[:length]) == []
    assert machine.phase is ZmtpPhase.GREETING
    assert machine.is_between_messages is (length == 0)


BAD_HANDSHAKES = {
    "a message before READY": (fake.message_bytes(SAMPLE), ZmtpReason.HANDSHAKE),
    "PING before READY": (fake.command_bytes(b"PING", b"\x00\x00"), ZmtpReason.HANDSHAKE),
    "ERROR": (fake.ERROR_COMMAND.ready, ZmtpReason.PEER_ERROR),
    "a SUB": (fake.ready_bytes(b"SUB"), ZmtpReason.SOCKET_TYPE),
    "a PUSH": (fake.ready_bytes(b"PUSH"), ZmtpReason.SOCKET_TYPE),
    "a pub in lower case": (fake.ready_bytes(b"pub"), ZmtpReason.SOCKET_TYPE),
    "no socket type": (fake.command_bytes(b"READY"), ZmtpReason.SOCKET_TYPE),
    "giant READY": (fake.GIANT_READY.ready, ZmtpReason.COMMAND_OVERSIZED),
    "READY of 2^63-1": (b"\x06\x7f" + b"\xff" * 7, ZmtpReason.COMMAND_OVERSIZED),
    "value longer than READY": (
        fake.command_bytes(b"READY", b"\x0bSocket-Type\x7f\xff\xff\xffPUB"),
        ZmtpReason.METADATA,
    ),
    "name longer than READY": (fake.command_bytes(b"READY", b"\xffSocket-Type"), ZmtpReason.METADATA),
    "empty name": (fake.command_bytes(b"READY", b"\x00\x00\x00\x00\x00"), ZmtpReason.METADATA),
    "cut value size": (fake.command_bytes(b"READY", b"\x01a\x00\x00"), ZmtpReason.METADATA),
    "two socket types": (
        fake.command_bytes(b"READY", b"\x0bSocket-Type\x00\x00\x00\x03PUB" * 2),
        ZmtpReason.METADATA,
    ),
    "empty command": (b"\x04\x00", ZmtpReason.COMMAND),
    "nameless command": (b"\x04\x01\x00", ZmtpReason.COMMAND),
    "name beyond the command": (b"\x04\x03\x05RE", ZmtpReason.COMMAND),
    "name that is no word": (b"\x04\x03\x02\x00\x01", ZmtpReason.COMMAND),
    "command with MORE": (b"\x05\x00", ZmtpReason.FLAGS),
    "reserved flag": (b"\x0c\x00", ZmtpReason.FLAGS),
}


@pytest.mark.parametrize("name", BAD_HANDSHAKES)
def test_handshake_that_breaks_the_protocol_is_refused(name: str) -> None:
    stream, reason = BAD_HANDSHAKES[name]
    for chunks in ways(fake.greeting_bytes() + stream):
        assert outcome(chunks)[:2] == ([], reason)


def parts(*bodies: bytes) -> bytes:
    """Frames that all announce another one."""
    return b"".join(fake.frame_bytes(body, more=True) for body in bodies)


BAD_TRAFFIC = {
    "five frames": (parts(*SAMPLE) + fake.frame_bytes(b""), ZmtpReason.TOO_MANY_FRAMES),
    "a multipart message without an end": (parts(*[b""] * 50), ZmtpReason.TOO_MANY_FRAMES),
    "a whole sample inside a message": (parts(b"x") + fake.message_bytes(SAMPLE), ZmtpReason.FRAME_OVERSIZED),
    "topic of 257 bytes": (fake.frame_bytes(b"t" * 257, more=True), ZmtpReason.FRAME_OVERSIZED),
    "publisher id of 9 bytes": (parts(TOPIC, b"p" * 9), ZmtpReason.FRAME_OVERSIZED),
    "sequence of 9 bytes": (parts(TOPIC, b"p" * 8, b"s" * 9), ZmtpReason.FRAME_OVERSIZED),
    "body of 32769 bytes": (
        parts(*SAMPLE[:3]) + fake.frame_bytes(b"", declared=32769),
        ZmtpReason.FRAME_OVERSIZED,
    ),
    "body of 2^63-1 bytes": (
        parts(*SAMPLE[:3]) + fake.frame_bytes(b"", declared=2**63 - 1),
        ZmtpReason.FRAME_OVERSIZED,
    ),
    "body of 2^64-1 bytes": (
        parts(*SAMPLE[:3]) + fake.frame_bytes(b"", declared=2**64 - 1),
        ZmtpReason.FRAME_OVERSIZED,
    ),
    "topic of 2^63-1 bytes": (
        fake.frame_bytes(b"", more=True, declared=2**63 - 1),
        ZmtpReason.FRAME_OVERSIZED,
    ),
    "PING of 2^63-1 bytes": (b"\x06\x7f" + b"\xff" * 7, ZmtpReason.COMMAND_OVERSIZED),
    "PING without time to live": (fake.command_bytes(b"PING", b"\x00"), ZmtpReason.COMMAND),
    "PING with a context of 17 bytes": (fake.command_bytes(b"PING", bytes(19)), ZmtpReason.COMMAND),
    "a second READY": (fake.ready_bytes(), ZmtpReason.COMMAND),
    "ERROR after READY": (fake.ERROR_COMMAND.ready, ZmtpReason.PEER_ERROR),
    "reserved flags": (b"\x80\x00", ZmtpReason.FLAGS),
}


@pytest.mark.req("ZMTP-04", "ZMTP-05", "LOAD-13")
@pytest.mark.parametrize("name", BAD_TRAFFIC)
def test_traffic_beyond_a_bound_is_refused_after_the_messages_before_it(name: str) -> None:
    stream, reason = BAD_TRAFFIC[name]
    for chunks in ways(HANDSHAKE + fake.message_bytes(SAMPLE) + stream + fake.message_bytes(SAMPLE)):
        assert outcome(chunks)[:2] == ([SAMPLE], reason)


@pytest.mark.req("ZMTP-05")
@pytest.mark.parametrize(
    "sizes", [(256, 8, 8, 32768), (0, 0, 0, 0), (1, 8, 8, 255), (255, 8, 8, 256), (256, 7, 8, 1)]
)
def test_message_at_its_bounds_is_delivered(sizes: tuple[int, ...]) -> None:
    message = tuple(bytes(size) for size in sizes)
    for chunks in ways(HANDSHAKE + fake.message_bytes(message)):
        assert outcome(chunks)[:2] == ([message], None)


def test_kv_events_bodies_reach_one_mebibyte_and_no_further() -> None:
    message = (b"kv-events", bytes(8), bytes(8), bytes(1 << 20))
    machine = machine_of(KV_EVENTS_LIMITS, b"kv-events")
    assert machine.receive_bytes(fake.message_bytes(message)) == [message]
    stream = parts(*message[:3]) + fake.frame_bytes(b"", declared=(1 << 20) + 1)
    assert refusal_of(machine, stream) is ZmtpReason.FRAME_OVERSIZED


def test_whole_message_is_bounded_apart_from_its_frames() -> None:
    limits = ZmtpLimits((256, 8, 8, 1000), message_bytes_max=1100)
    fits = (b"t" * 84, bytes(8), bytes(8), bytes(1000))
    for chunks in ways(HANDSHAKE + fake.message_bytes(fits) + fake.message_bytes((b"t" * 85, *fits[1:]))):
        assert outcome(chunks, limits)[:2] == ([fits], ZmtpReason.MESSAGE_OVERSIZED)


def test_quick_loop_leaves_a_message_above_the_whole_bound_to_the_careful_one() -> None:
    limits = ZmtpLimits((256, 8, 8, 1000), message_bytes_max=500)
    stream = fake.message_bytes((*SAMPLE[:3], bytes(475)))
    assert refusal_of(machine_of(limits), stream) is ZmtpReason.MESSAGE_OVERSIZED
    assert len(machine_of(limits).receive_bytes(fake.message_bytes((*SAMPLE[:3], bytes(474))))) == 1


def test_families_of_another_number_of_frames_are_read_too() -> None:
    machine = machine_of(ZmtpLimits((256, 8, 1000), message_bytes_max=2000))
    message = (TOPIC, bytes(8), bytes(900))
    assert machine.receive_bytes(fake.message_bytes(message) * 2) == [message] * 2
    assert refusal_of(machine, fake.message_bytes(SAMPLE)) is ZmtpReason.TOO_MANY_FRAMES


def test_a_refused_machine_is_dead_and_raises_no_second_time() -> None:
    machine = machine_of()
    assert refusal_of(machine, b"\x80\x00") is ZmtpReason.FLAGS
    assert machine.phase is ZmtpPhase.REFUSED
    assert machine.reason is ZmtpReason.FLAGS
    assert machine.receive_bytes(fake.message_bytes(SAMPLE)) == []
    assert machine.bytes_to_send() == b""
    assert machine.buffered_bytes == KV_METRICS_LIMITS.idle_bytes


# Memory


@pytest.mark.req("ZMTP-06")
def test_an_idle_subscription_costs_2624_bytes_of_buffers() -> None:
    machine = machine_of()
    assert machine.buffered_bytes == KV_METRICS_LIMITS.idle_bytes == 2624
    machine.receive_bytes(fake.message_bytes((*SAMPLE[:3], bytes(20_000))) * 3)
    assert machine.buffered_bytes == 2624


@pytest.mark.req("ZMTP-08")
def test_1024_idle_subscriptions_cost_about_2_6_mib() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        machines = [machine_of() for _ in range(1024)]
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert sum(machine.buffered_bytes for machine in machines) == 1024 * 2624
    assert grown < 4 * 1024 * 1024  # the buffers and 1024 Python objects around them


@pytest.mark.req("ZMTP-06", "ZMTP-07")
def test_body_buffer_doubles_with_what_arrives_and_not_with_what_was_declared() -> None:
    machine = machine_of()
    machine.receive_bytes(parts(*SAMPLE[:3]) + fake.frame_bytes(b"", declared=32768))
    kept = sum(map(len, SAMPLE[:3]))
    assert machine.buffered_bytes - kept == 2624
    seen = []
    for _ in range(31):
        machine.receive_bytes(bytes(1024))
        seen.append(machine.buffered_bytes - kept - 2048 - 64)
    assert sorted(set(seen)) == [1024, 2048, 4096, 8192, 16384, 32768]
    assert seen[0] == 1024 and seen[3] == 4096 and seen[4] == 8192
    assert len(machine.receive_bytes(bytes(1024))) == 1
    assert machine.buffered_bytes == 2624


@pytest.mark.req("ZMTP-04", "ZMTP-07")
@pytest.mark.parametrize(
    "name", [name for name, (_, reason) in BAD_TRAFFIC.items() if "SIZED" in reason.name]
)
def test_a_declared_giant_takes_no_memory(name: str) -> None:
    stream, _reason = BAD_TRAFFIC[name]
    machine = machine_of()
    tracemalloc.start()
    try:
        with pytest.raises(ZmtpRefused):
            machine.receive_bytes(stream)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


def test_kept_frames_count_as_buffered() -> None:
    machine = machine_of()
    machine.receive_bytes(parts(b"t" * 256, b"p" * 8))
    assert machine.buffered_bytes == 2624 + 264
    assert not machine.is_between_messages
    machine.receive_bytes(fake.frame_bytes(b""))
    assert machine.is_between_messages


# Recordings


@pytest.mark.req("ZMTP-13", "ZMTP-14")
@pytest.mark.parametrize("path", [*sample_recordings(), *event_recordings()], ids=lambda path: path.name)
def test_recorded_messages_are_decoded_and_encoded_byte_exactly(path) -> None:  # type: ignore[no-untyped-def]
    recorded = [tuple(frames) for frames in recorded_messages(path)]
    topic = recorded[0][0]
    stream = b"".join(map(encode_message, recorded))
    assert stream == b"".join(map(fake.message_bytes, recorded))
    machine = machine_of(KV_EVENTS_LIMITS, topic)
    decoded: list[Message] = []
    at, sizes = 0, random.Random(1402)
    while at < len(stream):
        step = sizes.randrange(1, 2049)
        decoded += machine.receive_bytes(stream[at : at + step])
        at += step
    assert decoded == recorded
    assert b"".join(map(encode_message, decoded)) == stream


# Peers over loopback


class Subscriber(asyncio.BufferedProtocol):
    """The thinnest shell around the machine."""

    def __init__(self, machine: ZmtpMachine) -> None:
        self.machine = machine
        self.messages: asyncio.Queue[Message | ZmtpRefused | None] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self.machine.bytes_to_send())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.machine.read_into()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for message in self.machine.receive_read(nbytes):
                self.messages.put_nowait(message)
        except ZmtpRefused as refused:
            for message in refused.messages:
                self.messages.put_nowait(message)
            self.messages.put_nowait(refused)
            self.transport.close()
        self.transport.write(self.machine.bytes_to_send())

    def connection_lost(self, exc: Exception | None) -> None:
        self.messages.put_nowait(None)

    async def next(self) -> Message | ZmtpRefused | None:
        """The next message, refusal, or None at the end of the connection."""
        async with asyncio.timeout(fake.PATIENCE_S):
            return await self.messages.get()


async def subscribe(port: int, limits: ZmtpLimits = KV_METRICS_LIMITS) -> Subscriber:
    """Connect a fresh machine to 127.0.0.1:`port`."""
    loop = asyncio.get_running_loop()
    _, subscriber = await loop.create_connection(
        lambda: Subscriber(ZmtpMachine(limits, TOPIC)), "127.0.0.1", port
    )
    return subscriber


@pytest.mark.req("ZMTP-12")
async def test_a_real_libzmq_publisher_is_understood_and_understands_us() -> None:
    async with fake.RealPublisher(zmq.XPUB) as publisher:
        subscriber = await subscribe(publisher.port)
        await publisher.subscriber(TOPIC)
        sent = [(TOPIC, number.to_bytes(8, "big"), bytes(8), bytes(number * 37)) for number in range(300)]
        for message in sent:
            await publisher.publish((b"other", *message[1:]))
            await publisher.publish(message)
        assert [await subscriber.next() for _ in sent] == sent
        subscriber.transport.close()


@pytest.mark.req("ZMTP-12")
async def test_a_plain_libzmq_pub_socket_serves_us() -> None:
    async with fake.RealPublisher(zmq.PUB) as publisher:
        subscriber = await subscribe(publisher.port)
        received = asyncio.ensure_future(subscriber.next())
        while not received.done():  # a PUB does not tell when it has taken the subscription
            await publisher.publish(SAMPLE)
            await asyncio.wait([received], timeout=0.01)
        assert received.result() == SAMPLE
        subscriber.transport.close()


async def test_libzmq_with_heartbeats_keeps_us_connected() -> None:
    async with fake.RealPublisher(zmq.XPUB, heartbeat_ms=20) as publisher:
        subscriber = await subscribe(publisher.port)
        await publisher.subscriber(TOPIC)
        monitor = publisher.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        assert not await monitor.poll(300)
        await publisher.publish(SAMPLE)
        assert await subscriber.next() == SAMPLE
        subscriber.transport.close()
        publisher.socket.disable_monitor()
        monitor.close(0)


@pytest.mark.req("ZMTP-05", "LOAD-13")
async def test_libzmq_message_of_five_frames_closes_the_connection() -> None:
    async with fake.RealPublisher() as publisher:
        subscriber = await subscribe(publisher.port)
        await publisher.subscriber(TOPIC)
        await publisher.publish(SAMPLE[:2])
        await publisher.publish((*SAMPLE, b"fifth"))
        assert await subscriber.next() == SAMPLE[:2]
        refused = await subscriber.next()
        assert isinstance(refused, ZmtpRefused) and refused.reason is ZmtpReason.TOO_MANY_FRAMES
        assert await subscriber.next() is None


async def test_fake_publisher_sees_our_handshake_and_pongs() -> None:
    async with fake.FakePublisher() as publisher:
        subscriber = await subscribe(publisher.port)
        session = await publisher.subscriber(TOPIC)
        assert session.greeting == fake.greeting_bytes()
        assert session.ready == fake.ready_bytes(b"SUB")
        assert session.subscription_frames == [b"\x00\x0b\x01kv_metrics"]
        session.ping(b"context")
        assert publisher.publish(SAMPLE) == 1
        assert await subscriber.next() == SAMPLE
        await publisher.until(lambda: session.pongs == [b"context"])
        session.cut()
        assert await subscriber.next() is None


MISBEHAVIOURS = {
    "PLAIN": (fake.PLAIN, ZmtpReason.MECHANISM),
    "OLD_VERSION": (fake.OLD_VERSION, ZmtpReason.VERSION),
    "WRONG_TYPE": (fake.WRONG_TYPE, ZmtpReason.SOCKET_TYPE),
    "GIANT_READY": (fake.GIANT_READY, ZmtpReason.COMMAND_OVERSIZED),
    "ERROR_COMMAND": (fake.ERROR_COMMAND, ZmtpReason.PEER_ERROR),
    "HUGE_FRAME": (fake.HUGE_FRAME, ZmtpReason.FRAME_OVERSIZED),
    "ENDLESS_MULTIPART": (fake.ENDLESS_MULTIPART, ZmtpReason.TOO_MANY_FRAMES),
    "ENDLESS_BODY": (fake.ENDLESS_BODY, ZmtpReason.FRAME_OVERSIZED),
}


@pytest.mark.req("ZMTP-02", "ZMTP-04")
@pytest.mark.parametrize("name", MISBEHAVIOURS)
async def test_misbehaving_publisher_is_refused_and_hung_up_on(name: str) -> None:
    script, reason = MISBEHAVIOURS[name]
    async with fake.FakePublisher(script) as publisher:
        subscriber = await subscribe(publisher.port)
        refused = await subscriber.next()
        assert isinstance(refused, ZmtpRefused) and refused.reason is reason
        assert await subscriber.next() is None
        assert subscriber.machine.buffered_bytes == 2624


@pytest.mark.parametrize("script", [fake.SHORT_GREETING, fake.CUT_MID_FRAME], ids=["greeting", "frame"])
async def test_publisher_that_is_cut_short_is_no_violation(script: fake.Script) -> None:
    async with fake.FakePublisher(script) as publisher:
        subscriber = await subscribe(publisher.port)
        assert await subscriber.next() is None
        assert subscriber.machine.reason is None
        assert not subscriber.machine.is_between_messages
