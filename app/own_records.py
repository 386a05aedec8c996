"""What a process writes into its log: records of the owner and of its replica.

There is no writer before the log is claimed. Until then a record of the owner is not
written, because it may not be (decision 7), and a pick counts as lost, which its request is
told.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
from collections.abc import Callable
from typing import Any

from app.log_tail import monotonic_us
from app.observe import Observer
from app.version import VERSION
from ingest.log.appends import Importance, Receipt, Status
from ingest.log.log_writer import LogWriter
from projections.bounds import SECOND_US
from projections.events.control import Pinged, ReplicaStarted
from projections.events.kinds import KIND_NEWEST
from projections.fold_modes import FOLD_MODES
from router.picker.pick_flags import PICK_FLAGS

OnDone = Callable[[bool], None]
NAME_AGAIN_US = 5 * SECOND_US  # by then a ReplicaStarted has been read back, or was lost


class OwnRecords:
    """Appends for one process. `writer` is set once the claim stands."""

    def __init__(self, replica: bytes, observer: Observer, role: str) -> None:
        """role: as in `ReplicaStarted`."""
        self.replica = replica
        self._role = role
        self.writer: LogWriter | None = None
        self._observer = observer
        self._named_at: int | None = None

    def of_owner(self, fact: tuple[Any, ...]) -> None:
        """A record that only the owner writes."""
        if self.writer is not None:
            self.writer.append(fact)

    def ping(self, number: int, as_of: int, time: int, is_nameless: bool = False) -> None:
        """The ping that is read back.

        is_nameless: the log does not know who this is. If that was said a while ago it was lost, so it
        is said again: without it picks are made, and repeated, without this release's numbered
        behaviours, and nothing new is adopted as long as this process lives.
        """
        if self.writer is None:
            return
        if is_nameless and self._named_at is not None and monotonic_us() - self._named_at >= NAME_AGAIN_US:
            self.started(time)
        self.writer.append(Pinged(self.replica, number, as_of), time=time)

    def of_replica(self, fact: tuple[Any, ...], time: int, on_done: OnDone | None = None) -> None:
        """A pick, an end or a word of this replica. on_done: True once it is durable."""
        if self.writer is None:
            if on_done is not None:
                asyncio.get_running_loop().call_soon(on_done, False)
            return
        began = monotonic_us()

        def done(receipt: Receipt) -> None:
            durable = receipt.status is Status.ACKNOWLEDGED
            if durable:
                self._observer.appended(monotonic_us() - began)
            else:
                self._observer.append_lost()
            if on_done is not None:
                on_done(durable)

        self.writer.append(fact, importance=Importance.PICK, time=time, on_done=done)

    def started(self, time: int) -> None:
        """This process has begun: who it is and which records it can read."""
        self._named_at = monotonic_us()
        label = f"{socket.gethostname()}:{os.getpid()}"
        fact = ReplicaStarted(
            self.replica,
            label,
            self._role,
            VERSION,
            platform.python_version(),
            PICK_FLAGS,
            int(KIND_NEWEST),
            tuple(sorted(FOLD_MODES)),
        )
        self.of_replica(fact, time)
