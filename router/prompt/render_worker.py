"""The process that runs what the fleet wrote: templates and tokenizers, one job at a time.

It is started by `render_process` with one socket and ends when that closes. It has no
other file, no right to open one for writing or to make a bigger one, a ceiling on memory, and
for each job timers whose signals nobody handles: CPU_S of processor time and WALL_S of time,
then the kernel ends it, whatever a loop in a template or a regular expression is doing and
whether or not its router still lives. Nothing is kept between jobs but what was compiled.

A job's failure is an answer; what cannot be answered (no memory, a panic) ends the process,
and the router starts another.

Sources: requirement rows RND-04..06, ART-16; decision 61.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from projections.bounds import (
    ARTIFACT_BYTES_MAX,
    PROMPT_TEXT_BYTES_MAX,
    PROMPT_TOKENS_MAX,
    RENDER_CPU_S_MAX,
    RENDER_FRAME_BYTES_MAX,
)
from router.prompt.chat_template import ChatTemplate, Engine, TemplateFailed, template_texts
from router.prompt.message_shape import (
    CannotContinue,
    Messages,
    TemplateTraits,
    cut_at_mark,
    mark_end,
    shaped,
    traits_of,
)
from router.prompt.render_wire import (
    LENGTH_BYTES,
    RENDER_HEAD,
    Frame,
    FrameBroken,
    Kind,
    RenderFlag,
    frame_of,
    length_of,
    prefix_of,
)
from router.prompt.segment_encoder import SegmentEncoder, TokenizerRefused, plan_json
from router.prompt.simple_chat import unpacked

LIBRARIES: Final = ("jinja2.ext", "jinja2.sandbox", "minijinja", "tokenizers")
TEMPLATES_KEPT: Final = 32
TOKENIZERS_KEPT: Final = 4
FILES_BYTES_MAX: Final = 2 * ARTIFACT_BYTES_MAX + RENDER_FRAME_BYTES_MAX  # a frame that brings files
LOAD_S: Final = 30.0  # of a tokenizer, in both kinds of time
WALL_S: Final = 3.0  # a little more than the router waits: it ends the job, this ends an orphan's
GROUP_NICENESS: Final = Path("/proc/self/autogroup")
GROUP_TRIES: Final = 10
GROUP_PAUSE_S: Final = 0.12
_FILES_OPEN: Final = 16  # descriptors; libraries load nothing any more
_NO_NEW_PRIVILEGES: Final = 38  # PR_SET_NO_NEW_PRIVS
_PROBE_TOOLS: Final = orjson.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "probe",
                "description": "",
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ]
)


class _Model(NamedTuple):
    """A compiled template and what it takes, without and with tools."""

    template: ChatTemplate
    plain: TemplateTraits
    with_tools: TemplateTraits


class Jobs:
    """What the process can do. Each job is a frame and its answer (kind, head, body)."""

    def __init__(self) -> None:
        self._models: OrderedDict[str, _Model] = OrderedDict()
        self._encoders: OrderedDict[str, SegmentEncoder] = OrderedDict()

    def run(self, frame: Frame) -> tuple[Kind, bytes, bytes]:
        """Do a job. Raises MemoryError, and what a library should not raise."""
        try:
            return self._JOBS[frame.kind](self, frame)
        except (TemplateFailed, CannotContinue, TokenizerRefused) as problem:
            return Kind.FAILED, str(problem).encode("ascii", "replace")[:200], b""

    def _template(self, frame: Frame) -> tuple[Kind, bytes, bytes]:
        head = orjson.loads(frame.head)
        body, config_bytes = frame.body, head["config"]
        split = config_bytes or 0
        config = body[:split] if config_bytes is not None else None
        own = body[split:] if head["template"] is not None else None
        template = ChatTemplate(Engine(head["engine"]), template_texts(config, own))
        texts = template.texts
        model = _Model(
            template,
            traits_of(texts.default, _renders(template, b"")),
            traits_of(texts.tool_use, _renders(template, _PROBE_TOOLS)),
        )
        _keep(self._models, head["key"], model, TEMPLATES_KEPT)
        return Kind.DONE, b"", b""

    def _render(self, frame: Frame) -> tuple[Kind, bytes, bytes]:
        flags, messages_bytes, tools_bytes = RENDER_HEAD.unpack_from(frame.head)
        model = _kept(self._models, frame.head[RENDER_HEAD.size :].decode())
        if model is None:
            return Kind.UNKNOWN, b"", b""
        split = messages_bytes + tools_bytes
        body = memoryview(frame.body)
        given, tools = body[:messages_bytes], frame.body[messages_bytes:split]
        traits = model.with_tools if tools else model.plain
        continues = bool(flags & RenderFlag.CONTINUES)
        messages = unpacked(given) if flags & RenderFlag.IS_SIMPLE else bytes(given)
        if continues or not (flags & RenderFlag.IS_PLAIN and traits.takes_plain):
            parsed = orjson.loads(messages) if isinstance(messages, bytes) else messages.messages()
            if continues:
                mark_end(parsed)
            messages = orjson.dumps(shaped(parsed, traits))
        variables = orjson.loads(frame.body[split:])
        text = model.template.render(messages, tools, variables, bool(flags & RenderFlag.ADDS_PROMPT))
        if continues:
            text = cut_at_mark(text)
        data = text.encode("utf-8", "replace")
        if len(data) > PROMPT_TEXT_BYTES_MAX:
            return Kind.TOO_LARGE, b"", b""
        return Kind.DONE, b"", data

    def _tokenizer(self, frame: Frame) -> tuple[Kind, bytes, bytes]:
        encoder = SegmentEncoder(frame.body)
        _keep(self._encoders, frame.head.decode(), encoder, TOKENIZERS_KEPT)
        return Kind.DONE, b"", plan_json(encoder.plan)

    def _encode(self, frame: Frame) -> tuple[Kind, bytes, bytes]:
        encoder = _kept(self._encoders, frame.head.decode())
        if encoder is None:
            return Kind.UNKNOWN, b"", b""
        encoded = encoder.encode(orjson.loads(frame.body))
        if len(encoded.tokens) > 4 * PROMPT_TOKENS_MAX:
            return Kind.TOO_LARGE, b"", b""
        return Kind.DONE, encoded.counts.tobytes(), encoded.tokens

    _JOBS: Final[dict[Kind, Callable[[Jobs, Frame], tuple[Kind, bytes, bytes]]]] = {
        Kind.TEMPLATE: _template,
        Kind.RENDER: _render,
        Kind.TOKENIZER: _tokenizer,
        Kind.ENCODE: _encode,
    }


def _renders(template: ChatTemplate, tools: bytes) -> Callable[[Messages, bool], str | None]:
    def render(messages: Messages, adds_generation_prompt: bool) -> str | None:
        try:
            return template.render(orjson.dumps(messages), tools, {}, adds_generation_prompt)
        except TemplateFailed:
            return None

    return render


def _keep(kept: OrderedDict[str, Any], key: str, value: Any, limit: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > limit:
        kept.popitem(last=False)


def _kept(kept: OrderedDict[str, Any], key: str) -> Any:
    value = kept.get(key)
    if value is not None:
        kept.move_to_end(key)
    return value


# the process


def main(descriptor: int, memory_bytes: int, niceness: int) -> None:
    """Serve the socket until it closes.

    memory_bytes: ceiling of the address space. niceness: how far others go first.
    """
    with socket.socket(fileno=descriptor) as wire:
        _load_libraries()
        give_way(niceness)
        confine(memory_bytes)
        jobs = Jobs()
        while (frame := _received(wire)) is not None:
            limit_time(LOAD_S if frame.kind is Kind.TOKENIZER else None)
            try:
                answer = jobs.run(frame)
            except MemoryError:
                answer = (Kind.FAILED, b"out of memory", b"")
                jobs = Jobs()
            del frame
            stop_timers()
            kind, head, body = answer
            try:
                _send(wire, prefix_of(kind, head, len(body)), body)
            except OSError:
                return  # the router is gone


def _load_libraries() -> None:
    """Import before the limits stand what is imported late for the sake of other processes."""
    for name in LIBRARIES:
        importlib.import_module(name)


def give_way(niceness: int) -> None:
    """Let others go first.

    Where each session is scheduled as a group, niceness compares within a session only, so the
    group is told the same. The kernel takes one such wish in 0.1 s.
    """
    os.nice(niceness)
    for _ in range(GROUP_TRIES if niceness else 0):
        try:
            GROUP_NICENESS.write_text(str(niceness))
            return
        except BlockingIOError:
            time.sleep(GROUP_PAUSE_S)
        except OSError:
            return  # there are no such groups


def confine(memory_bytes: int) -> None:
    """Give up for good what no job needs."""
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    os.chdir("/")
    for name, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _FILES_OPEN),
    ):
        resource.setrlimit(name, (limit, limit))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the router's to handle
    for number in (signal.SIGPROF, signal.SIGALRM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)  # which ends the process


def limit_time(load_s: float | None) -> None:
    """Start the timers of a job. load_s: of both kinds of time, in the place of the usual ones."""
    cpu_s = load_s or float(RENDER_CPU_S_MAX)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, load_s or WALL_S)
    used = resource.getrusage(resource.RUSAGE_SELF)
    ceiling = int(used.ru_utime + used.ru_stime + cpu_s) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (ceiling, resource.RLIM_INFINITY))


def stop_timers() -> None:
    """The job is done; waiting for the next one costs nothing."""
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _received(wire: socket.socket) -> Frame | None:
    """The next frame, None where the router is gone or sends what is none."""
    try:
        start = _exactly(wire, LENGTH_BYTES)
        return frame_of(memoryview(_exactly(wire, length_of(start, FILES_BYTES_MAX))))
    except (EOFError, FrameBroken, OSError):
        return None


def _send(wire: socket.socket, prefix: bytes, body: bytes) -> None:
    """Both at once, so that the router wakes up once for a usual answer."""
    sent = wire.sendmsg((prefix, body))
    if sent < len(prefix):
        wire.sendall(prefix[sent:])
    if sent < len(prefix) + len(body):
        wire.sendall(memoryview(body)[max(0, sent - len(prefix)) :])


def _exactly(wire: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, at = memoryview(data), 0
    while at < count:
        got = wire.recv_into(view[at:])
        if not got:
            raise EOFError
        at += got
    return data
