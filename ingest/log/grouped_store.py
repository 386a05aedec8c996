"""Group commit: several threads commit to one log at once, and share its fdatasyncs.

While a commit is under way, others queue. When it has ended, the first of them takes all
that wait, as far as a batch may hold them, into one commit of the store: each caller's
records stand together, and it is told its own first offset. With nobody else there a
commit goes to the store at once, as without this.

A group holds commits of one kind, critical or not. The store refuses the second kind alone
when the disk is full, and may give up its reserve for the first; in a mixed group one
would be refused for the other's sake, or take room that is not meant for it. What is above
the ceiling of a batch is refused before it waits, so nobody fails for another's excess.
What the store reports of a group, each of its callers is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Event, Lock

from projections.bounds import COMMIT_BATCH_BYTES_MAX, COMMIT_BATCH_RECORDS_MAX
from projections.events.ports import CommitFailed, LogError, LogFailed, LogStore, RecordBatch


class GroupedStore:
    """LogStore that takes commits from any thread; reads are for one thread, as on the store it holds."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._lock = Lock()
        self._waiting: deque[_Commit] = deque()
        self._is_led = False  # whether a thread commits, or was told to

    @property
    def log_id(self) -> bytes:
        """See LogReader."""
        return self._store.log_id

    def first_offset(self) -> int:
        """See LogReader."""
        return self._store.first_offset()

    def end_offset(self) -> int:
        """See LogReader."""
        return self._store.end_offset()

    def read(self, start: int, bytes_max: int) -> list[RecordBatch]:
        """See LogReader."""
        return self._store.read(start, bytes_max)

    async def wait(self, offset: int, timeout_s: float) -> None:
        """See LogReader."""
        await self._store.wait(offset, timeout_s)

    def is_full(self) -> bool:
        """See LogStore."""
        return self._store.is_full()

    @property
    def waiting(self) -> int:
        """Commits that wait for the one under way."""
        return len(self._waiting)

    def commit(self, records: Sequence[bytes], critical: bool = True) -> int:
        """See LogStore. Blocks until the group is durable; raises what the store reports of it."""
        size = sum(map(len, records))
        if len(records) > COMMIT_BATCH_RECORDS_MAX or size > COMMIT_BATCH_BYTES_MAX:
            raise CommitFailed(f"a batch of {len(records)} records, {size} bytes: send smaller batches")
        if not records:
            return self._store.end_offset()
        mine = _Commit(records, size, critical)
        with self._lock:
            self._waiting.append(mine)
            leads, self._is_led = not self._is_led, True
        if not leads:
            mine.woken.wait()
        if mine.first is None and mine.problem is None:
            self._lead()
        if mine.first is not None:
            return mine.first
        assert mine.problem is not None
        raise mine.told() from mine.problem

    def _lead(self) -> None:
        """Commit the group that the first waiting one begins, then let the next one lead."""
        with self._lock:
            group = self._take()
        try:
            first = self._store.commit([one for commit in group for one in commit.records], group[0].critical)
            for commit in group:
                commit.first = first
                first += len(commit.records)
        except BaseException as problem:
            for commit in group:
                commit.problem = problem
            if not isinstance(problem, Exception):
                raise
        finally:
            with self._lock:
                self._is_led = bool(self._waiting)
                if self._waiting:
                    self._waiting[0].woken.set()
            for commit in group[1:]:
                commit.woken.set()

    def _take(self) -> list[_Commit]:
        """The first waiting commit, and all of its kind that fit into the batch with it."""
        group = [self._waiting.popleft()]
        records, size = len(group[0].records), group[0].size
        rest: deque[_Commit] = deque()
        while self._waiting:
            commit = self._waiting.popleft()
            fits = (
                commit.critical == group[0].critical
                and records + len(commit.records) <= COMMIT_BATCH_RECORDS_MAX
                and size + commit.size <= COMMIT_BATCH_BYTES_MAX
            )
            if fits:
                records, size = records + len(commit.records), size + commit.size
            (group if fits else rest).append(commit)
        self._waiting = rest
        return group


class _Commit:
    """One caller's batch on its way. woken: it is settled, or has to lead."""

    __slots__ = ("critical", "first", "problem", "records", "size", "woken")

    def __init__(self, records: Sequence[bytes], size: int, critical: bool) -> None:
        self.records = records
        self.size = size
        self.critical = critical
        self.first: int | None = None
        self.problem: BaseException | None = None
        self.woken = Event()

    def told(self) -> LogError:
        """The problem of the group as an error of this caller's own: threads share no traceback."""
        problem = self.problem
        if isinstance(problem, LogError):
            return type(problem)(*problem.args)
        return LogFailed(f"commit failed: {type(problem).__name__}: {problem}")
