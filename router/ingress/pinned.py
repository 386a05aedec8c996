"""The shell of one picked request: carries out what the pinning machine says.

It owns the request's pick, its end and its gate. `ask` is one step without an await:
question, pick, number, record and overlay entry (decision 28). `output` returns once the
client's first byte may go out. Whatever ends the handler, `client_gone` or `end` was
called before it, and the machine sees to it that the log gets one end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from projections.events.held import SettingsHeld
from projections.events.picks import EndStatus, Fault, PhaseOutcome, PickMade, Verdict
from router.dispatch.shim_client import Begun, NotServed
from router.dispatch.usage import NO_USAGE, Usage
from router.ingress.pin_headers import Pins, pins_of
from router.picker.rows import unpack_rows
from router.pinning import (
    Acknowledged,
    AnswerReady,
    AppendEnd,
    AppendPick,
    ClientGone,
    CountUnlogged,
    Effect,
    Ended,
    Event,
    Moment,
    OpenOutput,
    Picked,
    Pinning,
    Unlogged,
    WaitForLog,
    WaitOver,
)
from router.question import NO_PROMPT, PromptFacts
from router.service import RouterService


class PinnedRequest:
    """One request that was picked."""

    def __init__(self, service: RouterService, output_wait_us: int) -> None:
        self._service = service
        self._log = service.log
        self._loop = asyncio.get_running_loop()
        self._machine = Pinning(output_wait_us, service.log.next_own_seq)
        self._open: asyncio.Future[None] | None = None
        self._opened = False
        self._timer: asyncio.TimerHandle | None = None
        self._sent_s = 0.0
        self._held: SettingsHeld | None = None
        self._prompt = NO_PROMPT
        self.pick: PickMade | None = None
        self.pins: Pins | None = None

    def ask(
        self,
        held: SettingsHeld,
        request_id: str,
        model: str,
        eligible: Sequence[str],
        absent: Sequence[tuple[str, int]],
        estimated_tokens: int,
        prompt: PromptFacts = NO_PROMPT,
    ) -> Pins | None:
        """Pick, and queue the pick. The pins, or None where no worker was chosen."""
        pick = self._service.pick(
            held=held,
            request_id=request_id,
            model=model,
            eligible=eligible,
            absent=absent,
            estimated_tokens=estimated_tokens,
            prompt=prompt,
        )
        self._held, self._prompt = held, prompt
        self.pick = pick
        self.pins = pins_of(pick.outcome)
        self._sent_s = self._loop.time()
        self._handle(Picked(pick, self._log.is_away()))
        return self.pins

    async def output(self) -> None:
        """Return once the client's first byte may go out (decision 32)."""
        self._handle(AnswerReady())
        if not self._opened and self._log.is_away():
            self._handle(Unlogged())
        if not self._opened:
            self._open = self._loop.create_future()
            await self._open

    def end(
        self,
        status: EndStatus,
        fault: Fault,
        http_status: int,
        backend: str,
        first_byte_s: float | None = None,
        usage: Usage = NO_USAGE,
    ) -> None:
        """The dispatch is over. first_byte_s: loop time of the answer's beginning."""
        if self.pick is not None and self._held is not None and not self.has_ended:
            self._service.served(self.pick, self._prompt, self._held, status, usage)
        self._handle(
            Ended(
                status,
                fault,
                http_status,
                backend,
                self._since_sent_us(first_byte_s),
                usage.prompt_tokens,
                usage.completion_tokens,
                usage.cached_tokens,
            )
        )

    def end_unserved(self, result: NotServed) -> None:
        """The dispatch is over without an answer for the client."""
        self.end(result.row.end, result.row.fault, result.http_status, result.backend)

    def client_gone(self, begun: Begun | None, backend: str = "") -> None:
        """The client left, or the process is stopping. What is open upstream closes."""
        if begun is None:
            self._handle(ClientGone(0, backend))
        else:
            self._handle(
                ClientGone(begun.head.status, begun.replica.name, self._since_sent_us(begun.first_byte_s))
            )
            begun.close()
        self._cancel_timer()

    @property
    def has_ended(self) -> bool:
        """Whether the log has its end, or needs none."""
        return self._machine.has_ended

    def all_workers_stalled(self) -> bool:
        """Whether a phase of the pick saw no candidate that was not stalled.

        Told from the rows that the record keeps, so never for a phase with more candidates.
        """
        assert self.pick is not None
        outcome = self.pick.outcome
        return any(map(_all_stalled, (outcome.prefill, outcome.decode)))

    def _since_sent_us(self, moment_s: float | None) -> int | None:
        return None if moment_s is None else max(0, int((moment_s - self._sent_s) * 1_000_000))

    def _handle(self, event: Event) -> None:
        log_us = self._log.log_time()[0] if isinstance(event, (Ended, ClientGone)) else 0
        moment = Moment(int(self._loop.time() * 1_000_000), log_us)
        for effect in self._machine.on_event(event, moment):
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, AppendPick):
            self._log.append_pick(effect.pick, self._on_logged)
        elif isinstance(effect, AppendEnd):
            self._log.append_end(effect.end)
        elif isinstance(effect, OpenOutput):
            self._opened = True
            self._cancel_timer()
            if self._open is not None and not self._open.done():
                self._open.set_result(None)
        elif isinstance(effect, CountUnlogged):
            self._service.metrics.pick_unlogged()
        elif isinstance(effect, WaitForLog):
            self._timer = self._loop.call_at(effect.elapsed_us / 1_000_000, self._handle, WaitOver())

    def _on_logged(self, durable: bool) -> None:
        self._handle(Acknowledged() if durable else Unlogged())

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _all_stalled(phase: PhaseOutcome) -> bool:
    rows = unpack_rows(phase.rows)
    seen_all = 0 < phase.candidates <= len(rows)
    return seen_all and all(row.verdict == Verdict.STALLED for row in rows)
