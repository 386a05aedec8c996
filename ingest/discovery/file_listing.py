"""Looks at the folders of Dynamo's file store: what appeared, changed, went; and bounded reads.

    <root>/v1/<bucket>/<rest of the key, every byte but ASCII letters and digits as %XX>

The owner of a record touches its file every few seconds; a file untouched for the store's
TTL is dead, whoever may still have it on disk. Nobody else tells us, so the age test is
applied here, in two ways. At first sight the file's age is judged by the wall clock. From
then on a touch is something that we see happen: a file whose time moved forward since the
last look was alive in between, whatever the clocks of its owner, of the file server and of
this machine say. A step of the wall clock therefore removes no worker.

Nothing is written, touched or deleted; access times stay where the system permits that.
Names that begin with a dot are files under construction. Links and other things that are
no regular files are never opened. One look visits at most ENTRIES_MAX entries of a bucket
and remembers at most FILES_MAX; known files beyond a cut are asked for by name.

All functions block; the shell runs them in a thread. One object serves one pass.
Sources: requirement rows FILE-01..03; wire contract, section 9.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ingest.discovery.settings import FileStore
from ingest.discovery.source import FoundKey, GoneKey, Watched
from ingest.wire.fleet_keys import BUCKETS, KeyRefused, key_of_file, relative_key
from projections.bounds import KEYS_PER_KEYSPACE_MAX, RECORD_VALUE_BYTES_MAX
from projections.events.discovery import Keyspace

FILES_MAX: Final = 2 * KEYS_PER_KEYSPACE_MAX  # remembered in one bucket
ENTRIES_MAX: Final = 8 * KEYS_PER_KEYSPACE_MAX  # visited in one bucket: it holds foreign files too
NAMESPACES_SEEN_MAX: Final = 64
_READ_BYTES: Final = 1 << 20
_OPEN_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(slots=True)
class StoreFile:
    """What is remembered of one file. Times in microseconds of the monotonic clock."""

    keyspace: Keyspace
    name: str
    watched: Watched
    key: bytes
    inode: int
    size: int
    mtime_ns: int
    dies_at_us: int
    is_alive: bool = False
    seen_in: int = 0


class Look(NamedTuple):
    """One look at all buckets. Both lists are in key order.

    number:  of the look, from 1; serves as revision.
    changed: files to read: new ones, revived ones, and those whose inode, size or time moved.
    gone:    keys whose file went or died.
    refused: names that are no keys, more than at the last look; by keyspace.
    cut:     buckets that hold more than was looked at.
    """

    number: int
    changed: tuple[StoreFile, ...]
    gone: tuple[tuple[Watched, GoneKey], ...]
    refused: tuple[tuple[Keyspace, int], ...]
    cut: tuple[Keyspace, ...]


class FileListing:
    """Repeated looks at one store for some prefixes.

    wall_us, monotonic_us: clocks, microseconds.
    """

    def __init__(
        self,
        store: FileStore,
        watched: Sequence[Watched],
        wall_us: Callable[[], int],
        monotonic_us: Callable[[], int],
    ) -> None:
        self._store = store
        self._watched: dict[Keyspace, list[Watched]] = {keyspace: [] for keyspace in Keyspace}
        for one in watched:
            self._watched[one.keyspace].append(one)
        self._wall_us = wall_us
        self._monotonic_us = monotonic_us
        self._files: dict[Keyspace, dict[str, StoreFile]] = {keyspace: {} for keyspace in Keyspace}
        self._refused = dict.fromkeys(Keyspace, 0)
        self._number = 0
        self._looked_at_us = 0
        self.namespaces: set[str] = set()  # of the instances seen in the last look

    def look(self) -> Look:
        """Visit the four buckets. Raises OSError; FileNotFoundError only for the root itself."""
        if not stat.S_ISDIR(os.stat(self._store.root).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "the store's root is no folder")
        self._number += 1
        self.namespaces = set()
        now_us, wall_us = self._monotonic_us(), self._wall_us()
        changed: list[StoreFile] = []
        gone: list[StoreFile] = []
        refused: list[tuple[Keyspace, int]] = []
        cut: list[Keyspace] = []
        for keyspace in Keyspace:
            found, names_refused, was_cut = self._visit(keyspace, now_us, wall_us)
            changed += found
            if was_cut:
                cut.append(keyspace)
                changed += self._ask_by_name(keyspace, now_us, wall_us)
            gone += self._unseen_or_dead(keyspace, now_us)
            if names_refused > self._refused[keyspace]:
                refused.append((keyspace, names_refused - self._refused[keyspace]))
            self._refused[keyspace] = names_refused
        self._looked_at_us = now_us
        changed.sort(key=_order)
        gone.sort(key=_order)
        return Look(
            self._number,
            tuple(changed),
            tuple((file.watched, GoneKey(file.key, self._number)) for file in gone),
            tuple(refused),
            tuple(cut),
        )

    def read(self, file: StoreFile) -> FoundKey | None:
        """The file's content now; value None above RECORD_VALUE_BYTES_MAX. None: it went meanwhile.

        Raises OSError for a file that cannot be read.
        """
        try:
            handle = _open(self._path(file.keyspace, file.name))
        except FileNotFoundError:
            return None
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return None
            if status.st_size > RECORD_VALUE_BYTES_MAX:
                return FoundKey(file.key, self._number, None, status.st_size)
            value = _read_up_to(handle, RECORD_VALUE_BYTES_MAX + 1)
        finally:
            os.close(handle)
        if len(value) > RECORD_VALUE_BYTES_MAX:
            return FoundKey(file.key, self._number, None, len(value))
        return FoundKey(file.key, self._number, value, len(value))

    # one bucket

    def _visit(self, keyspace: Keyspace, now_us: int, wall_us: int) -> tuple[list[StoreFile], int, bool]:
        """Files to read, names refused, whether the listing was cut."""
        changed: list[StoreFile] = []
        refused = entries = 0
        files = self._files[keyspace]
        try:
            listing = os.scandir(self._folder(keyspace))
        except FileNotFoundError:  # workers make the folders as they need them
            return changed, 0, False
        with listing:
            for entry in listing:
                entries += 1
                if entries > ENTRIES_MAX:
                    return changed, refused, True
                file = files.get(entry.name)
                if file is None:
                    placed = self._place(keyspace, entry.name)
                    if placed is None:
                        continue
                    if isinstance(placed, KeyRefused):
                        refused += 1
                        continue
                    if len(files) >= FILES_MAX:
                        return changed, refused, True
                    watched, key = placed
                    file = StoreFile(keyspace, entry.name, watched, key, -1, -1, -1, 0)
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if self._update(file, status, now_us, wall_us):
                    changed.append(file)
        return changed, refused, False

    def _place(self, keyspace: Keyspace, name: str) -> tuple[Watched, bytes] | KeyRefused | None:
        """The watched prefix and full key of a file name; None for files that are not ours."""
        key = key_of_file(keyspace, name)
        if key is None or isinstance(key, KeyRefused):
            return key
        if keyspace is Keyspace.INSTANCES and len(self.namespaces) < NAMESPACES_SEEN_MAX:
            self.namespaces.add(key[len(BUCKETS[keyspace]) + 1 :].partition("/")[0])
        for watched in self._watched[keyspace]:
            if relative_key(keyspace, watched.namespace, key) is not None:
                return watched, key.encode()
        return None

    def _update(self, file: StoreFile, status: os.stat_result, now_us: int, wall_us: int) -> bool:
        """Take over what a look saw; whether the file is to be read."""
        if not stat.S_ISREG(status.st_mode):
            return False
        age_us = max(0, wall_us - status.st_mtime_ns // 1000)
        is_new = file.seen_in == 0
        if is_new or status.st_mtime_ns < file.mtime_ns:
            file.dies_at_us = now_us + self._store.ttl_us - age_us
        elif status.st_mtime_ns > file.mtime_ns:  # touched since the last look: we saw it
            file.dies_at_us = now_us + self._store.ttl_us - min(age_us, now_us - self._looked_at_us)
        print_now = (status.st_ino, status.st_size, status.st_mtime_ns)
        is_other = print_now != (file.inode, file.size, file.mtime_ns)
        file.inode, file.size, file.mtime_ns = print_now
        file.seen_in = self._number
        was_alive, file.is_alive = file.is_alive, file.dies_at_us > now_us
        self._files[file.keyspace][file.name] = file
        if was_alive and not file.is_alive:
            file.is_alive = True  # `_unseen_or_dead` reports it
            return False
        return file.is_alive and (is_other or not was_alive)

    def _ask_by_name(self, keyspace: Keyspace, now_us: int, wall_us: int) -> list[StoreFile]:
        """Known files that a cut listing did not reach."""
        changed = []
        for file in self._files[keyspace].values():
            if file.seen_in != self._number:
                try:
                    status = os.lstat(self._path(keyspace, file.name))
                except FileNotFoundError:
                    continue
                if self._update(file, status, now_us, wall_us):
                    changed.append(file)
        return changed

    def _unseen_or_dead(self, keyspace: Keyspace, now_us: int) -> list[StoreFile]:
        gone = []
        files = self._files[keyspace]
        for file in list(files.values()):
            is_seen = file.seen_in == self._number
            if not is_seen:
                del files[file.name]
            if file.is_alive and not (is_seen and file.dies_at_us > now_us):
                file.is_alive = False
                gone.append(file)
        return gone

    def _folder(self, keyspace: Keyspace) -> str:
        return os.path.join(self._store.root, BUCKETS[keyspace])

    def _path(self, keyspace: Keyspace, name: str) -> str:
        return os.path.join(self._folder(keyspace), name)


def _order(file: StoreFile) -> tuple[int, str, bytes]:
    return file.keyspace, file.watched.namespace, file.key


def _open(path: str) -> int:
    """Open for reading without moving the access time, where the system lets us."""
    try:
        return os.open(path, _OPEN_FLAGS | os.O_NOATIME)
    except PermissionError:  # only a file's owner may do that
        return os.open(path, _OPEN_FLAGS)


def _read_up_to(handle: int, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    left = bytes_max
    while left > 0:
        part = os.read(handle, min(left, _READ_BYTES))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
