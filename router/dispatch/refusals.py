"""What a frontend's answer to a pinned request means: the table of decision 31 as data.

`ROWS` is read from the top; the first row whose condition holds decides. A row says what
to do next, how the dispatch ends in the log, what the end says of the pinned workers, and
what the client gets if no fallback takes the request. Answers are judged by status, not by
text: the newest frontends hide it (wire contract, 7.3). The one text that is looked for is
the direct-mode refusal that older documents name (SHIM-20).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from projections.events.picks import EndStatus, Fault
from router.ingress.errors import ErrorCode
from router.metrics import ErrorPhase

REFUSAL_TEXT: Final = b"Prefill worker ID required in Direct routing mode"
_NAMED_WORKER: Final = (b"nvext.decode_worker_id", b"nvext.prefill_worker_id", b"nvext.backend_instance_id")
BACK_PRESSURE: Final = frozenset({408, 429, 529})


class Trouble(Enum):
    """What went wrong where no status came."""

    NONE = 0
    NOT_CONNECTED = 1  # nothing was sent
    UNSENT = 2  # the connection died while part of the request was still ours
    LOST = 3  # it broke after the request may have been seen
    SILENT = 4  # our own deadline for the first byte, or for all of it


class Next(Enum):
    """What happens to the request."""

    RELAY = 1  # the answer goes to the client as it is
    NEXT_REPLICA = 2  # same pins, another replica, within the budget
    GIVE_UP = 3  # fallback where the row allows it, else the row's error


class Finding(NamedTuple):
    """What is known of one try before any byte went to the client.

    body: the beginning of an error's body. worker_left: a pinned worker left the registry
    since the pick. model_served: the registry serves the model now.
    """

    trouble: Trouble
    status: int = 0
    body: bytes = b""
    worker_left: bool = False
    model_served: bool = True


class Row(NamedTuple):
    """One row: what an answer means. code: for the client, None where its own is relayed."""

    name: str
    applies: Callable[[Finding], bool]
    next: Next
    end: EndStatus
    fault: Fault
    falls_back: bool
    code: ErrorCode | None
    phase: ErrorPhase | None


def _is_gone_pin(finding: Finding) -> bool:
    return finding.status == 400 and (
        finding.worker_left or any(name in finding.body for name in _NAMED_WORKER)
    )


ROWS: Final[tuple[Row, ...]] = (
    Row(
        "not connected",
        lambda f: f.trouble is Trouble.NOT_CONNECTED,
        Next.NEXT_REPLICA, EndStatus.FAILED, Fault.NONE, True, ErrorCode.DECODE_FAILED, ErrorPhase.DECODE,
    ),
    Row(
        "connection lost, known unsent",
        lambda f: f.trouble is Trouble.UNSENT,
        Next.NEXT_REPLICA, EndStatus.FAILED, Fault.NONE, True, ErrorCode.DECODE_FAILED, ErrorPhase.DECODE,
    ),
    Row(
        "connection lost before any byte",
        lambda f: f.trouble is Trouble.LOST,
        Next.GIVE_UP, EndStatus.FAILED, Fault.FAULT, True, ErrorCode.DECODE_FAILED, ErrorPhase.DECODE,
    ),
    Row(
        "no byte in time",
        lambda f: f.trouble is Trouble.SILENT,
        Next.GIVE_UP, EndStatus.EXPIRED, Fault.NONE, False, ErrorCode.UPSTREAM_TIMEOUT, ErrorPhase.DECODE,
    ),
    Row(
        "answered",
        lambda f: 200 <= f.status < 300,
        Next.RELAY, EndStatus.OK, Fault.NONE, False, None, None,
    ),
    Row(
        "direct-mode refusal",
        lambda f: f.status >= 400 and REFUSAL_TEXT in f.body,
        Next.GIVE_UP, EndStatus.REFUSED, Fault.NONE, False,
        ErrorCode.PREFILL_DECODE_UNAVAILABLE, ErrorPhase.ORCHESTRATION,
    ),
    Row(
        "back-pressure",
        lambda f: f.status in BACK_PRESSURE,
        Next.GIVE_UP, EndStatus.REFUSED, Fault.BACKPRESSURE, True, ErrorCode.RATE_LIMITED, ErrorPhase.DECODE,
    ),
    Row(
        "fault of the workers",
        lambda f: f.status in (500, 503),
        Next.GIVE_UP, EndStatus.FAILED, Fault.FAULT, True, ErrorCode.DECODE_FAILED, ErrorPhase.DECODE,
    ),
    Row(
        "pinned worker is gone",
        _is_gone_pin,
        Next.GIVE_UP, EndStatus.REFUSED, Fault.NONE, True, ErrorCode.NO_WORKER, ErrorPhase.DECODE,
    ),
    Row(
        "frontend lacks the model",
        lambda f: f.status == 404 and f.model_served,
        Next.NEXT_REPLICA, EndStatus.REFUSED, Fault.NONE, True, ErrorCode.NO_SHIM, ErrorPhase.DECODE,
    ),
    Row(
        "request at fault",
        lambda f: 400 <= f.status < 500,
        Next.RELAY, EndStatus.REFUSED, Fault.NONE, False, None, None,
    ),
    Row(
        "any other answer",
        lambda f: True,
        Next.GIVE_UP, EndStatus.FAILED, Fault.NONE, True, ErrorCode.DECODE_FAILED, ErrorPhase.DECODE,
    ),
)  # fmt: skip


def judge(finding: Finding) -> Row:
    """The row that a finding falls under. Total: the last row takes everything."""
    for row in ROWS:
        if row.applies(finding):
            return row
    raise AssertionError("the last row takes everything")


NO_REPLICA: Final = Row(
    "no replica left to send to",
    lambda f: False,
    Next.GIVE_UP, EndStatus.FAILED, Fault.NONE, True, ErrorCode.NO_SHIM, ErrorPhase.ORCHESTRATION,
)  # fmt: skip

UNIFIED_RELAYED: Final = Row(
    "ordinary backend answered",
    lambda f: False,
    Next.RELAY, EndStatus.OK, Fault.NONE, False, None, None,
)  # fmt: skip

UNIFIED_LOST: Final = Row(
    "ordinary backend did not answer",
    lambda f: False,
    Next.GIVE_UP, EndStatus.FAILED, Fault.NONE, False, ErrorCode.UPSTREAM_FAILED, None,
)  # fmt: skip

UNIFIED_SILENT: Final = Row(
    "ordinary backend was silent",
    lambda f: False,
    Next.GIVE_UP, EndStatus.EXPIRED, Fault.NONE, False, ErrorCode.UPSTREAM_TIMEOUT, None,
)  # fmt: skip
