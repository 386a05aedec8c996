"""What a running process is asked about the past: one pick explained, the state at a mark.

Each question opens the log anew, as an offline command would, so that reading never shares
state with serving. Called in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.log_access import ClosingReader
from app.marks import Marks
from app.pick_index import PickIndex
from app.replay_steps import with_steps
from app.state_document import state_document
from projections.events.ports import CheckpointStore
from replay.explain import explain


class Lookups:
    """Asks the log of one process. open_reader: a new reader for each question."""

    def __init__(
        self, data: Path, checkpoints: CheckpointStore, open_reader: Callable[[], ClosingReader]
    ) -> None:
        self._data = data
        self._checkpoints = checkpoints
        self._open_reader = open_reader

    def explain(self, name: str) -> dict[str, Any]:
        """One pick. Raises PickNotFound, LogError."""
        with self._reader() as reader:
            index = PickIndex(self._data, reader)
            return explain(reader, self._states(), name, Marks(reader).time_text, index)

    def state(self, mark: str) -> dict[str, Any]:
        """The state at a mark. Raises MarkRefused, StateGone, LogError."""
        with self._reader() as reader:
            return state_document(reader, self._states(), mark)

    def _states(self) -> CheckpointStore:
        return with_steps(self._checkpoints, self._data)

    @contextmanager
    def _reader(self) -> Iterator[ClosingReader]:
        reader = self._open_reader()
        try:
            yield reader
        finally:
            reader.close()
