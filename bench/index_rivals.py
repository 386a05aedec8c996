"""The two indexes that bench.index compares, behind one interface: ours, and Dynamo's RadixTree in process.

Dynamo's is taken from the site-packages of `.venvs/dynamo-1.6.1` (see `deploy.demo.install_dynamo`), whose
Python must be of this one's version. What each gets is made ready before the clock starts: ours packed
columns, as the wire and the log carry them, Dynamo's the JSON that its binding takes, which it reads on the
clock.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

from bench.index_workload import BlockEvent, column
from deploy.demo.install_dynamo import environment_of
from projections.kv.index import Index

RELEASE = "1.6.1"


class Ours:
    """Our index, one slot for each rank."""

    name = "picklog"

    def __init__(self, ranks: int) -> None:
        self.index = Index()
        for rank in range(ranks):
            self.index.open_slot(rank, rank)

    def ready(self, events: list[BlockEvent]) -> list[Any]:
        """The events as `apply` takes them."""
        return [
            (
                event.rank,
                None if event.parent is None else column([event.parent]),
                None if event.tokens is None else column(event.tokens),
                column(event.names),
            )
            for event in events
        ]

    def apply(self, events: list[Any]) -> None:
        """Apply ready events."""
        stored, removed = self.index.stored, self.index.removed
        for rank, parent, tokens, names in events:
            if tokens is None:
                removed(rank, names)
            else:
                stored(rank, parent, tokens, names)

    def question(self, prompt: bytes) -> Any:
        """A prompt as `find` takes it."""
        return prompt

    def find(self, prompt: Any) -> Any:
        """The index's own answer."""
        return self.index.find(prompt, -1)

    def clear(self, rank: int) -> None:
        """The rank holds nothing more."""
        self.index.clear(rank)

    def settle(self) -> None:
        """Everything is applied."""


class Dynamo:
    """Dynamo's index through its Python binding."""

    name = f"Dynamo {RELEASE}"

    def __init__(self, ranks: int) -> None:
        self._tree = importlib.import_module("dynamo._core").RadixTree()
        self._number = 0

    def ready(self, events: list[BlockEvent]) -> list[Any]:
        """The events as `apply` takes them."""
        return [(event.rank, self._json(event)) for event in events]

    def _json(self, event: BlockEvent) -> bytes:
        self._number += 1
        data: Any
        if event.tokens is None:
            data = {"removed": {"block_hashes": event.names}}
        else:
            blocks = zip(event.names, event.tokens, strict=True)
            pairs = [{"block_hash": name, "tokens_hash": token} for name, token in blocks]
            data = {"stored": {"parent_hash": event.parent, "blocks": pairs}}
        return json.dumps({"event_id": self._number, "dp_rank": 0, "data": data}).encode()

    def apply(self, events: list[Any]) -> None:
        """Apply ready events."""
        apply = self._tree.apply_event
        for rank, event in events:
            apply(rank, event)

    def question(self, prompt: bytes) -> Any:
        """A prompt as `find` takes it."""
        return [int.from_bytes(prompt[at : at + 8], "big") for at in range(0, len(prompt), 8)]

    def find(self, prompt: Any) -> Any:
        """The index's own answer."""
        return self._tree.find_matches(prompt).scores

    def clear(self, rank: int) -> None:
        """The rank holds nothing more."""
        self._tree.apply_event(rank, b'{"event_id":0,"dp_rank":0,"data":"cleared"}')

    def settle(self) -> None:
        """Everything is applied: a question waits for the events before it."""
        self._tree.find_matches([1])


def dynamo_is_here() -> bool:
    """Whether Dynamo can be called in this process; looks it up on the first call."""
    os.environ.setdefault("DYN_LOG", "off")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = environment_of(RELEASE) / "lib" / version / "site-packages"
    if not packages.is_dir():
        return False
    if str(packages) not in sys.path:
        sys.path.append(str(packages))
    try:
        importlib.import_module("dynamo._core")
    except ImportError:
        return False
    return True
