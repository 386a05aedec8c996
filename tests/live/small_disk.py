"""A file system of a few MiB that a test can fill to the brim: a tmpfs, mounted for nobody else.

It is mounted in a mount namespace of its own, which a child holds open; everybody reaches it
through `/proc/PID/root` of that child, and it ends with the child. Needs root, or unprivileged user
namespaces; a test that asks for one is skipped, or fails, where there are neither.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

from deploy.demo.children import Child, Nursery
from tests.live.peers import missing
from tests.live.router_process import until

GET_UNSHARE = "no unshare on this machine: apt-get install util-linux"
NO_MOUNT = "no mount namespace: needs root or unprivileged user namespaces"
HOLD = 'mount -t tmpfs -o "size=$2,mode=0700" small "$1" && echo mounted && exec sleep infinity'
_PIECE = bytes(1 << 16)


class SmallDisk:
    """`path` is its root. size_bytes: of the file system. folder: where it is mounted for the child alone."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        if shutil.which("unshare") is None:
            missing(GET_UNSHARE)
        folder.mkdir(parents=True)
        log = folder.parent / f"{folder.name}.log"
        unshare = ["unshare", "--mount"] + (["--map-root-user"] if os.geteuid() else [])
        argv = [*unshare, "sh", "-c", HOLD, "sh", str(folder), str(size_bytes)]
        self._nursery = Nursery()
        holder = self._nursery.add(Child("disk", argv, dict(os.environ), log, folder.parent))
        self._nursery.start("disk")
        until(lambda: not holder.is_running or "mounted" in log.read_text(), holder.tail)
        if not holder.is_running:
            self._nursery.close()
            missing(f"{NO_MOUNT}\n{holder.tail()}")
        self.path = Path(f"/proc/{holder.pid}/root{folder}")
        self._filler = self.path / "somebody-else"

    @property
    def free_bytes(self) -> int:
        """Room that is left."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        """Somebody else takes all that is left."""
        file = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            while os.write(file, _PIECE):
                pass
        except OSError as problem:
            if problem.errno != errno.ENOSPC:
                raise
        finally:
            os.close(file)

    def free(self) -> None:
        """Somebody else gives back what it took."""
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        """Everything on it is gone."""
        self._nursery.end("disk", signal.SIGKILL)
        self._nursery.close()
