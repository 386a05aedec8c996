"""Child processes that never outlive the one who started them.

Each child leads a session of its own, so that Ctrl-C on the terminal reaches only the
starter, which then ends them in the order it wants. Should the starter die without a word
(kill -9), the kernel ends the child: between fork and the real program runs a short tether,
this file as a script, which asks for that (PR_SET_PDEATHSIG survives the exec).

The kernel sends that signal when the *thread* that forked ends, so every child of one
`Nursery` is started from one thread that lives as long as the nursery.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
TAIL_BYTES_MAX = 16_384


class ChildFailed(RuntimeError):
    """A child ended by itself, or never became what it was started for."""


class Child:
    """One program with its log file; may be started again after it ended.

    Names are unique within a nursery. `log` receives stdout and stderr, appended over restarts.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        cwd: Path,
    ) -> None:
        self.name = name
        self.argv = tuple(argv)
        self.env = dict(env)
        self.log = log
        self.cwd = cwd
        self.expected_to_end = False
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id while it runs, else None."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def exit_status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs or before its first start."""
        return self._process.poll() if self._process is not None else None

    def has_failed(self) -> bool:
        """True when it ended though nobody asked it to."""
        return self.exit_status is not None and not self.expected_to_end

    def send_signal(self, number: int) -> None:
        """Signal the child's whole group; nothing happens when it has ended already."""
        if self._process is None or self._process.poll() is not None:
            return
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log, at most TAIL_BYTES_MAX, each indented by four spaces."""
        try:
            with self.log.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - TAIL_BYTES_MAX))
                text = file.read().decode(errors="replace")
        except OSError:
            return "    (no log)"
        return "\n".join("    " + line for line in text.splitlines()[-lines:]) or "    (its log is empty)"

    def _spawn(self) -> None:
        if self.is_running:
            raise ChildFailed(f"{self.name} is running already (pid {self.pid})")
        tether = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid())]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*tether, *self.argv],
                env=self.env,
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.expected_to_end = False

    def _end(self, number: int, patience_s: float) -> int | None:
        if self._process is None:
            return None
        self.expected_to_end = True
        self.send_signal(number)
        self.send_signal(signal.SIGCONT)
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGKILL)
            self._process.wait()
        return self._process.returncode


class Nursery:
    """Starts and ends children; whatever still runs when it closes is ended."""

    def __init__(self) -> None:
        self._starter = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="nursery")
        self._children: dict[str, Child] = {}

    def __iter__(self) -> Iterator[Child]:
        return iter(tuple(self._children.values()))

    def __getitem__(self, name: str) -> Child:
        try:
            return self._children[name]
        except KeyError:
            known = ", ".join(self._children) or "none"
            raise ChildFailed(f"no process is called {name}; there are: {known}") from None

    def add(self, child: Child) -> Child:
        if child.name in self._children:
            raise ChildFailed(f"two processes are called {child.name}")
        self._children[child.name] = child
        return child

    def start(self, name: str) -> Child:
        child = self[name]
        self._starter.submit(child._spawn).result()
        return child

    def end(self, name: str, number: int = signal.SIGTERM, patience_s: float = 10.0) -> int | None:
        """Signal one child and wait; SIGKILL follows after `patience_s`. Returns its exit status."""
        return self[name]._end(number, patience_s)

    def failed(self) -> list[Child]:
        return [child for child in self._children.values() if child.has_failed()]

    def close(self, order: Sequence[str] = (), patience_s: float = 3.0) -> None:
        """End all: first those of `order` together, then the rest together."""
        first = [self[name] for name in order if name in self._children]
        rest = [child for child in self._children.values() if child not in first]
        for group in (first, rest):
            for child in group:
                child.expected_to_end = True
                child.send_signal(signal.SIGTERM)
                child.send_signal(signal.SIGCONT)
            deadline = time.monotonic() + patience_s
            for child in group:
                child._end(signal.SIGTERM, max(0.05, deadline - time.monotonic()))
        self._starter.shutdown(wait=False)


def run_tethered(arguments: Sequence[str]) -> int:
    """The tether: `PARENT_PID PROGRAM [ARG ...]`. Asks to die with the parent, then becomes PROGRAM."""
    parent, *argv = arguments
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return 1  # the parent died before the request was made: nobody would end us
    try:
        os.execvpe(argv[0], argv, os.environ)
    except OSError as problem:
        print(f"cannot start {argv[0]}: {problem.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(run_tethered(sys.argv[1:]))
