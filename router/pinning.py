"""Step machine of one picked request: pick, log, send, output, end.

A request that was picked lives through two stories at once. The log's: its PickMade is
queued, then acknowledged, or shed, or the log goes away. The answer's: it is sent, bytes
for the client come, it ends, or the client leaves first. They interleave in any order, and
three things must hold in all of them:

- the pick is appended once and, if it chose a worker, its end is appended once (decision 34);
- the client's first byte waits for the acknowledgement or for the outage rule: the log is
  known to be away, has refused the record, or did not answer within the configured wait
  (decision 32); an answer that goes out unacknowledged is counted;
- nothing goes out and nothing but the end is appended once the client has left.

The machine holds no clock and does no I/O: `on_event(event, at)` returns effects, the shell
carries them out in order. Every event may come at any time and more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from projections.events.picks import DispatchEnded, EndStatus, Fault, PickMade


class Moment(NamedTuple):
    """When an event is seen. elapsed_us: any monotonic clock.

    log_us: log time; only Ended and ClientGone ask for it, others may say 0.
    """

    elapsed_us: int
    log_us: int


# Events


class Picked(NamedTuple):
    """The question was frozen and answered. away: the log is known not to answer."""

    pick: PickMade
    away: bool


class Acknowledged(NamedTuple):
    """The pick's record is durable."""


class Unlogged(NamedTuple):
    """The log shed or lost the pick's record, or is known to be away: the outage rule holds."""


class AnswerReady(NamedTuple):
    """Bytes for the client are at hand, of the frontend or an error of ours."""


class WaitOver(NamedTuple):
    """The time that WaitForLog named has come."""


class Ended(NamedTuple):
    """The dispatch is over, see DispatchEnded for the fields."""

    status: EndStatus
    fault: Fault = Fault.NONE
    http_status: int = 0
    backend: str = ""
    first_byte_us: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class ClientGone(NamedTuple):
    """The client closed its connection. The other fields as in Ended, as far as known."""

    http_status: int = 0
    backend: str = ""
    first_byte_us: int | None = None


Event = Picked | Acknowledged | Unlogged | AnswerReady | WaitOver | Ended | ClientGone


# Effects


class AppendPick(NamedTuple):
    """Queue the record and add it to the overlay, in this very step."""

    pick: PickMade


class Dispatch(NamedTuple):
    """Send the request with the pick's pins."""


class WaitForLog(NamedTuple):
    """Say WaitOver at `elapsed_us` of the monotonic clock."""

    elapsed_us: int


class OpenOutput(NamedTuple):
    """The client's first byte may go out. logged: the pick was acknowledged before."""

    logged: bool


class CountUnlogged(NamedTuple):
    """One more of picks_unlogged_total."""


class CloseUpstream(NamedTuple):
    """Nobody waits for the answer any more."""


class AppendEnd(NamedTuple):
    """Queue the record and add it to the overlay, in this very step."""

    end: DispatchEnded


Effect = AppendPick | Dispatch | WaitForLog | OpenOutput | CountUnlogged | CloseUpstream | AppendEnd


class Pinning:
    """One request's machine.

    output_wait_us: how long the first byte waits for the log, from the pick on.
    next_own_seq: takes the next number of the replica's picks and ends; asked only in the
    step that appends the end.
    """

    def __init__(self, output_wait_us: int, next_own_seq: Callable[[], int]) -> None:
        self._output_wait_us = output_wait_us
        self._next_own_seq = next_own_seq
        self._pick: PickMade | None = None
        self._picked_at = Moment(0, 0)
        self._chose = False
        self._acknowledged = False
        self._outage = False
        self._ready = False
        self._opened = False
        self._ended = False
        self._gone = False

    @property
    def has_ended(self) -> bool:
        """Whether the dispatch is over, or there was none."""
        return self._ended or (self._pick is not None and not self._chose)

    def on_event(self, event: Event, at: Moment) -> list[Effect]:
        """The effects of one event, in order. Any event may come at any time."""
        if isinstance(event, Picked):
            return self._picked(event, at)
        if self._pick is None:
            return []
        if isinstance(event, Acknowledged):
            self._acknowledged = True
            return self._output()
        if isinstance(event, AnswerReady):
            return self._answer_ready()
        if isinstance(event, Ended):
            return self._end(event, at)
        if isinstance(event, ClientGone):
            return self._client_gone(event, at)
        self._outage = True
        return self._output()

    def _picked(self, event: Picked, at: Moment) -> list[Effect]:
        if self._pick is not None:
            return []
        self._pick = event.pick
        self._picked_at = at
        self._outage = event.away
        self._chose = event.pick.outcome.decode.chosen is not None
        effects: list[Effect] = [AppendPick(event.pick)]
        if self._chose:
            effects.append(Dispatch())
        return effects

    def _answer_ready(self) -> list[Effect]:
        if self._ready:
            return []
        self._ready = True
        opened = self._output()
        if opened or self._gone:
            return opened
        return [WaitForLog(self._picked_at.elapsed_us + self._output_wait_us)]

    def _output(self) -> list[Effect]:
        if not self._ready or self._opened or self._gone:
            return []
        if not (self._acknowledged or self._outage):
            return []
        self._opened = True
        if self._acknowledged:
            return [OpenOutput(True)]
        return [CountUnlogged(), OpenOutput(False)]

    def _end(self, event: Ended, at: Moment) -> list[Effect]:
        if self.has_ended or self._pick is None:
            return []
        self._ended = True
        return [
            AppendEnd(
                DispatchEnded(
                    pick_id=self._pick.pick_id,
                    replica=self._pick.replica,
                    own_seq=self._next_own_seq(),
                    ended_at=at.log_us,
                    status=int(event.status),
                    fault=int(event.fault),
                    http_status=event.http_status,
                    backend=event.backend,
                    first_byte_us=event.first_byte_us,
                    duration_us=max(0, at.elapsed_us - self._picked_at.elapsed_us),
                    prompt_tokens=event.prompt_tokens,
                    completion_tokens=event.completion_tokens,
                    cached_tokens=event.cached_tokens,
                )
            )
        ]

    def _client_gone(self, event: ClientGone, at: Moment) -> list[Effect]:
        if self._gone:
            return []
        self._gone = True
        if self.has_ended:
            return [CloseUpstream()]
        cancelled = Ended(
            EndStatus.CANCELLED,
            http_status=event.http_status,
            backend=event.backend,
            first_byte_us=event.first_byte_us,
        )
        return [CloseUpstream(), *self._end(cancelled, at)]
