"""`make run`: a real mock fleet, Picklog before it, some chats through it, and what to try next.

Prints exactly one line `router http://127.0.0.1:PORT` once the router is ready, and writes the
addresses to `endpoints.json`. Everything it writes is under the run directory; the log of the run
before is kept beside the new one as `data.before`. Ends all it started when it ends.

Releases of Dynamo that announce the machine's primary address run, with the router, in a network
namespace that has loopback alone; a bridge carries the router's and the frontend's port outside.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import string
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.demo import chats, fleet_plan, install_dynamo, loopback
from deploy.demo.addresses import NoFreePort, first_free_port, free_port, get_json, listening_ports
from deploy.demo.chats import Chat
from deploy.demo.children import Child, ChildFailed, Nursery
from deploy.demo.fleet import Fleet, FleetFailed
from deploy.demo.fleet_plan import AGGREGATED_MODEL, DEMO_FOLDER, PAIRED_MODEL
from deploy.demo.install_dynamo import InstallFailed
from deploy.demo.narration import pin_words, shortened, what_next, why_words
from deploy.demo.pins import PINNED_FILES, pins_of
from deploy.demo.prefix_show import NotTakenUp, PrefixShow

PORT_FIRST = 8080
ROUTER_READY_S_MAX = 60.0
EXPLAIN_S_MAX = 60.0


class DemoFailed(RuntimeError):
    """The demo cannot go on; says why."""


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP came before the demo was up."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _parse(argv)
    ended = threading.Event()
    try:
        with _signals_raise(), _only_one(options.run_dir):
            return Demo(options).run(ended)
    except (DemoFailed, FleetFailed, ChildFailed, InstallFailed, NoFreePort, NotTakenUp) as problem:
        print(f"demo: {problem}", file=sys.stderr, flush=True)
        return 1
    except Interrupted:
        return 130


class Demo:
    """One run, from nothing to the last goodbye."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.once: bool = options.once
        self.release: str = options.release
        self.run_dir: Path = options.run_dir.resolve()
        self.picklog: Path = options.picklog
        self.router_port = first_free_port(options.port)
        self.frontend_port = free_port()
        self.data_dir = self.run_dir / "data"
        self._nursery = Nursery()

    @property
    def router(self) -> str:
        return f"http://127.0.0.1:{self.router_port}"

    def run(self, ended: threading.Event) -> int:
        install_dynamo.install(self.release)
        self._clear_run_dir()
        bridges = self._stay_on_loopback()
        plan = fleet_plan.demo_plan(frontend_port=self.frontend_port)
        say(f"starting a Dynamo {self.release} mock fleet and Picklog before it ...")
        try:
            with Fleet(plan, self.run_dir / "fleet", release=self.release) as fleet:
                self._start_router(fleet)
                print(f"router {self.router}", flush=True)
                workers = fleet.workers()
                self._write_endpoints(fleet, workers)
                say(f"{len(workers)} workers, ready {fleet.ready_after_s:.1f} s after their start:")
                for row in workers:
                    say(f"  {row['name']:<10} pid {row['pid']:<8} serves {row['model']}")
                say("(mock workers answer with random words of a tiny vocabulary)")
                say(f"(prefix-aware picks are on; reviewed and pinned: {' and '.join(PINNED_FILES)})")
                failed = self._send_chats(workers) + self._show_prefixes(fleet, workers)
                if not self.once:
                    self._say_what_next(workers)
                    return self._stay(fleet, ended)
                self._end_router()
                return 1 if self._verify() or failed else 0
        finally:
            self._nursery.close(patience_s=10)
            for bridge in bridges:
                bridge.close()

    # bringing it up

    def _clear_run_dir(self) -> None:
        before = self.run_dir / "data.before"
        if self.data_dir.exists():
            shutil.rmtree(before, ignore_errors=True)
            self.data_dir.rename(before)
        shutil.rmtree(self.run_dir / "fleet", ignore_errors=True)
        for name in ("endpoints.json", "router.log"):
            (self.run_dir / name).unlink(missing_ok=True)

    def _stay_on_loopback(self) -> list[loopback.Bridge]:
        """For a release that would announce another address: go where there is none."""
        if fleet_plan.announces_loopback(self.release) or loopback.is_only_loopback():
            return []
        ports = (self.router_port, self.frontend_port)
        listeners = [socket.create_server(("127.0.0.1", port)) for port in ports]
        try:
            loopback.enter()
        except loopback.NoNamespace as problem:
            for listener in listeners:
                listener.close()
            say(f"{problem}: Dynamo {self.release} announces the primary address for its events")
            return []
        return [loopback.Bridge(listener, port) for listener, port in zip(listeners, ports, strict=True)]

    def _start_router(self, fleet: Fleet) -> None:
        config = self.run_dir / "config.yaml"
        config.write_text(demo_config(fleet, self.router_port))
        argv = [str(self.picklog), "serve", "-c", str(config), "--data", str(self.data_dir)]
        log = self.run_dir / "router.log"
        router = self._nursery.add(Child("router", argv, dict(os.environ), log, Path.cwd()))
        self._nursery.start("router")
        deadline = time.monotonic() + ROUTER_READY_S_MAX
        models = set(fleet.plan.models())
        while not (
            self._router_listens(router) and _is_ready(self.router) and models <= _listed_models(self.router)
        ):
            if router.has_failed():
                raise DemoFailed(
                    f"the router ended with status {router.exit_status}; the end of {log}:\n{router.tail()}"
                )
            if time.monotonic() > deadline:
                raise DemoFailed(
                    f"the router is not ready after {ROUTER_READY_S_MAX:.0f} s: {_readiness(self.router)}; "
                    f"the end of {log}:\n{router.tail()}"
                )
            time.sleep(0.1)

    def _router_listens(self, router: Child) -> bool:
        """Whether it is ours that answers: another demo may have taken the port while the fleet came up."""
        return router.pid is not None and self.router_port in listening_ports(router.pid)

    def _write_endpoints(self, fleet: Fleet, workers: Sequence[Mapping[str, Any]]) -> None:
        document = {
            "router": self.router,
            "frontend": fleet.frontend_url(),
            "models": fleet.plan.models(),
            "workers": [{key: row[key] for key in ("name", "pid", "instance_id")} for row in workers],
        }
        path = self.run_dir / "endpoints.json"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(document, indent=1) + "\n")
        temporary.replace(path)

    # showing what it does

    def _send_chats(self, workers: Sequence[Mapping[str, Any]]) -> int:
        """Send the demo's chats; returns how many did not go as picked."""
        names = {row["instance_id"]: str(row["name"]) for row in workers}
        failed = 0
        for chat in chats.demo_chats((PAIRED_MODEL, AGGREGATED_MODEL)):
            answer = chats.send(self.router, chat)
            verdict = chats.judge(answer, is_paired=chat.model == PAIRED_MODEL)
            way = "streamed" if chat.streamed else "buffered"
            say("")
            say(f"{chat.identifier}  {chat.model}, {way}: {shortened(chat.text)}")
            if verdict.complaint:
                failed += 1
                say(f"  FAILED  {verdict.complaint}")
                continue
            say(f"  answer  {shortened(answer.text)}")
            pins = [pin for pin in (verdict.prefill, verdict.decode) if pin is not None]
            say("  pick    " + "\n     then ".join(pin_words(pin, names) for pin in pins))
            say("          and the frontend agrees")
            say("  why     " + self._why(chat).replace("; ", ";\n          "))
        total = len(chats.demo_chats((PAIRED_MODEL, AGGREGATED_MODEL)))
        say("")
        say(f"{total - failed} of {total} chats were answered by the picked workers")
        return failed

    def _show_prefixes(self, fleet: Fleet, workers: Sequence[Mapping[str, Any]]) -> int:
        """Conversations with and without prefix-aware picks; returns how many chats went wrong."""
        names = {row["instance_id"]: str(row["name"]) for row in workers}
        config = self.run_dir / "config.yaml"

        def turn_kv(is_on: bool) -> None:
            temporary = config.with_suffix(".tmp")
            temporary.write_text(demo_config(fleet, self.router_port, is_kv_enabled=is_on))
            temporary.replace(config)
            say(f"{_shown(config)} now says dynamo.kv.enabled: {str(is_on).lower()} ...")

        return PrefixShow(self.router, names, turn_kv, say).run()

    def _why(self, chat: Chat) -> str:
        result = self._replay("explain", chat.identifier, "--json")
        if result.returncode != 0:
            return f"not explained: {(result.stderr or result.stdout).strip()[:300]}"
        try:
            return why_words(json.loads(result.stdout))
        except ValueError:
            return "not explained: no JSON document came"

    def _verify(self) -> bool:
        """Repeat every pick from the log; True when something came out differently."""
        result = self._replay("verify", "--json")
        try:
            found = json.loads(result.stdout)
            say(
                f"picklog replay verify: {found['picks']} picks, {found['equal']} equal, "
                f"{found['different']} different, {found['unverifiable']} unverifiable"
            )
        except (ValueError, KeyError):
            say(f"picklog replay verify failed: {(result.stderr or result.stdout).strip()[:300]}")
        say(f"the log stays in {_shown(self.data_dir)}: picklog replay ... --log {_shown(self.data_dir)}")
        return result.returncode != 0

    def _replay(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.picklog), "replay", *words, "--log", str(self.data_dir)]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=EXPLAIN_S_MAX, check=False)
        except (OSError, subprocess.TimeoutExpired) as problem:
            return subprocess.CompletedProcess(command, 3, "", str(problem))

    def _say_what_next(self, workers: Sequence[Mapping[str, Any]]) -> None:
        victim = next(row for row in workers if row["role"] == "decode")
        say(what_next(self.router, _shown(self.picklog), _shown(self.data_dir), PAIRED_MODEL, victim))

    def _stay(self, fleet: Fleet, ended: threading.Event) -> int:
        _signals_set(ended)
        gone: set[str] = set()
        while not ended.wait(0.5):
            if self._nursery["router"].has_failed():
                raise DemoFailed(f"the router ended:\n{self._nursery['router'].tail()}")
            for name in (*fleet.worker_names(), *fleet.frontend_urls()):
                if name not in gone and fleet.pid(name) is None:
                    gone.add(name)
                    say(f"{name} has ended")
        say("ending the router and the fleet ...")
        self._end_router()
        return 0

    def _end_router(self) -> None:
        status = self._nursery.end("router", signal.SIGTERM, patience_s=20)
        if status not in (0, 130, 143, -signal.SIGTERM):
            say(f"the router ended with status {status}; its log is {_shown(self.run_dir / 'router.log')}")


def demo_config(fleet: Fleet, router_port: int, *, is_kv_enabled: bool = True) -> str:
    """The text of `config.yaml` with this run's addresses and the checksums of the tiny model's files."""
    template = string.Template((DEMO_FOLDER / "config.yaml").read_text().split("\n\n", 1)[1])
    networks = '["127.0.0.0/8"]' if _is_local(fleet.release) else "null"
    return template.substitute(
        ROUTER_PORT=router_port,
        FRONTEND_URL=fleet.frontend_url(),
        MODELS=", ".join(fleet.plan.models()),
        FILE_STORE=fleet.file_store,
        ALLOWED_NETWORKS=networks,
        KV_ENABLED=str(is_kv_enabled).lower(),
        PINS="\n".join(f'      - "{pin}"' for pin in pins_of()),
    )


def say(line: str) -> None:
    print(line, flush=True)


def _is_local(release: str) -> bool:
    return fleet_plan.announces_loopback(release) or loopback.is_only_loopback()


def _is_ready(router: str) -> bool:
    try:
        get_json(f"{router}/ready")
    except (OSError, ValueError):
        return False
    return True


def _readiness(router: str) -> str:
    try:
        return json.dumps(get_json(f"{router}/ready"))
    except (OSError, ValueError) as problem:
        return str(problem)


def _listed_models(router: str) -> set[str]:
    try:
        return {str(row["id"]) for row in get_json(f"{router}/v1/models")["data"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _shown(path: Path) -> str:
    """Relative to where the reader stands, when it lies below."""
    with contextlib.suppress(ValueError):
        return str(path.absolute().relative_to(Path.cwd()))
    return str(path)


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # one is enough; what was started is being ended
        raise Interrupted

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    yield


def _signals_set(ended: threading.Event) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())


@contextlib.contextmanager
def _only_one(run_dir: Path) -> Iterator[None]:
    """Two runs in one directory would take each other's files away."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise DemoFailed(f"a demo runs in {run_dir} already (pid {lock.read().strip()})") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.demo.run", description=__doc__.splitlines()[0])
    parser.add_argument("--run-dir", type=Path, default=Path(".run"))
    parser.add_argument("--release", default=fleet_plan.DEFAULT_RELEASE, help="an ai-dynamo release")
    parser.add_argument("--port", type=int, default=PORT_FIRST, help="first port tried for the router")
    parser.add_argument("--once", action="store_true", help="send the chats, verify, end")
    default = Path(sys.executable).absolute().parent / "picklog"
    parser.add_argument("--picklog", type=Path, default=default, help="the console script")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
