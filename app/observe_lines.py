"""Notices as lines of the process log: a stable English sentence and `key=value`.

What a person should see once, a projection tells once; here only the rate is bounded. A
sentence may be told often in a burst, then a few times a second with the number of those
left out, so that a fleet that misbehaves can neither fill a disk nor slow the event loop.
Of refused frames the first of a publisher and result is a warning, later ones are counted.

No line holds an address or the text of a card: notices hold none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, assert_never

import structlog

from projections.identity import WorkerKey
from projections.notices import (
    BlocksOrphaned,
    ClearCause,
    DiscoveryNotice,
    FleetPublished,
    FrameResult,
    IntakeNotice,
    IntakeResult,
    KvEventResult,
    KvNotice,
    MixedRoles,
    Notice,
    RankCleared,
    SampleNotice,
    StatusNotice,
    WorkersDeparted,
)

BURST: Final = 50  # lines of one sentence that may come at once
LINES_PER_S: Final = 2.0  # afterwards
SENTENCES_MAX: Final = 512  # sentences whose rate is remembered, oldest out
PUBLISHERS_MAX: Final = 4096  # (publisher, result) pairs that were told, oldest out
WORKERS_NAMED_MAX: Final = 8

log = structlog.get_logger("picklog.fleet")

_FRAMES: Final[dict[FrameResult, str]] = {
    FrameResult.APPLIED: "a sample was taken",
    FrameResult.DUPLICATE: "a publisher repeats itself",
    FrameResult.MALFORMED: "a publisher sends frames that cannot be read",
    FrameResult.UNKNOWN_VERSION: "a publisher speaks an unknown version",
    FrameResult.TOPIC_MISMATCH: "a publisher sends frames of another topic",
    FrameResult.OVERSIZED: "a publisher sends frames above the ceiling",
    FrameResult.IDENTITY_MISMATCH: "a publisher reports a rank that no live worker declares",
    FrameResult.OVER_CAPACITY: "samples of a publisher find no room",
    FrameResult.TRANSPORT_REFUSED: "a publisher's connection was refused or broke the protocol",
    FrameResult.GAP: "frames of a publisher were missed, its samples are dropped",
    FrameResult.UNSUPPORTED: "a publisher sends what is not supported",
}
_FRAME_LEVELS: Final[dict[FrameResult, str]] = {
    FrameResult.APPLIED: "debug",
    FrameResult.DUPLICATE: "debug",
    FrameResult.GAP: "info",
}
_INTAKE: Final[dict[IntakeResult, tuple[str, str]]] = {
    IntakeResult.DUPLICATE_RECORD: ("debug", "a record was seen before"),
    IntakeResult.FOREIGN_OWNER: ("info", "a record of a former owner has no effect"),
    IntakeResult.UNKNOWN_KIND: ("warning", "a record of a kind that this release does not know"),
    IntakeResult.REFUSED_BYTES: ("warning", "a record cannot be read and has no effect"),
    IntakeResult.CONDEMNED: ("warning", "a condemned record was skipped"),
    IntakeResult.OVER_CAPACITY: ("warning", "a record finds no room and has no effect"),
}

_KV_EVENTS: Final[dict[KvEventResult, str]] = {
    KvEventResult.APPLIED: "block events were taken",
    KvEventResult.REPLAY: "a publisher repeats block events",
    KvEventResult.GAP: "block events of a rank were missed, its blocks are cleared",
    KvEventResult.ORPHAN: "blocks are stored under a parent that their rank does not hold",
    KvEventResult.OVER_CAPACITY: "blocks find no room in the index",
    KvEventResult.IDENTITY_MISMATCH: "a publisher reports blocks of a rank that no live worker declares",
    KvEventResult.OTHER_TIER: "a publisher reports blocks of a tier that is not indexed",
    KvEventResult.MALFORMED: "a publisher sends block events that cannot be read",
    KvEventResult.SELF_PARENT: "a block names itself as its parent",
    KvEventResult.UNKNOWN_REMOVED: "blocks are removed that their rank does not hold",
    KvEventResult.AGED: "a publisher of block events was not heard for a minute, its blocks are cleared",
    KvEventResult.DISPLACED: "a newer publisher reports the blocks of a rank",
    KvEventResult.UNKNOWN_VERSION: "a publisher of block events speaks an unknown version",
    KvEventResult.TOPIC_MISMATCH: "a publisher of block events sends frames of another topic",
    KvEventResult.OVERSIZED: "a publisher of block events sends frames above the ceiling",
    KvEventResult.UNSUPPORTED: "an engine reports blocks that are not indexed",
    KvEventResult.TRANSPORT_REFUSED: "a connection for block events was refused or broke the protocol",
    KvEventResult.UNSUPPORTED: "an engine reports blocks of a kind that is not indexed",
}
_KV_LEVELS: Final[dict[KvEventResult, str]] = {
    KvEventResult.APPLIED: "debug",
    KvEventResult.REPLAY: "debug",
    KvEventResult.UNKNOWN_REMOVED: "debug",
    KvEventResult.OTHER_TIER: "debug",
    KvEventResult.GAP: "info",
    KvEventResult.ORPHAN: "info",
    KvEventResult.AGED: "info",
    KvEventResult.DISPLACED: "info",
}
"""Lines of block events, once a publisher; what is not here is a warning."""

_QUIET_CAUSES = (ClearCause.ENGINE, ClearCause.DEPARTED, ClearCause.SWITCHED_OFF)


class NoticeLines:
    """Writes lines. now_s: a monotonic clock, seconds."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._rates: dict[str, _Rate] = {}
        self._told: dict[tuple[str, int, FrameResult], None] = {}
        self._told_kv: dict[tuple[str, int, KvEventResult], None] = {}

    def tell(self, notice: Notice) -> None:
        """The line of a notice, if it has one and its sentence may be told now."""
        match notice:
            case DiscoveryNotice():
                self._discovery(notice)
            case SampleNotice():
                self._sample(notice)
            case KvNotice():
                self._kv_event(notice)
            case RankCleared(cause, namespace, instance_id, dp_rank, blocks):
                self._say(
                    "debug" if cause in _QUIET_CAUSES else "info",
                    "blocks of a rank are not known any more",
                    cause=cause.label,
                    worker=WorkerKey(namespace, instance_id).to_text(),
                    dp_rank=dp_rank,
                    blocks=blocks,
                )
            case BlocksOrphaned():
                pass  # the KvNotice beside it has the line
            case WorkersDeparted(workers):
                named = [WorkerKey(*key).to_text() for key in workers[:WORKERS_NAMED_MAX]]
                self._say("info", "workers left the fleet", number=len(workers), workers=named)
            case FleetPublished(generation):
                self._say("info", "the fleet changed", generation=generation)
            case MixedRoles(named_pairs, suppressed):
                for namespace, model, prefill, decode, aggregated in named_pairs:
                    self._say(
                        "warning",
                        "a model is served by aggregated workers beside prefill and decode workers",
                        namespace=namespace,
                        model=model,
                        prefill=prefill,
                        decode=decode,
                        aggregated=aggregated,
                        further=suppressed,
                    )
            case IntakeNotice(result, offset, detail):
                level, sentence = _INTAKE[result]
                self._say(level, sentence, offset=offset, detail=detail)
            case StatusNotice(what, detail, level):
                self._say(level, what, detail=detail)
            case _:
                assert_never(notice)

    def stood_still(self, duration_us: int) -> None:
        """This process was stopped, or its event loop was busy."""
        self._say("warning", "this process stood still", milliseconds=duration_us // 1000)

    def _discovery(self, notice: DiscoveryNotice) -> None:
        pairs: dict[str, Any] = {"kind": notice.kind.label, "namespace": notice.namespace}
        if notice.identity:
            pairs["identity"] = notice.identity
        if notice.keys:
            pairs["keys"] = notice.keys
        if notice.records:
            pairs["records"] = notice.records
        if notice.times != 1:
            pairs["times"] = notice.times
        self._say(notice.level, notice.what, **pairs)

    def _sample(self, notice: SampleNotice) -> None:
        result = notice.result
        key = (notice.namespace, notice.publisher_id, result)
        level = "debug" if key in self._told else _FRAME_LEVELS.get(result, "warning")
        self._told[key] = None
        if len(self._told) > PUBLISHERS_MAX:
            del self._told[next(iter(self._told))]
        publisher = f"{notice.publisher_id:x}"
        self._say(
            level, _FRAMES[result], namespace=notice.namespace, publisher=publisher, frames=notice.times
        )

    def _kv_event(self, notice: KvNotice) -> None:
        result = notice.result
        key = (notice.namespace, notice.publisher_id, result)
        level = "debug" if key in self._told_kv else _KV_LEVELS.get(result, "warning")
        self._told_kv[key] = None
        if len(self._told_kv) > PUBLISHERS_MAX:
            del self._told_kv[next(iter(self._told_kv))]
        publisher = f"{notice.publisher_id:x}"
        self._say(
            level, _KV_EVENTS[result], namespace=notice.namespace, publisher=publisher, events=notice.times
        )

    def _say(self, level: str, sentence: str, **pairs: Any) -> None:
        if level == "debug":
            log.debug(sentence, **pairs)  # off unless asked for, and then all of it is wanted
            return
        rate = self._rates.get(sentence)
        if rate is None:
            if len(self._rates) >= SENTENCES_MAX:
                del self._rates[next(iter(self._rates))]
            rate = self._rates[sentence] = _Rate(self._now_s())
        left_out = rate.take(self._now_s())
        if left_out is None:
            return
        if left_out:
            pairs["left_out"] = left_out
        getattr(log, level if level in ("info", "warning", "error") else "info")(sentence, **pairs)


class _Rate:
    """Tokens of one sentence: BURST at first, LINES_PER_S more each second."""

    __slots__ = ("_at_s", "_left_out", "_tokens")

    def __init__(self, now_s: float) -> None:
        self._tokens = float(BURST)
        self._at_s = now_s
        self._left_out = 0

    def take(self, now_s: float) -> int | None:
        """How many lines were left out since the last one; None: this one is left out too."""
        self._tokens = min(float(BURST), self._tokens + max(0.0, now_s - self._at_s) * LINES_PER_S)
        self._at_s = now_s
        if self._tokens < 1.0:
            self._left_out += 1
            return None
        self._tokens -= 1.0
        left_out, self._left_out = self._left_out, 0
        return left_out
