"""A made-up log about blocks that says a bit of everything: the same seed tells the same story."""

from __future__ import annotations

import random

from projections.events.control import FoldModeAdopted
from projections.events.discovery import KeysDropped, Keyspace
from projections.events.signals import StorageTier, SubscriptionState
from projections.fold import Fold
from tests.projections.fleet_script import NS, instance_key
from tests.projections.kv.kv_script import (
    ALL_MODES,
    Event,
    KvScript,
    S,
    cleared,
    pick_of,
    ranks_card,
    removed,
    stored,
)

MODES = ((), (1,), (1, 2), (1, 3), ALL_MODES, ALL_MODES, ALL_MODES)
STATES = (
    SubscriptionState.CONNECTED,
    SubscriptionState.BACKOFF,
    SubscriptionState.PENDING,
    SubscriptionState.ENDED,
)
WORKERS = (1, 2, 3)


class Teller:
    """Says one random thing at a time."""

    def __init__(self, seed: int, fold: Fold | None = None) -> None:
        self.draw = random.Random(seed)
        self.script = KvScript(*ALL_MODES, fold=fold)
        self.ids: dict[tuple[int, int, int], int] = {}
        self.picks = 0
        for worker in WORKERS:
            self.script.worker(worker, **ranks_card(1 + worker % 3))

    def step(self) -> None:
        """Mostly events."""
        kind = self.draw.random()
        if kind < 0.6:
            self._events()
        elif kind < 0.7:
            self._pick()
        elif kind < 0.8:
            self._subscription()
        elif kind < 0.9:
            self._fleet()
        else:
            self._time()

    def _path(self) -> list[int]:
        return [self.draw.randrange(3) for _ in range(self.draw.randrange(1, 7))]

    def _events(self) -> None:
        draw = self.draw
        publisher = draw.choice((71, 72, 73, 74))
        worker, rank = draw.choice(WORKERS), draw.choice((0, 0, 0, 1, 2))
        events: list[Event] = []
        for _ in range(draw.randrange(1, 5)):
            key = publisher, worker, rank
            self.ids[key] = self.ids.get(key, 0) + draw.choice((1,) * 12 + (0, 2))
            tier = draw.choice((StorageTier.DEVICE,) * 3 + tuple(StorageTier))
            path, number = self._path(), self.ids[key]
            act, depth = draw.random(), draw.randrange(len(path))
            if act < 0.65:
                events.append(stored(number, *path, below=depth, worker=worker, rank=rank, tier=tier))
            elif act < 0.96:
                events.append(removed(number, *path, above=depth, worker=worker, rank=rank, tier=tier))
            else:
                events.append(cleared(number, worker, rank, tier))
        self.script.batch(*events, publisher_id=publisher)

    def _pick(self) -> None:
        self.picks += 1
        question = self.script.question(*self._path())
        worker, rank = self.draw.choice((*WORKERS, 9)), self.draw.randrange(2)
        self.script.say(pick_of(question, worker, rank, number=self.picks))

    def _subscription(self) -> None:
        reason = self.draw.choice(("transport", "departed", "closed"))
        self.script.kv_subscription(self.draw.choice(STATES), reason, self.draw.choice((71, 72, 73, 74)))

    def _fleet(self) -> None:
        draw, script = self.draw, self.script
        worker, act = draw.choice(WORKERS), draw.random()
        if act < 0.45:
            script.worker(worker, **ranks_card(draw.randrange(1, 4)))
        elif act < 0.7:
            script.delete(draw.choice((Keyspace.INSTANCES, Keyspace.CARDS)), instance_key(worker))
        elif act < 0.95:
            script.bind(draw.choice((71, 72, 73, 74)), worker, draw.randrange(3))
        else:
            script.say(KeysDropped((NS,), "x"))

    def _time(self) -> None:
        act = self.draw.random()
        if act < 0.5:
            self.script.tick(self.draw.choice((1, 1, 1, 20, 59, 61, 300)) * S)
        elif act < 0.7:
            self.script.sample(1, self.picks + 1)
        elif act < 0.8:
            self.script.time += self.draw.choice((0, 30, 70)) * S
            self.script.open(self.draw.randbytes(16))
        else:
            self.script.say(FoldModeAdopted(self.draw.choice(MODES)))


def kv_story(seed: int, steps: int) -> list[bytes]:
    """The records of a log of so many steps."""
    teller = Teller(seed)
    for _ in range(steps):
        teller.step()
    return teller.script.records
