"""A PostgreSQL server of our own for live tests: on loopback, on a free port, in a folder that goes with it.

The server refuses to run as root, so for root it runs as the user `postgres` that its
package makes. It takes any password: what is tested is SQL, and nobody else can reach it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from sqlalchemy.engine import URL

from deploy.demo.addresses import free_port
from tests.live.peers import START_S_MAX, missing

GET_POSTGRESQL = "no PostgreSQL server on this machine: apt-get install postgresql"
USER = "picklog"


def programs() -> Path:
    """The folder of initdb and postgres; skips or fails where there is none."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not versions:
        missing(GET_POSTGRESQL)
    return versions[-1].parent


def server_user() -> str | None:
    """Whom the server runs as: ourselves, or another one for root; skips or fails where that is nobody."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam("postgres")
        subprocess.run(["true"], user="postgres", check=True)
    except (KeyError, OSError, subprocess.SubprocessError):
        missing("this root can run nothing as the user postgres, and PostgreSQL refuses root")
    return "postgres"


class PostgresServer:
    """One server; `url()` makes an empty database each time."""

    def __init__(self) -> None:
        self._bin = programs()
        self._user = server_user()
        self.port = free_port()
        self._made = 0
        self.folder = Path(tempfile.mkdtemp(prefix="picklog-postgresql-"))
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        data = str(self.folder / "data")
        options = ["--auth=trust", f"--username={USER}", "--encoding=UTF8", "--no-sync", "--locale=C"]
        self._run([str(self._bin / "initdb"), "-D", data, *options])

    def start(self) -> PostgresServer:
        """Start it, again or for the first time, and wait until it answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *words],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self.folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S_MAX
        while not self._is_ready():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError((self.folder / "server.log").read_text()[-2000:])
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGQUIT)  # its fastest way to take its children along
            self._process.wait()

    def url(self) -> URL:
        """An empty database."""
        self._made += 1
        name = f"audit_{self._made}"
        self._run([str(self._bin / "createdb"), *self._where(), name])
        return URL.create("postgresql+asyncpg", USER, None, "127.0.0.1", self.port, name)

    def close(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_ready(self) -> bool:
        ready = subprocess.run([str(self._bin / "pg_isready"), *self._where()[:4]], capture_output=True)
        return ready.returncode == 0

    def _where(self) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self.port), "-U", USER]

    def _run(self, words: list[str]) -> None:
        done = subprocess.run(words, user=self._user, cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{words[0]}: {done.stderr[-2000:]}")
