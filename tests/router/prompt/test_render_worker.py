"""The process that renders: what it keeps, what it may do, and when the kernel ends it."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from array import array
from pathlib import Path

import orjson
import pytest

from projections.bounds import GIB, PROMPT_TOKENS_MAX
from router.prompt import render_worker
from router.prompt.render_process import REPOSITORY, WORKER, start_process
from router.prompt.render_wire import LENGTH_BYTES, Frame, Kind, frame_of, prefix_of
from router.prompt.render_worker import TEMPLATES_KEPT, TOKENIZERS_KEPT, Jobs
from tests.router.prompt.conversations import HELLO
from tests.router.prompt.prompts_of import TOKENIZER, descriptors_of, limits_of, until
from tests.router.prompt.rendering import load, render
from tests.router.prompt.tokenizer_files import plain_tokenizer, tokenizer_file


def encode(jobs: Jobs, key: str, *texts: str) -> Frame:
    segments = [(not place, text) for place, text in enumerate(texts)]
    return Frame(*jobs.run(Frame(Kind.ENCODE, key.encode(), orjson.dumps(segments))))


def test_what_is_not_loaded_is_unknown() -> None:
    jobs = Jobs()
    assert render(jobs, {"messages": [HELLO]}).kind is Kind.UNKNOWN
    assert encode(jobs, "k", "x").kind is Kind.UNKNOWN


def test_the_latest_templates_and_tokenizers_are_kept() -> None:
    jobs = Jobs()
    for number in range(TEMPLATES_KEPT + 1):
        load(jobs, "minijinja", f"T{number}", key=str(number))
    assert render(jobs, {"messages": [HELLO]}, "0").kind is Kind.UNKNOWN
    assert render(jobs, {"messages": [HELLO]}, "1").body == b"T1"
    for number in range(TOKENIZERS_KEPT + 1):
        jobs.run(Frame(Kind.TOKENIZER, str(number).encode(), tokenizer_file("word_piece")))
    assert encode(jobs, "0", "x").kind is Kind.UNKNOWN
    assert encode(jobs, "1", "x").kind is Kind.DONE


def test_segments_are_encoded_with_their_counts() -> None:
    jobs = Jobs()
    jobs.run(Frame(Kind.TOKENIZER, b"k", TOKENIZER))
    answer = encode(jobs, "k", "Hello there", "", "user\n")
    counts = array("I", answer.head).tolist()
    rows = [plain_tokenizer("byte_level").encode(text).ids for text in ("Hello there", "", "user\n")]
    assert counts == [len(row) for row in rows]
    assert array("I", answer.body).tolist() == [token for row in rows for token in row]


@pytest.mark.req("RND-06")
def test_a_rendered_text_has_at_most_a_mebibyte() -> None:
    jobs = Jobs()
    load(jobs, "minijinja", "{{ messages[0].content }}")
    text = "wörd " * 174_762 + "abcd"
    assert len(render(jobs, {"messages": [{**HELLO, "content": text}]}).body) == 1 << 20
    assert render(jobs, {"messages": [{**HELLO, "content": text + "x"}]}).kind is Kind.TOO_LARGE


@pytest.mark.req("RND-06")
def test_more_tokens_than_a_prompt_may_have_are_too_large() -> None:
    jobs = Jobs()
    jobs.run(Frame(Kind.TOKENIZER, b"k", TOKENIZER))
    fits, exceeds = ("\x00" * count for count in (PROMPT_TOKENS_MAX, PROMPT_TOKENS_MAX + 1))
    assert encode(jobs, "k", fits).kind is Kind.DONE
    assert encode(jobs, "k", exceeds).kind is Kind.TOO_LARGE


def test_a_failure_is_an_answer() -> None:
    jobs = Jobs()
    answer = Frame(*jobs.run(Frame(Kind.TOKENIZER, b"k", b"{}")))
    assert answer.kind is Kind.FAILED and answer.head


def asks(wire: socket.socket, kind: Kind, head: bytes, body: bytes) -> Frame:
    """One turn with a process, blocking."""
    wire.setblocking(True)
    wire.sendall(prefix_of(kind, head, len(body)) + body)
    return frame_of(wire.recv(1 << 20)[LENGTH_BYTES:])


@pytest.mark.req("ART-16")
def test_a_process_holds_one_socket_and_few_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PICKLOG_SECRET", "s3cret")
    process, wire = start_process(GIB)
    try:
        assert asks(wire, Kind.RENDER, b"\0" * 9, b"").kind is Kind.UNKNOWN  # it is up
        limits = limits_of(process.pid)
        assert limits["Max address space"] == str(GIB)
        assert limits["Max file size"] == limits["Max core file size"] == "0"
        assert limits["Max open files"] == "16"
        places = descriptors_of(process.pid)
        assert sum(place.startswith("socket:") for place in places) == 1
        assert not [place for place in places if not place.startswith(("socket:", "/dev/null"))]
        with open(f"/proc/{process.pid}/environ", "rb") as environment:
            assert b"s3cret" not in environment.read()
    finally:
        wire.close()
        process.wait(10)
    assert process.returncode == 0, "it ends when its router is gone"


@pytest.mark.req("RND-08")
def test_a_process_that_lets_others_go_first_says_so_for_itself_and_its_session() -> None:
    process, wire = start_process(GIB, 5)
    try:
        assert asks(wire, Kind.RENDER, b"\0" * 9, b"").kind is Kind.UNKNOWN  # it is up
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 5
        group = Path(f"/proc/{process.pid}/autogroup")
        told = group.read_text() if group.exists() else "nice 5"
        assert "nice 5" in told or not told.strip()
    finally:
        wire.close()
        process.wait(10)


@pytest.mark.parametrize(
    ("refusals", "tries"), [([], 1), ([BlockingIOError] * 2, 3), ([BlockingIOError] * 99, 10), ([OSError], 1)]
)
def test_the_group_is_told_again_while_the_kernel_takes_no_wish(
    refusals: list[type[OSError]], tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    class Group:
        @staticmethod
        def write_text(text: str) -> None:
            told.append(text)
            if len(told) <= len(refusals):
                raise refusals[len(told) - 1]

    monkeypatch.setattr(render_worker, "GROUP_NICENESS", Group)
    monkeypatch.setattr("os.nice", lambda niceness: told.clear())
    monkeypatch.setattr("time.sleep", lambda _: None)
    render_worker.give_way(7)
    assert told == ["7"] * tries
    render_worker.give_way(0)
    assert told == []


@pytest.mark.req("RND-04")
def test_the_kernel_ends_a_job_that_uses_too_much_processor_time() -> None:
    process, wire = start_process(GIB)
    template = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    head = orjson.dumps({"key": "k", "engine": "jinja2", "config": None, "template": len(template)})
    with wire:
        wire.setblocking(True)
        wire.sendall(prefix_of(Kind.TEMPLATE, head, len(template)) + template.encode())
        process.wait(10)
    assert process.returncode in (
        -signal.SIGPROF,
        -signal.SIGALRM,
    )  # the latter where others take the processor


@pytest.mark.req("RND-04")
async def test_an_orphan_that_loops_does_not_outlive_its_router() -> None:
    code = f"""
import os, orjson, signal
from router.prompt.render_process import start_process
from router.prompt.render_wire import Kind, prefix_of
process, wire = start_process({GIB})
text = b"{{% for a in range(99999) %}}{{% for b in range(99999) %}}{{% endfor %}}{{% endfor %}}"
head = orjson.dumps({{"key": "k", "engine": "jinja2", "config": None, "template": len(text)}})
wire.setblocking(True)
wire.sendall(prefix_of(Kind.TEMPLATE, head, len(text)) + text)
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    router = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=subprocess.PIPE, env={"PYTHONPATH": str(REPOSITORY)}
    )
    out, _ = await router.communicate()
    pid = int(out)
    assert router.returncode == -signal.SIGKILL

    def is_gone() -> bool:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as line:
                return WORKER.encode() not in line.read()
        except (FileNotFoundError, ProcessLookupError):
            return True

    await until(is_gone, 10)
    assert is_gone()


def test_this_process_keeps_its_own_limits() -> None:
    assert resource.getrlimit(resource.RLIMIT_AS)[0] != GIB


def test_a_router_that_leaves_before_the_answer_ends_the_process_quietly() -> None:
    process, wire = start_process(GIB)
    for _ in range(50):  # one that is read by nobody breaks the pipe, wherever the process stands
        wire.sendall(prefix_of(Kind.RENDER, b"\0" * 9, 0))
    wire.close()
    assert process.wait(30) == 0
