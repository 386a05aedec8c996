"""Chat completions and completions, from acceptance to the last byte.

One path serves both routes, streamed and buffered (SHIM-02, B-102): what differs is the
path that goes on. A request captures settings, keys, pools and the adopted version when it
is accepted. Then: read and clean the body; where a namespace is eligible, pick and send
pinned; where none is, or no worker was found, or a failed dispatch may fall back, send to
an ordinary backend of the model; else say why not.

The client's going cancels the handler. Whatever was open is closed and the dispatch ended
on the way out, and the cancellation goes on (B-093, B-094, B-108).
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final

from aiohttp import web

from projections.bounds import KIB
from projections.events.held import SettingsHeld
from projections.events.picks import EndStatus, Fault
from projections.identity import WorkerKey
from router.dispatch.refusals import NO_REPLICA
from router.dispatch.relay import RelayEnd
from router.dispatch.shim_client import Begun, NotServed, Order, Tries
from router.dispatch.shim_pools import Eligibility
from router.dispatch.usage import NO_USAGE, TAIL_BYTES, Usage, usage_of
from router.ingress.answers import RelayedAnswer, error_answer
from router.ingress.bodies import ChatBody, read_body, with_token_data
from router.ingress.client_body import read_client_body
from router.ingress.errors import ErrorCode, RequestRefused, error_event
from router.ingress.models import why_not_served
from router.ingress.pin_headers import (
    DISCLOSURE_WISH,
    REQUEST_ID,
    ROUTING_PATH,
    Pins,
    accepted_request_id,
    disclosure,
)
from router.ingress.pinned import PinnedRequest
from router.metrics import Route, RoutingPath
from router.question import NO_PROMPT, PromptFacts, estimate_tokens, served_model
from router.service import Frontage, RouterService

RETRY_AFTER_DEFAULT: Final = "1"
READ_HERE_BYTES_MAX: Final = 256 * KIB  # read in some two milliseconds
STUCK_CLIENT_GRACE_S: Final = 1.0  # after the total deadline, for the error event to go out


def request_id_of(request: web.BaseRequest) -> str:
    """The client's request id if it may stand, else a new one."""
    return accepted_request_id(request.headers.get(REQUEST_ID)) or os.urandom(16).hex()


class ChatRoute:
    """The handler of one of the two routes."""

    def __init__(self, service: RouterService, route: Route) -> None:
        self._service = service
        self._route = route

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve one request. Raises CancelledError only."""
        began_s = time.monotonic()
        passage = Passage(self._service, self._route, request)
        code: ErrorCode | None = None
        try:
            answer = await passage.serve()
        except RequestRefused as refused:
            code = refused.code
            answer = error_answer(refused, passage.request_id, passage.told())
        status = answer.status
        self._service.metrics.answered(self._route, status, code, int((time.monotonic() - began_s) * 1e6))
        return answer


class Passage:
    """One request on its way through."""

    def __init__(self, service: RouterService, route: Route, request: web.BaseRequest) -> None:
        self._service = service
        self._request = request
        self._path = route.value
        self._loop = asyncio.get_running_loop()
        self._frontage: Frontage = service.frontage
        self._held: SettingsHeld = service.log.settings()
        self._discloses = DISCLOSURE_WISH in request.headers
        self._pinned: PinnedRequest | None = None
        self._went: RoutingPath | None = None
        self._due_s = self._loop.time() + self._frontage.settings.deadlines.total_us / 1_000_000
        self.request_id = request_id_of(request)

    def told(self) -> list[tuple[str, str]]:
        """Headers of every answer once the request took a way: the routing path."""
        return [] if self._went is None else [(ROUTING_PATH, self._went.value)]

    async def serve(self) -> web.StreamResponse:
        """The answer, sent or ready to be. Raises RequestRefused, CancelledError."""
        settings = self._frontage.settings
        order, tokens, prompt = await self._accept()
        eligible: tuple[str, ...] = ()
        if settings.pinning and self._held.enabled:
            self._went = RoutingPath.UNIFIED
            eligibility = self._eligibility(order)
            eligible = eligibility.namespaces
            if eligible:
                pinned = self._pinned = PinnedRequest(self._service, settings.deadlines.output_wait_us)
                pins = pinned.ask(
                    self._held, self.request_id, order.model, eligible, eligibility.absent, tokens, prompt
                )
                if pins is not None:
                    return await self._send_pinned(order, pinned, pins, prompt)
        return await self._send_unified(order, eligible)

    def _eligibility(self, order: Order) -> Eligibility:
        return self._frontage.table.eligibility(
            self._held.pick.namespaces, order.caller, order.model, self._now_us()
        )

    async def _accept(self) -> tuple[Order, int, PromptFacts]:
        """What is to be sent, the estimate of its prompt's tokens, and the prompt's blocks.

        The parsed body ends here: it is many times its text, and a request may take minutes.
        """
        request, settings = self._request, self._frontage.settings
        headers = request.headers
        caller = self._frontage.keys.caller(
            headers.get("Authorization"), headers.get("X-API-Key"), time.time()
        )
        data = await read_client_body(request, settings.body_bytes_max, settings.deadlines.body_us / 1e6)
        body, tokens = await self._read(data)
        order = Order(
            path=self._path,
            request_id=self.request_id,
            headers=request.raw_headers,
            data=body.data,
            model=body.model,
            caller=caller,
            deadlines=settings.deadlines,
            due_s=self._due_s,
        )
        prompt = NO_PROMPT
        if self._held.pick.kv is not None and settings.pinning and self._held.enabled:
            eligible = self._eligibility(order).namespaces
            prompt = await self._service.read_prompt(
                self._held, body.document, headers, self._path, body.model, eligible
            )
        return order, tokens, prompt

    async def _read(self, data: bytes) -> tuple[ChatBody, int]:
        """The body and the estimate of its prompt's tokens. A large body is read beside the event loop."""
        if len(data) <= READ_HERE_BYTES_MAX:
            return self._read_at_once(data)
        return await asyncio.to_thread(self._read_at_once, data)

    def _read_at_once(self, data: bytes) -> tuple[ChatBody, int]:
        uploads = self._frontage.settings.allow_metadata_upload
        body = read_body(data, discloses=self._discloses, metadata_upload=uploads)
        return body, estimate_tokens(body.document)

    # pinned

    async def _send_pinned(
        self, order: Order, pinned: PinnedRequest, pins: Pins, prompt: PromptFacts
    ) -> web.StreamResponse:
        self._went = RoutingPath.PAIR if pins.prefill is not None else RoutingPath.UNIFIED
        tries = Tries(self._frontage.table, self._with_tokens(order, prompt), self._service.metrics)
        try:
            result = await tries.pinned(
                pins, lambda: self._worker_left(pins), lambda: self._model_served(order.model)
            )
        except BaseException:
            pinned.client_gone(None, tries.backend)
            self._service.metrics.routed(self._went)
            raise
        if isinstance(result, Begun):
            self._service.metrics.routed(self._went)
            return await self._relay(result, pinned)
        pinned.end_unserved(result)
        if result.row.phase is not None:
            self._service.metrics.failed(result.row.phase)
        if result.row.falls_back and self._frontage.settings.fallback_to_unified:
            fallback = await self._fall_back(order)
            if fallback is not None:
                return fallback
        self._service.metrics.routed(self._went)
        await pinned.output()
        raise self._refusal(result, pinned)

    def _with_tokens(self, order: Order, prompt: PromptFacts) -> Order:
        """The order for frontends; other backends get the body without our tokens (NVX-04)."""
        settings = self._frontage.settings.prompt
        if settings is None or not settings.send_token_data or not prompt.token_ids:
            return order
        return order._replace(data=with_token_data(order.data, prompt.token_ids))

    async def _fall_back(self, order: Order) -> web.StreamResponse | None:
        """A new send without pins, or None where no backend answers it (SHIM-23)."""
        result = await Tries(self._frontage.table, order, self._service.metrics).unified()
        if not isinstance(result, Begun):
            return None
        self._went = RoutingPath.FALLBACK
        self._service.metrics.routed(self._went)
        return await self._relay(result, None)

    def _refusal(self, result: NotServed, pinned: PinnedRequest) -> RequestRefused:
        code = result.row.code
        assert code is not None, "a row that is not relayed has a code"
        if code is not ErrorCode.RATE_LIMITED:
            return RequestRefused(code)
        if pinned.all_workers_stalled():
            code = ErrorCode.ALL_WORKERS_BUSY
        after = (result.retry_after or b"").decode("latin-1")
        seconds = after if after.isascii() and after.isdigit() and len(after) <= 6 else RETRY_AFTER_DEFAULT
        return RequestRefused(code, headers=(("Retry-After", seconds),))

    def _worker_left(self, pins: Pins) -> bool:
        workers = self._service.log.view().fleet.workers
        wanted = [pins.decode_instance]
        if pins.prefill_instance is not None:
            wanted.append(pins.prefill_instance)
        return any(WorkerKey(pins.namespace, instance) not in workers for instance in wanted)

    def _model_served(self, model: str) -> bool:
        name = served_model(model, self._held.pick)
        return bool(self._service.log.view().fleet.workers_of(name))

    # not pinned

    async def _send_unified(self, order: Order, eligible: tuple[str, ...]) -> web.StreamResponse:
        result = await Tries(self._frontage.table, order, self._service.metrics).unified()
        if self._went is not None:
            self._service.metrics.routed(self._went)
        if isinstance(result, Begun):
            return await self._relay(result, None)
        if self._pinned is not None:
            await self._pinned.output()
        if result.row is not NO_REPLICA and result.row.code is not None:
            raise RequestRefused(result.row.code)
        code = why_not_served(self._service, self._frontage, self._held, order.model, eligible)
        raise RequestRefused(code, param="model" if code is ErrorCode.MODEL_NOT_FOUND else None)

    # answers

    async def _relay(self, begun: Begun, pinned: PinnedRequest | None) -> web.StreamResponse:
        """Send an answer on. `pinned` where its dispatch is to be ended with the answer."""
        told = self.told()
        if self._discloses:
            told.extend(disclosure(begun.replica.name, None if pinned is None else pinned.pins))
        answer = RelayedAnswer(self._request, begun.head, self.request_id, told)
        try:
            if begun.whole:
                self._end(begun, pinned, EndStatus.OK, usage_of(begun.first[-TAIL_BYTES:]))
                begun.close()
            if self._pinned is not None:
                await self._pinned.output()
            if begun.whole:
                sent = answer.whole(begun.first)
                if answer.is_full:
                    await self._taken(answer)
                return sent
            return await self._stream(begun, pinned, answer)
        except ConnectionError:  # the client has gone: `finally` ends the dispatch
            return answer.sent()
        finally:
            if pinned is not None and not pinned.has_ended:
                pinned.client_gone(begun)
            begun.close()

    async def _taken(self, answer: RelayedAnswer) -> None:
        """Return once the client has taken an answer, so that it does not ask for more meanwhile."""
        late = self._loop.call_at(self._due_s + STUCK_CLIENT_GRACE_S, answer.cut)
        try:
            await answer.drained()
        finally:
            late.cancel()

    async def _stream(
        self, begun: Begun, pinned: PinnedRequest | None, answer: RelayedAnswer
    ) -> web.StreamResponse:
        late = self._loop.call_at(self._due_s + STUCK_CLIENT_GRACE_S, answer.cut)
        try:
            idle_us = self._frontage.settings.deadlines.idle_us
            relayed = await self._service.relay.run(begun, answer, idle_us, self._due_s)
        except asyncio.CancelledError:
            if self._loop.time() >= self._due_s:  # it was we who cut it
                self._end(begun, pinned, EndStatus.EXPIRED, NO_USAGE)
            raise
        finally:
            late.cancel()
        if relayed.end is RelayEnd.WHOLE:
            self._end(begun, pinned, EndStatus.OK, relayed.usage)
            return answer.finish()
        expired = relayed.end is RelayEnd.EXPIRED
        self._end(begun, pinned, EndStatus.EXPIRED if expired else EndStatus.FAILED, relayed.usage)
        if not begun.is_stream:
            return answer.cut()
        code = ErrorCode.UPSTREAM_TIMEOUT if expired else ErrorCode.UPSTREAM_FAILED
        answer.write((b"" if relayed.between_events else b"\n\n") + error_event(code))
        return answer.finish()

    def _end(self, begun: Begun, pinned: PinnedRequest | None, status: EndStatus, usage: Usage) -> None:
        if pinned is None:
            return
        row = begun.row
        if row is not None and status is EndStatus.OK:
            status = row.end
        pinned.end(status, Fault.NONE, begun.head.status, begun.replica.name, begun.first_byte_s, usage)

    def _now_us(self) -> int:
        return int(self._loop.time() * 1_000_000)
