"""Builds logs as an owner and lagging replicas would write them, for tests of replay.

Every replica folds the log by itself, as far as a test lets it, keeps its overlay as the
product does and writes its picks and ends. Nothing here is a fake of product code: the
fold, the overlay and the picker are the real ones; only time and lag are the test's.
"""

from __future__ import annotations

import json
from typing import Any

from blake3 import blake3

from projections.events.codec import encode_record
from projections.events.control import ConfigAdopted, LaneOpened, PickSettings, ReplicaStarted
from projections.events.discovery import KeyPut, Keyspace
from projections.events.picks import DispatchEnded, EndStatus, Fault, LostPick, PickMade, PicksLost, Question
from projections.events.ports import MemoryLog
from projections.events.signals import (
    Family,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from projections.fold import Fold
from projections.view import Overlay
from router.picker.pick import pick
from router.picker.pick_flags import PICK_FLAGS

OWNER = bytes([1]) * 16
SETTINGS = PickSettings("load_based", "file", ("dynamo",), (), 3_000_000)
MODEL = "tiny"


class Replica:
    """One picking process: its own fold up to where the test lets it read."""

    def __init__(
        self, world: RecordedLog, number: int, condemned: frozenset[int], flags: tuple[int, ...]
    ) -> None:
        self.world = world
        self.flags = flags
        self.id = bytes([number]) * 16
        self.fold = Fold(condemned=condemned)
        self.overlay = Overlay()
        self.own_seq = 0
        self.rotations: dict[str, tuple[int, int]] = {}
        self.picks: list[PickMade] = []

    def read(self, upto: int | None = None) -> None:
        """Fold up to offset `upto`, or all there is."""
        end = self.world.log.end_offset() if upto is None else upto + 1
        for batch in self.world.log.read(
            max(self.fold.mark.offset + 1, self.world.log.first_offset()), 1 << 30
        ):
            for index, data in enumerate(batch.records):
                if self.fold.mark.offset < batch.first_offset + index < end:
                    self.fold.apply(batch.first_offset + index, data, [])
        held = self.fold.state.status.replica(self.id)
        if held is not None:
            self.overlay.folded(held.own_seq)

    def choose(
        self, request_id: str, tokens: int = 100, suspect: bool = False, model: str = MODEL
    ) -> PickMade:
        """Pick on the state read so far; nothing is written."""
        at = self.world.time
        prefill, decode = self.rotations.get(model, (0, 0))
        question = Question(
            request_id, 0, model, model, at, at + 5_000, ("dynamo",), (), tokens, prefill, decode
        )
        settings = self.fold.settings_now
        wanted = settings.pick if settings else SETTINGS
        outcome = pick(self.fold.view(self.overlay), question, wanted, self.flags)
        self.rotations[model] = (outcome.rotation_prefill, outcome.rotation_decode)
        version = settings.version if settings else 0
        pick_id = len(self.picks).to_bytes(8, "big") + self.id[:8]
        fact = PickMade(
            pick_id, self.id, self.own_seq, self.fold.mark.offset, version, question, outcome, suspect
        )
        self.own_seq += 1
        self.picks.append(fact)
        self.overlay.add_pick(fact)
        return fact

    def ask(self, request_id: str, tokens: int = 100, suspect: bool = False, model: str = MODEL) -> PickMade:
        """Pick and write the record."""
        fact = self.choose(request_id, tokens, suspect, model)
        self.world.say(fact, self.id)
        return fact

    def ended(self, fact: PickMade, fault: Fault = Fault.NONE) -> DispatchEnded:
        """The end of a dispatch; nothing is written."""
        self.own_seq += 1
        status = EndStatus.FAILED if fault else EndStatus.OK
        end = DispatchEnded(
            fact.pick_id,
            self.id,
            self.own_seq,
            self.world.time,
            status,
            fault,
            200,
            "shim",
            10,
            20,
            5,
            6,
            None,
        )
        self.overlay.add_end(end)
        return end

    def end(self, fact: PickMade, fault: Fault = Fault.NONE) -> None:
        """End a dispatch and write the record."""
        self.world.say(self.ended(fact, fault), self.id)

    def lose(self, *facts: PickMade, ends: dict[bytes, DispatchEnded] | None = None) -> None:
        """Write ledger lines in place of records that had to be dropped."""
        lines = []
        for fact in facts:
            end = (ends or {}).get(fact.pick_id)
            question, outcome = fact.question, fact.outcome
            lines.append(
                LostPick(
                    fact.pick_id,
                    fact.own_seq,
                    question.asked_at,
                    question.dispatched_at,
                    outcome.namespace or "",
                    outcome.decode.chosen,
                    outcome.prefill.chosen,
                    end.own_seq if end else None,
                    end.ended_at if end else None,
                )
            )
        self.world.say(PicksLost(self.id, tuple(lines)), self.id)


class RecordedLog:
    """A log in memory with an owner, a fleet of aggregated workers and replicas."""

    def __init__(self, workers: int = 3, *, adopt: bool = True) -> None:
        self.log = MemoryLog(bytes([7]) * 16)
        self.time = 1_000_000
        self._sequences: dict[bytes, int] = {}
        self._replicas = 0
        self._revision = 0
        self.say(LaneOpened(1, self.time, b"", "new"))
        if adopt:
            self.say(ConfigAdopted(1, "start", b"d", "{}", SETTINGS))
        for number in range(1, workers + 1):
            self.add_worker(number)
        self.subscribe()

    def say(self, fact: tuple[Any, ...], writer: bytes = OWNER) -> int:
        """Write one record; its offset."""
        sequence = self._sequences[writer] = self._sequences.get(writer, 0) + 1
        epoch = 1 if writer == OWNER else 0
        return self.log.commit([encode_record(self.time, writer, epoch, sequence, fact)])

    def replica(
        self, condemned: frozenset[int] = frozenset(), flags: tuple[int, ...] = PICK_FLAGS
    ) -> Replica:
        """A new replica that has said it is there and read everything."""
        self._replicas += 1
        replica = Replica(self, 100 + self._replicas, condemned, flags)
        self.say(ReplicaStarted(replica.id, "test", "router", "0", "3", flags, 62, ()), replica.id)
        replica.read()
        return replica

    def add_worker(self, number: int) -> None:
        """An aggregated worker with its card."""
        key = f"backend/generate/{number:x}"
        names = {"namespace": "dynamo", "component": "backend", "endpoint": "generate", "instance_id": number}
        self._put(Keyspace.INSTANCES, key, {"type": "Endpoint", **names, "transport": {"tcp": "h:1/x"}})
        capacity = {"total_kv_blocks": 1000, "max_num_batched_tokens": 8192, "data_parallel_size": 1}
        card = {
            "display_name": MODEL,
            "worker_type": "aggregated",
            "kv_cache_block_size": 16,
            "runtime_config": capacity,
        }
        self._put(Keyspace.CARDS, key, {"type": "Model", **names, "card_json": card})

    def subscribe(self) -> None:
        """The one publisher, number 9, speaks for every worker."""
        self.say(
            SubscriptionChanged(
                Family.LOAD,
                "dynamo",
                9,
                "backend",
                SubscriptionState.CONNECTED,
                1,
                Transport.DIRECT,
                "connected",
            )
        )
        self._sample_sequence = 0

    def sample(self, worker: int, used_blocks: int) -> None:
        """A load sample of a worker."""
        sequence = self._sample_sequence
        self._sample_sequence += 1
        self.say(SampleReceived("dynamo", 9, 1, sequence, sequence, worker, 0, None, None, used_blocks, 0))

    def pass_time(self, us: int) -> None:
        """Let log time go on."""
        self.time += us

    def _put(self, keyspace: Keyspace, key: str, document: dict[str, Any]) -> None:
        value = json.dumps(document).encode()
        self.say(
            KeyPut(
                keyspace, "dynamo", key, len(self._sequences) + 1, value, len(value), blake3(value).digest()
            )
        )
