"""Publishers for tests: one written from RFC 23 that can misbehave, and a real libzmq one.

`FakePublisher` shares no code with our subscriber, so that a mistake in one does not hide in
the other. What it says is a `Script`, plain data; the named scripts below are the misbehaviours
that a subscriber must survive. It listens on 127.0.0.1 and a free port.

    async with FakePublisher() as publisher:
        ...connect to publisher.endpoint...
        session = await publisher.subscriber(b"kv_metrics")
        publisher.publish([b"kv_metrics", ...])

`RealPublisher` wraps pyzmq's XPUB (libzmq's PUB with the subscriptions shown).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

import zmq
import zmq.asyncio

PATIENCE_S = 20.0  # a loaded machine may be slow; a test that waits longer has failed


def greeting_bytes(major: int = 3, minor: int = 0, mechanism: bytes = b"NULL") -> bytes:
    """signature, version, mechanism, as-server, filler: 64 octets."""
    return (
        b"\xff" + b"\x00" * 8 + b"\x7f" + bytes([major, minor]) + mechanism.ljust(20, b"\x00") + b"\x00" * 32
    )


def frame_bytes(body: bytes, more: bool = False, command: bool = False, declared: int | None = None) -> bytes:
    """One frame; `declared` lies about its size and then always takes the long form."""
    flags = (1 if more else 0) + (4 if command else 0)
    if declared is None and len(body) <= 255:
        return bytes([flags, len(body)]) + body
    return bytes([flags + 2]) + (len(body) if declared is None else declared).to_bytes(8, "big") + body


def command_bytes(name: bytes, data: bytes = b"") -> bytes:
    """One command frame."""
    return frame_bytes(bytes([len(name)]) + name + data, command=True)


def ready_bytes(socket_type: bytes = b"PUB", padding: int = 0) -> bytes:
    """READY with a Socket-Type and, for giants, a property of `padding` bytes."""
    data = b"\x0bSocket-Type" + len(socket_type).to_bytes(4, "big") + socket_type
    if padding:
        data += b"\x06X-Size" + padding.to_bytes(4, "big") + b"x" * padding
    return command_bytes(b"READY", data)


def message_bytes(frames: Sequence[bytes]) -> bytes:
    """All frames of one message."""
    last = len(frames) - 1
    return b"".join(frame_bytes(body, more=place < last) for place, body in enumerate(frames))


@dataclass(frozen=True)
class Script:
    """What a fake publisher says on each connection, in this order."""

    greeting: bytes = greeting_bytes()
    greeting_gap_s: float = 0.0  # pause after each byte of the greeting
    ready: bytes = ready_bytes()
    after_subscription: bytes = b""
    endless: bytes = b""  # repeated until the subscriber closes
    then_close: bool = False


HONEST = Script()
SILENT = Script(greeting=b"", ready=b"")
SLOW_GREETING = Script(greeting_gap_s=0.5)
SHORT_GREETING = Script(greeting=greeting_bytes()[:20], ready=b"", then_close=True)
PLAIN = Script(greeting=greeting_bytes(mechanism=b"PLAIN"))
OLD_VERSION = Script(greeting=b"\xff" + b"\x00" * 8 + b"\x7f\x01\x02\x00", ready=b"")
WRONG_TYPE = Script(ready=ready_bytes(b"PUSH"))
GIANT_READY = Script(ready=ready_bytes(padding=100_000))
ERROR_COMMAND = Script(ready=command_bytes(b"ERROR", b"\x04busy"))
HUGE_FRAME = Script(
    after_subscription=frame_bytes(b"kv_metrics", more=True) + frame_bytes(b"", declared=2**63 - 1)
)
ENDLESS_MULTIPART = Script(endless=frame_bytes(b"", more=True))
ENDLESS_BODY = Script(
    after_subscription=b"".join(frame_bytes(b"\x00" * 8, more=True) for _ in range(3))
    + frame_bytes(b"", declared=2**40),
    endless=b"\x00" * 4096,
)
CUT_MID_FRAME = Script(
    after_subscription=frame_bytes(b"kv_metrics", more=True) + b"\x01\x08\x00\x00", then_close=True
)


@dataclass
class Session:
    """One connection of a subscriber, as the publisher sees it."""

    writer: asyncio.StreamWriter
    greeting: bytes = b""
    ready: bytes = b""
    subscriptions: list[bytes] = field(default_factory=list)
    subscription_frames: list[bytes] = field(default_factory=list)  # as they came, with their header
    pongs: list[bytes] = field(default_factory=list)
    bytes_sent: int = 0
    has_ended: bool = False

    def send(self, raw: bytes) -> None:
        """Write bytes as they are."""
        if not self.writer.is_closing():
            self.bytes_sent += len(raw)
            self.writer.write(raw)

    def ping(self, context: bytes = b"", ttl_ds: int = 0) -> None:
        """Send a PING; the answer lands in `pongs`."""
        self.send(command_bytes(b"PING", ttl_ds.to_bytes(2, "big") + context))

    def cut(self) -> None:
        """Drop the connection at once."""
        self.writer.transport.abort()


class FakePublisher:
    """A ZMTP PUB on loopback that follows a script. `sessions` keeps every connection it had."""

    def __init__(self, script: Script = HONEST, port: int = 0) -> None:
        """port: 0 for a free one; a former port to come back at the same address."""
        self.script = script
        self.port = port
        self.sessions: list[Session] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def endpoint(self) -> str:
        """What a channel record would advertise."""
        return f"tcp://127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakePublisher:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for session in self.sessions:
            session.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def publish(self, frames: Sequence[bytes]) -> int:
        """Send to every session whose subscription is a prefix of frame 0; returns how many."""
        matching = [
            session
            for session in self.sessions
            if not session.has_ended and any(frames[0].startswith(topic) for topic in session.subscriptions)
        ]
        for session in matching:
            session.send(message_bytes(frames))
        return len(matching)

    async def subscriber(self, topic: bytes, number: int = 1) -> Session:
        """Wait for the `number`-th session (from 1, ended ones count) that subscribed to `topic`."""

        def found() -> list[Session]:
            return [session for session in self.sessions if topic in session.subscriptions]

        await self.until(lambda: len(found()) >= number)
        return found()[number - 1]

    async def until(self, predicate) -> None:  # type: ignore[no-untyped-def]
        """Wait until a fact about the sessions holds; it is asked again after whatever arrives."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(predicate)

    async def _note(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        session = Session(writer)
        self.sessions.append(session)
        await self._note()
        try:
            await self._converse(session, reader)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # a cancelled session ends like any other; asyncio would log it as an error
        finally:
            session.has_ended = True
            writer.close()
            self._tasks.discard(task)
            await self._note()

    async def _converse(self, session: Session, reader: asyncio.StreamReader) -> None:
        script = self.script
        if script.greeting_gap_s:
            for octet in script.greeting:
                session.send(bytes([octet]))
                await asyncio.sleep(script.greeting_gap_s)
        else:
            session.send(script.greeting)
        session.greeting = await reader.readexactly(64)
        session.send(script.ready)
        while True:
            if script.then_close and not script.after_subscription:
                return
            flags, raw_size, body = await _read_frame(reader)
            if flags & 4:
                name, data = body[1 : 1 + body[0]], body[1 + body[0] :]
                if name == b"READY":
                    session.ready = bytes([flags]) + raw_size + body
                elif name == b"PONG":
                    session.pongs.append(data)
                elif name == b"SUBSCRIBE":
                    self._subscribe(session, data, bytes([flags]) + raw_size + body)
            elif body[:1] == b"\x01":
                self._subscribe(session, body[1:], bytes([flags]) + raw_size + body)
            await self._note()
            if session.subscriptions and (script.endless or script.then_close):
                while script.endless:
                    session.send(script.endless)
                    await session.writer.drain()
                    await asyncio.sleep(0)
                await session.writer.drain()
                return

    def _subscribe(self, session: Session, topic: bytes, raw: bytes) -> None:
        session.subscriptions.append(topic)
        session.subscription_frames.append(raw)
        session.send(self.script.after_subscription)


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Flags, the size as it came, body."""
    flags = (await reader.readexactly(1))[0]
    raw_size = await reader.readexactly(8 if flags & 2 else 1)
    return flags, raw_size, await reader.readexactly(int.from_bytes(raw_size, "big"))


class RealPublisher:
    """A libzmq publisher on loopback. XPUB by default, which tells of its subscribers.

    heartbeat_ms: libzmq then sends PING commands by itself and drops peers that stay silent.
    """

    def __init__(self, socket_type: int = zmq.XPUB, port: int = 0, heartbeat_ms: int = 0) -> None:
        self._context = zmq.asyncio.Context()
        self.socket = self._context.socket(socket_type)
        self.socket.linger = 0
        self.socket.sndhwm = 0
        if heartbeat_ms:
            self.socket.heartbeat_ivl = heartbeat_ms
        self.socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.endpoint: str = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(self.endpoint.rpartition(":")[2])

    async def __aenter__(self) -> RealPublisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close(0)
        self._context.destroy(0)

    async def subscriber(self, topic: bytes) -> None:
        """Wait until a peer has subscribed to `topic` (XPUB only)."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.socket.recv() != b"\x01" + topic:
                pass

    async def publish(self, frames: Sequence[bytes]) -> None:
        """Send one message to whoever is subscribed."""
        await self.socket.send_multipart(list(frames))
