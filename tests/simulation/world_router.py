"""The router of a simulated process: requests come, are picked by the real step, answered, left.

The pick is `RouterService.pick` itself, the request is the real `Pinning` machine. Frontends
answer as decision 31 allows, clients leave when they like, events come late and twice.
"""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from projections.events.held import SettingsHeld
from projections.events.picks import AbsentCause, DispatchEnded, EndStatus, Fault, PickMade
from router.picker.pick import pick
from router.pinning import (
    Acknowledged,
    AnswerReady,
    AppendEnd,
    AppendPick,
    ClientGone,
    CloseUpstream,
    CountUnlogged,
    Dispatch,
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
from router.question import NO_PROMPT
from router.rotations import Rotations
from router.service import RouterService
from tests.simulation.world_blocks import Prompt, a_prompt, facts_of

if TYPE_CHECKING:
    from tests.simulation.world_process import Replica

OUTPUT_WAIT_US = 500_000


class Wish(NamedTuple):
    """What a request asks for, and what the frontend and the client will do.

    body_us: from acceptance to the pick. first_us, last_us: of the answer, after the dispatch.
    leaves_us: when the client goes, None where it stays. times: how often each event comes.
    prompt: its blocks, where picks are prefix-aware.
    """

    model: str = "tiny"
    tokens: int = 100
    answer: str = "ok"
    body_us: int = 0
    first_us: int = 20_000
    last_us: int = 500_000
    leaves_us: int | None = None
    times: int = 1
    absent_rate: float = 0.0
    prompt: Prompt | None = None


def drawn(rng: Random) -> Wish:
    """Any request."""
    first = rng.choice((1_000, 20_000, 200_000, 3_000_000))
    last = first + rng.choice((1_000, 500_000, 7_000_000))
    return Wish(
        rng.choice(("tiny", "tiny", "small", "nick", "nobody")),
        rng.choice((1, 5, 40, 200, 1_000)),
        rng.choices(("ok", "refused", "fault", "broken", "expired"), (8, 1, 2, 1, 1))[0],
        0 if rng.random() < 0.5 else rng.randint(0, 60_000),
        first,
        last,
        rng.randint(0, last + 1_000) if rng.random() < 0.15 else None,
        2 if rng.random() < 0.1 else 1,
        0.1,
    )


class _NoMetrics:
    def picked(self, *_: Any) -> None:
        pass


class SimRouter(RouterService):
    """The real picking step, without HTTP. own: this replica's picks and ends, numbered."""

    def __init__(self, process: Replica) -> None:
        self.process = process
        self.log = process.log
        self.metrics = _NoMetrics()  # type: ignore[assignment]
        self._picker = pick
        self._rotations = Rotations()
        self._seen_models = {}
        self._seen_generation = -1
        self.prompts = None
        self.frontage = SimpleNamespace(settings=SimpleNamespace(prompt=None))  # type: ignore[assignment]
        self.own: list[tuple[int, Any]] = []
        self.requests: list[Request] = []

    def ask(self, wish: Wish | None = None) -> Request | None:
        """A request arrives; its settings are those of this moment. None: nothing is served yet."""
        held = self.log.settings()
        if not held.pick.namespaces:
            return None
        if wish is None:
            wish = drawn(self.process.sim.rng)
            if held.pick.kv is not None:
                wish = wish._replace(prompt=a_prompt(self.process.sim.kv_rng))
        request = Request(self, held, wish)
        self.requests.append(request)
        self.process.later(request.wish.body_us, request.pick)
        return request

    def died(self) -> None:
        """Whatever was open here stays open for ever."""
        self.process.sim.routers_gone.append(self)


class Request:
    """One request: what the machine says is done at once, what the world does comes later."""

    def __init__(self, router: SimRouter, held: SettingsHeld, wish: Wish) -> None:
        self.wish = wish
        self.router = router
        self.process = router.process
        self.held = held
        self.made: PickMade | None = None
        self.end: DispatchEnded | None = None
        self.acknowledged: bool | None = None
        self.opened: bool | None = None
        self.has_left = False
        self.dispatches = 0
        self._outage = False
        self._machine = Pinning(OUTPUT_WAIT_US, router.log.next_own_seq)

    def pick(self) -> None:
        """Question, pick, record: one step."""
        rng, held, wish = self.process.sim.rng, self.held, self.wish
        eligible = [space for space in held.pick.namespaces if rng.random() >= wish.absent_rate]
        absent = [
            (space, int(AbsentCause.SHIM_UNHEALTHY))
            for space in held.pick.namespaces
            if space not in eligible
        ]
        self.made = self.router.pick(
            held=held,
            request_id=f"r{len(self.process.sim.requests)}",
            model=wish.model,
            eligible=eligible,
            absent=absent,
            estimated_tokens=wish.tokens,
            prompt=facts_of(wish.prompt, self.process.sim.kv_rng) if held.pick.kv is not None else NO_PROMPT,
        )
        self.process.sim.picked(self)
        away = self.router.log.is_away()
        self._outage = away
        self._tell(Picked(self.made, away))

    def _tell(self, event: Event) -> None:
        moment = Moment(self.process.clock(), self.router.log.log_time()[0])
        for effect in self._machine.on_event(event, moment):
            self._do(effect)

    def _do(self, effect: Any) -> None:
        if isinstance(effect, AppendPick):
            self.router.own.append((effect.pick.own_seq + 1, effect.pick))
            self.router.log.append_pick(effect.pick, self._logged)
        elif isinstance(effect, AppendEnd):
            assert self.end is None, "a dispatch ended twice"
            self.end = effect.end
            self.router.own.append((effect.end.own_seq, effect.end))
            self.router.log.append_end(effect.end)
        elif isinstance(effect, Dispatch):
            self.dispatches += 1
            assert self.dispatches == 1
            self._answer()
        elif isinstance(effect, WaitForLog):
            self.process.later(max(0, effect.elapsed_us - self.process.clock()), self._waited)
        elif isinstance(effect, OpenOutput):
            self._open(effect)
        else:
            assert isinstance(effect, CountUnlogged | CloseUpstream)

    def _open(self, effect: OpenOutput) -> None:
        assert self.opened is None, "the output was opened twice"
        assert not self.has_left, "bytes for a client that left"
        assert effect.logged == (self.acknowledged is True)
        assert effect.logged or self._outage, "a byte went out before the log or the outage rule said so"
        self.opened = effect.logged

    def _logged(self, durable: bool) -> None:
        if durable:
            self.acknowledged = True
        else:
            self._outage = True
        self._tell(Acknowledged() if durable else Unlogged())

    def _waited(self) -> None:
        self._outage = True
        self._tell(WaitOver())

    def _ready(self) -> None:
        if self.process.sim.rng.random() < 0.2 and self.router.log.is_away():
            self._outage = True
            self._tell(Unlogged())
        self._tell(AnswerReady())

    def _served(self) -> None:
        assert self.made is not None and self.wish.prompt is not None
        self.process.sim.engines_store(self.made, self.wish.prompt)

    def _leave(self) -> None:
        self.has_left = True
        self._tell(ClientGone())

    def _answer(self) -> None:
        """What the frontend and the client will do."""
        later, wish = self.process.later, self.wish
        answer = "fault" if self.process.sim.is_dead_worker(self.made) else wish.answer
        first, last = wish.first_us, wish.last_us
        ended = {
            "ok": Ended(EndStatus.OK, Fault.NONE, 200, "shim", first),
            "refused": Ended(EndStatus.REFUSED, Fault.BACKPRESSURE, 429, "shim"),
            "fault": Ended(EndStatus.FAILED, Fault.FAULT, 503, "shim"),
            "broken": Ended(EndStatus.FAILED, Fault.NONE, 200, "shim", first),
            "expired": Ended(EndStatus.EXPIRED, Fault.NONE, 0, ""),
        }[answer]
        ends_at = {"refused": first, "fault": first, "expired": 12_000_000}.get(answer, last)
        later(first, self._ready)
        if wish.prompt is not None and first <= last:
            later(first, self._served)
        for _ in range(wish.times):
            later(ends_at, lambda: self._tell(ended))
            if wish.leaves_us is not None:
                later(wish.leaves_us, self._leave)
