"""Real peers for live tests: etcd servers and Dynamo fleets, and what to do where they are missing.

A missing peer skips the test with one line that says how to get it; with REQUIRE_LIVE=1 in the
environment it fails instead. All peers listen on loopback, on free ports below the ephemeral
range, keep their data in the folder given, and end with this process.

Every call blocks; a test that runs on an event loop calls them through `asyncio.to_thread`.
Only tests write to etcd: the product has no such call.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.demo import fleet_plan, install_dynamo, loopback
from deploy.demo.addresses import free_port
from deploy.demo.children import Child, Nursery
from deploy.demo.fleet import Fleet, FleetFailed
from deploy.demo.fleet_plan import FleetPlan
from tests.live.certificates import Identity

START_S_MAX = 30.0
TXN_OPERATIONS_MAX = 100

GET_ETCD = "no etcd on this machine: apt-get install etcd-server"
GET_DYNAMO = "Dynamo {release} is not installed: python -m deploy.demo.install_dynamo {release}"
GET_LOOPBACK = (
    "Dynamo {release} announces the primary address and this process is not in a namespace with "
    "loopback alone: python -m deploy.demo.loopback .venv/bin/pytest tests/live"
)


def is_live_required() -> bool:
    return os.environ.get("REQUIRE_LIVE", "") not in ("", "0")


def missing(reason: str) -> None:
    """Skip the running test, or fail it where live peers are required."""
    if is_live_required():
        pytest.fail(f"REQUIRE_LIVE: {reason}", pytrace=False)
    pytest.skip(reason)


def etcd_binary() -> str:
    """Path of etcd; skips or fails where there is none."""
    binary = shutil.which("etcd")
    if binary is None:
        missing(GET_ETCD)
    assert binary is not None
    return binary


def require_dynamo(release: str = fleet_plan.DEFAULT_RELEASE) -> Path:
    """The release's interpreter; skips or fails where it is missing or would leave loopback."""
    if not install_dynamo.is_installed(release):
        missing(GET_DYNAMO.format(release=release))
    if not fleet_plan.announces_loopback(release) and not loopback.is_only_loopback():
        missing(GET_LOOPBACK.format(release=release))
    return install_dynamo.python_of(release)


def start_fleet(plan: FleetPlan, run_dir: Path, **settings: Any) -> Fleet:
    """A fleet that is up. `settings` are those of `Fleet`; the caller closes it."""
    settings["python"] = require_dynamo(settings.get("release", fleet_plan.DEFAULT_RELEASE))
    return Fleet(plan, run_dir, **settings).up()


class EtcdRefused(RuntimeError):
    """etcd answered a test's call with an error; `status` is the HTTP status, the text etcd's own."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """Server certificate, the authority that clients must come from, and the test's own client."""

    ca: Path
    server: Identity
    client: Identity


class EtcdServer:
    """One etcd member on loopback that can be killed, frozen, wiped and restored.

    Its client port stays the same over restarts. Tests talk to it through the HTTP gateway.
    extra: further flags, e.g. `("--auth-token-ttl", "2")`.
    """

    def __init__(self, folder: Path, *, tls: EtcdTls | None = None, extra: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.tls = tls
        self._extra = extra
        folder.mkdir(parents=True, exist_ok=True)
        self._binary = etcd_binary()
        self.port = free_port()
        self._peer_port = free_port({self.port})
        self._nursery = Nursery()
        self._token: str | None = None
        self._add_child()

    def _add_child(self) -> None:
        scheme = "https" if self.tls else "http"
        peer_url = f"http://127.0.0.1:{self._peer_port}"
        argv = fleet_plan.etcd_argv(
            self._binary, self.data_dir, f"{scheme}://127.0.0.1:{self.port}", peer_url
        )
        if self.tls:
            argv += ["--cert-file", str(self.tls.server.certificate), "--key-file", str(self.tls.server.key)]
            argv += ["--client-cert-auth", "--trusted-ca-file", str(self.tls.ca)]
        env = {name: text for name, text in os.environ.items() if not name.startswith("ETCD")}
        self._nursery.add(Child("etcd", [*argv, *self._extra], env, self.folder / "etcd.log", self.folder))

    # its life

    @property
    def data_dir(self) -> Path:
        return self.folder / "data"

    @property
    def endpoint(self) -> str:
        """`http(s)://127.0.0.1:port`, as in the configuration's `endpoints`."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._nursery["etcd"].is_running

    def start(self) -> EtcdServer:
        """Start and wait until it answers."""
        child = self._nursery.start("etcd")
        deadline = time.monotonic() + START_S_MAX
        while not self._answers():
            if not child.is_running or time.monotonic() > deadline:
                raise FleetFailed(f"etcd does not answer; the end of {child.log}:\n{child.tail()}")
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        """SIGTERM and wait."""
        self._nursery.end("etcd", signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL and wait: connections are reset, the data stays."""
        self._nursery.end("etcd", signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: half open, connections stay and nothing is answered."""
        self._nursery["etcd"].send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._nursery["etcd"].send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Stop, forget everything and start anew on the same port, at revision 1."""
        self.kill()
        shutil.rmtree(self.data_dir)
        self._token = None
        self.start()

    def save(self) -> Path:
        """A copy of the data as it stands, for `restore`; the server is restarted for it."""
        copy = self.folder / f"saved-{self.revision()}"
        self.stop()
        shutil.copytree(self.data_dir, copy)
        self.start()
        return copy

    def restore(self, copy: Path) -> None:
        """Go back to a saved copy, on the same port: the revision is smaller than before."""
        self.kill()
        shutil.rmtree(self.data_dir)
        shutil.copytree(copy, self.data_dir)
        self.start()

    def close(self) -> None:
        self.thaw()
        self._nursery.close()

    # what tests write and read

    def put(self, key: str, value: str | bytes | Mapping[str, Any], lease: int | None = None) -> int:
        """Returns the revision. A mapping is written as JSON."""
        request: dict[str, Any] = {"key": _b64(key), "value": _b64(value)}
        if lease is not None:
            request["lease"] = str(lease)
        return _revision(self.call("kv/put", request))

    def put_many(self, pairs: Iterable[tuple[str, str | bytes | Mapping[str, Any]]]) -> int:
        """Put in transactions of TXN_OPERATIONS_MAX; returns the last revision."""
        revision, operations = 0, []
        for key, value in pairs:
            operations.append({"request_put": {"key": _b64(key), "value": _b64(value)}})
            if len(operations) == TXN_OPERATIONS_MAX:
                revision = _revision(self.call("kv/txn", {"success": operations}))
                operations = []
        if operations:
            revision = _revision(self.call("kv/txn", {"success": operations}))
        return revision

    def delete(self, key: str) -> int:
        return _revision(self.call("kv/deleterange", {"key": _b64(key)}))

    def delete_prefix(self, prefix: str) -> int:
        """One revision for all of them, as when a lease ends."""
        return _revision(self.call("kv/deleterange", _prefix(prefix)))

    def get_prefix(self, prefix: str) -> dict[str, str]:
        rows = self.call("kv/range", _prefix(prefix)).get("kvs", [])
        return {
            base64.b64decode(row["key"]).decode(): base64.b64decode(row.get("value", "")).decode()
            for row in rows
        }

    def revision(self) -> int:
        return _revision(self.call("kv/range", {"key": _b64("\0"), "count_only": True}))

    def compact(self, revision: int | None = None) -> int:
        """Forget all before `revision` (default: the newest); a watch from earlier is refused then."""
        wanted = self.revision() if revision is None else revision
        self.call("kv/compaction", {"revision": str(wanted), "physical": True})
        return wanted

    def grant_lease(self, ttl_s: int) -> int:
        return int(self.call("lease/grant", {"TTL": str(ttl_s)})["ID"])

    def revoke_lease(self, lease: int) -> None:
        """Delete everything put under the lease, in one revision."""
        self.call("lease/revoke", {"ID": str(lease)})

    def enable_auth(self, root_password: str = "root-secret") -> None:
        """Switch users on; the test goes on as root."""
        self.call("auth/user/add", {"name": "root", "password": root_password})
        self.call("auth/role/add", {"name": "root"})
        self.call("auth/user/grant", {"user": "root", "role": "root"})
        self.call("auth/enable", {})
        self.login("root", root_password)

    def login(self, user: str, password: str) -> None:
        """Calls from now on are this user's; call it again when etcd restarted."""
        self._token = None
        self._token = str(self.call("auth/authenticate", {"name": user, "password": password})["token"])

    def add_user(self, name: str, password: str, prefixes: Iterable[str], *, may: str = "READ") -> None:
        """A user that may READ, WRITE or READWRITE below the prefixes and nothing else."""
        self.call("auth/user/add", {"name": name, "password": password})
        self.call("auth/role/add", {"name": f"{name}-role"})
        for prefix in prefixes:
            permission = {**_prefix(prefix), "permType": may}
            self.call("auth/role/grant", {"name": f"{name}-role", "perm": permission})
        self.call("auth/user/grant", {"user": name, "role": f"{name}-role"})

    def remove_user(self, name: str) -> None:
        self.call("auth/user/delete", {"name": name})

    def change_password(self, name: str, password: str) -> None:
        self.call("auth/user/changepw", {"name": name, "password": password})

    def revoke_prefix(self, name: str, prefix: str) -> None:
        bounds = _prefix(prefix)
        self.call("auth/role/revoke", {"role": f"{name}-role", **bounds})

    def call(self, path: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """One call of the gateway, `/v3/PATH`. Raises EtcdRefused, or OSError when nobody answers."""
        post = urllib.request.Request(
            f"{self.endpoint}/v3/{path}", json.dumps(request).encode(), method="POST"
        )
        if self._token:
            post.add_header("Authorization", self._token)
        try:
            with self._opener().open(post, timeout=10) as answer:
                document: dict[str, Any] = json.load(answer)
                return document
        except urllib.error.HTTPError as refusal:
            raise EtcdRefused(refusal.code, refusal.read(4096).decode(errors="replace")) from None

    def _opener(self) -> urllib.request.OpenerDirector:
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self.tls:
            context = ssl.create_default_context(cafile=str(self.tls.ca))
            context.load_cert_chain(str(self.tls.client.certificate), str(self.tls.client.key))
            handlers.append(urllib.request.HTTPSHandler(context=context))
        return urllib.request.build_opener(*handlers)

    def _answers(self) -> bool:
        try:
            with self._opener().open(f"{self.endpoint}/health", timeout=1) as answer:
                return bool(json.load(answer).get("health") == "true")
        except (OSError, ValueError):
            return False


def _b64(value: str | bytes | Mapping[str, Any]) -> str:
    if isinstance(value, Mapping):
        value = json.dumps(value)
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def _prefix(prefix: str) -> dict[str, str]:
    """A prefix as etcd's half-open range."""
    start = prefix.encode()
    end = start[:-1] + bytes([start[-1] + 1])
    return {"key": _b64(start), "range_end": _b64(end)}


def _revision(answer: Mapping[str, Any]) -> int:
    return int(answer["header"].get("revision", 0))
