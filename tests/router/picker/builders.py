"""Fleets, views and questions for tests of load and picks."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from projections.events.control import KvPickSettings, PickSettings
from projections.events.envelope import Record
from projections.events.kinds import KIND_OF_FACT
from projections.events.picks import DispatchEnded, EndStatus, KvResult, Outcome, PickMade, Question
from projections.events.signals import (
    Family,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from projections.identity import WorkerKey
from projections.load.ledger import Ledger
from projections.load.store import LoadStore
from projections.registry.fleet import Fleet, Role, Worker
from projections.view import Overlay, View

S = 1_000_000
NOW = 1_000 * S
MODEL = "tiny"
NAMESPACE = "dynamo"
WRITER = b"w" * 16
REPLICA = b"r" * 16

_generation = iter(range(1, 1 << 60))


def a_worker(instance_id: int, role: Role = Role.DECODE, namespace: str = NAMESPACE, **fields: Any) -> Worker:
    """A worker with 1,000 blocks of 16 tokens and a batch of 8,192 tokens."""
    values: dict[str, Any] = {
        "model": MODEL,
        "component": role.label,
        "endpoint": "generate",
        "dp_start_rank": 0,
        "dp_size": 1,
        "dp_declared": False,
        "block_size": 16,
        "total_kv_blocks": 1_000,
        "max_num_batched_tokens": 8_192,
        "max_num_seqs": 256,
        "context_length": 32_768,
        "disaggregated_endpoint": None,
        "has_card": True,
        "enable_eagle": False,
        "first_seen": 0,
        "last_updated": 0,
    }
    return Worker(key=WorkerKey(namespace, instance_id), role=role, **(values | fields))


def a_fleet(*workers: Worker) -> Fleet:
    """Workers published under a generation that no other fleet of the test run has."""
    ordered = {worker.key: worker for worker in sorted(workers)}
    return Fleet(next(_generation), MappingProxyType(ordered), (), MappingProxyType({}), {})


def a_record(fact: Any, time: int = NOW, offset: int = 0) -> Record:
    """A record of the owner around a fact."""
    return Record(offset, 0, KIND_OF_FACT[type(fact)], time, WRITER, 1, 1, fact)


def a_sample(
    worker_id: int,
    sequence: int,
    *,
    rank: int = 0,
    blocks: int | None = None,
    tokens: int | None = None,
    used: int | None = None,
    publisher: int | None = None,
    connection: int = 1,
    covers_from: int | None = None,
    namespace: str = NAMESPACE,
) -> SampleReceived:
    """A sample of a worker's own publisher, which has the worker's id plus 1,000."""
    return SampleReceived(
        namespace,
        1_000 + worker_id if publisher is None else publisher,
        connection,
        sequence if covers_from is None else covers_from,
        sequence,
        worker_id,
        rank,
        blocks,
        tokens,
        used,
        0,
    )


def a_connect(
    publisher: int, connection: int, state: SubscriptionState = SubscriptionState.CONNECTED, **fields: Any
) -> SubscriptionChanged:
    """A subscription of the load family that connected."""
    values: dict[str, Any] = {"family": Family.LOAD, "namespace": NAMESPACE, "reason": state.label} | fields
    return SubscriptionChanged(
        publisher_id=publisher,
        component="decode",
        state=state,
        connection=connection,
        transport=Transport.DIRECT,
        **values,
    )


def some_settings(**fields: Any) -> PickSettings:
    """Settings of one namespace and 3 s staleness."""
    values: dict[str, Any] = {
        "picker": "load_based",
        "source": "file",
        "namespaces": (NAMESPACE,),
        "model_map": (),
        "max_staleness_us": 3 * S,
    }
    return PickSettings(**(values | fields))


def a_question(**fields: Any) -> Question:
    """A question of 160 tokens, 10 blocks of 16, asked and dispatched NOW."""
    values: dict[str, Any] = {
        "request_id": "request",
        "send": 1,
        "model": MODEL,
        "served_model": MODEL,
        "asked_at": NOW,
        "namespaces": (NAMESPACE,),
        "absent": (),
        "estimated_tokens": 160,
        "rotation_prefill": 0,
        "rotation_decode": 0,
    }
    values |= fields
    values.setdefault("dispatched_at", values["asked_at"])
    return Question(**values)


def a_view(
    fleet: Fleet, load: LoadStore | None = None, ledger: Ledger | None = None, overlay: Overlay | None = None
) -> View:
    """A view of what a test prepared; whatever is not given is empty."""
    return View(0, fleet, load or LoadStore(), ledger or Ledger(), overlay or Overlay())


class PrefixView(View):
    """A view whose ranks hold what a test says: (instance id, rank) -> (device, host, disk, predicted)."""

    __slots__ = ("held",)

    held: dict[tuple[int, int], tuple[int, int, int, int]]

    def prefixes(self, question: Question, kv: KvPickSettings) -> dict[tuple[str, int, int], Any]:
        """What was said, of any namespace that has such a worker."""
        return {
            (*key, rank): prefix
            for key in self.fleet.workers
            for (instance, rank), prefix in self.held.items()
            if instance == key.instance_id
        }


def a_prefix_view(
    fleet: Fleet,
    held: dict[tuple[int, int], tuple[int, int, int, int]],
    load: LoadStore | None = None,
    ledger: Ledger | None = None,
    overlay: Overlay | None = None,
) -> PrefixView:
    """A view whose ranks hold these prefixes."""
    view = PrefixView(0, fleet, load or LoadStore(), ledger or Ledger(), overlay or Overlay())
    view.held = held
    return view


def kv_settings(**fields: Any) -> KvPickSettings:
    """The specification's weights: credit 1, scale 1, temperature 0."""
    values: dict[str, Any] = {"overlap_credit": 1.0, "prefill_scale": 1.0, "temperature": 0.0}
    return KvPickSettings(**(values | fields))


def a_kv_question(isl_tokens: int = 160, **fields: Any) -> Question:
    """A question whose prompt was read: 160 tokens, 10 blocks of 16."""
    return a_question(prompt_result=int(KvResult.READY), isl_tokens=isl_tokens, **fields)


def made(question: Question, outcome: Outcome, number: int = 1, pick_id: bytes | None = None) -> PickMade:
    """The fact of a pick; its own number is `number`."""
    return PickMade(pick_id or number.to_bytes(16, "big"), REPLICA, number - 1, 0, 1, question, outcome)


def an_end(
    pick_id: bytes, ended_at: int, *, fault: int = 0, number: int = 2, status: EndStatus = EndStatus.OK
) -> DispatchEnded:
    """The end of a dispatch."""
    return DispatchEnded(pick_id, REPLICA, number, ended_at, status, fault, 200, "shim", None, 0)
