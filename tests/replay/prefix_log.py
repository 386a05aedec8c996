"""Recorded logs whose picks are prefix-aware: blocks are stored, questions carry hashes."""

from __future__ import annotations

from typing import Any

import xxhash

from projections.events.control import ConfigAdopted, FoldModeAdopted, KvPickSettings
from projections.events.picks import BlockHashes, KvResult, PickMade, Question
from projections.events.signals import (
    KV_EVENT_HEAD,
    Family,
    KvBatchReceived,
    KvOperation,
    StorageTier,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from projections.fold_modes import wanted_modes
from router.picker.pick import pick
from tests.replay.recorded_log import MODEL, SETTINGS, RecordedLog, Replica

BLOCK = 16
KV = KvPickSettings(1.0, 1.0, 0.0)


def tokens_hashes(name: str, blocks: int) -> bytes:
    """Packed tokens hashes of a prompt that goes by a name; prompts of one name share them."""
    return b"".join(xxhash.xxh3_64_digest(f"{name}/{place}".encode()) for place in range(blocks))


class PrefixLog(RecordedLog):
    """A log whose settings ask for the prefix term."""

    def __init__(self, workers: int = 3, kv: KvPickSettings = KV, **settings: Any) -> None:
        super().__init__(workers)
        self.settings = SETTINGS._replace(kv=kv, **settings)
        self.say(FoldModeAdopted(wanted_modes(self.settings)))
        self.say(ConfigAdopted(2, "file", b"kv", "{}", self.settings))
        self._events: dict[int, int] = {}

    def store(self, worker: int, name: str, blocks: int, tier: StorageTier = StorageTier.DEVICE) -> None:
        """A worker says that it holds the first blocks of a prompt; each has a publisher, 50 and on."""
        self.store_hashes(worker, tokens_hashes(name, blocks), tier)

    def store_hashes(self, worker: int, hashes: bytes, tier: StorageTier = StorageTier.DEVICE) -> None:
        """The same of packed tokens hashes."""
        publisher = 50 + worker
        event = self._events[worker] = self._events.get(worker, 0) + 1
        if event == 1:
            self.say(
                SubscriptionChanged(
                    Family.KV, "dynamo", publisher, "backend", SubscriptionState.CONNECTED, 1,
                    Transport.DIRECT, "connected",
                )
            )  # fmt: skip
        head = KV_EVENT_HEAD.pack(worker, 0, event, KvOperation.STORED, tier, 0, len(hashes) // 8)
        self.say(KvBatchReceived("dynamo", publisher, 1, event, event, head, hashes + hashes, 0))


def ask(replica: Replica, request_id: str, name: str, blocks: int, draws: tuple[int, ...] = ()) -> PickMade:
    """Pick for a prompt of so many whole blocks and eight tokens more, and write the record."""
    return ask_hashes(replica, request_id, tokens_hashes(name, blocks), draws)


def ask_hashes(replica: Replica, request_id: str, hashes: bytes, draws: tuple[int, ...] = ()) -> PickMade:
    """The same of packed tokens hashes."""
    world, at = replica.world, replica.world.time
    prefill, decode = replica.rotations.get(MODEL, (0, 0))
    blocks = len(hashes) // 8
    known = BlockHashes(BLOCK, blocks, xxhash.xxh3_64_intdigest(hashes), hashes)
    isl = blocks * BLOCK + 8
    question = Question(
        request_id, 0, MODEL, MODEL, at, at + 5_000, ("dynamo",), (), isl, prefill, decode, draws, (),
        int(KvResult.READY), isl, (known,),
    )  # fmt: skip
    settings = replica.fold.settings_now
    assert settings is not None
    outcome = pick(replica.fold.view(replica.overlay), question, settings.pick, replica.flags)
    replica.rotations[MODEL] = (outcome.rotation_prefill, outcome.rotation_decode)
    pick_id = len(replica.picks).to_bytes(8, "big") + replica.id[:8]
    as_of = replica.fold.mark.offset
    fact = PickMade(pick_id, replica.id, replica.own_seq, as_of, settings.version, question, outcome)
    replica.own_seq += 1
    replica.picks.append(fact)
    replica.overlay.add_pick(fact)
    world.say(fact, replica.id)
    return fact
