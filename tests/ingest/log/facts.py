"""Facts for the tests of this folder."""

from __future__ import annotations

from projections.events.picks import (
    Chosen,
    DispatchEnded,
    EndStatus,
    Outcome,
    PhaseOutcome,
    PickMade,
    PickReason,
    Question,
)
from projections.events.signals import (
    Family,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)

REPLICA = b"replica-16-bytes"


def sample(sequence: int, publisher: int = 7, connection: int = 1) -> SampleReceived:
    return SampleReceived("dynamo", publisher, connection, sequence, sequence, 9, 0, 5, None, None, 1)


def reconnected(publisher: int = 7, connection: int = 2) -> SubscriptionChanged:
    state, transport = SubscriptionState.CONNECTED, Transport.DIRECT
    return SubscriptionChanged(
        Family.LOAD, "dynamo", publisher, "decode", state, connection, transport, "connected"
    )


def pick(number: int) -> PickMade:
    question = Question(f"r{number}", 0, "m", "m", 1000 + number, 1001 + number, ("dynamo",), (), 5, 0, 0)
    phase = PhaseOutcome(PickReason.LOAD, Chosen(9, 0, False, 5, 1), 1, None, b"")
    none = PhaseOutcome(PickReason.NO_PREFILL_POOL, None, 0, None, b"")
    outcome = Outcome("dynamo", none, phase, 0, 0, bytes(16))
    return PickMade(number.to_bytes(16, "big"), REPLICA, 2 * number, -1, 1, question, outcome)


def end(number: int) -> DispatchEnded:
    pick_id = number.to_bytes(16, "big")
    return DispatchEnded(pick_id, REPLICA, 2 * number + 2, 2000 + number, EndStatus.OK, 0, 200, "shim", 1, 2)
