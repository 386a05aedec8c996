"""The asyncio shell of discovery: one supervised task around a source and the pass machine.

The task runs the machine's effects: it appends facts, starts the session's steps one at a
time, keeps the timer and closes what is over. Events of a step come through a queue of
MAIL_MAX batches, so a store that tells more than we fold is paused, not buffered.

Nothing that a fleet or a store does ends the task: a failure of the world is `SourceFailed`,
anything else that a source raises is logged by its type and ends the pass in the same way.
A session that does not close within CLOSE_S_MAX is abandoned. `replace` puts other settings
to work between two events; `stop` ends the task.

Sources: requirement rows ETCD-13..16, REL-04..08, REL-11, REL-12.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

from ingest.discovery.discovery_pass import DiscoveryPass
from ingest.discovery.held_keys import HeldKey
from ingest.discovery.pass_effects import (
    Append,
    Close,
    Connect,
    Effect,
    ListNames,
    Notify,
    OpenWatches,
    Phase,
    ReadValues,
    Refused,
    SleepUntil,
    StateChanged,
)
from ingest.discovery.restart import EVERY_NAMESPACE, Restart, restart_for
from ingest.discovery.settings import DiscoverySettings
from ingest.discovery.siblings import LOOK_EVERY_US, SiblingNamespaces
from ingest.discovery.source import (
    Connected,
    DiscoverySource,
    EndReason,
    ReadAt,
    Session,
    SourceEnded,
    SourceEvent,
    SourceFailed,
    ValuesEnded,
    Waiting,
)
from ingest.discovery.sources import source_of
from projections.events.discovery import KeysDropped, Keyspace
from projections.notices import DiscoveryNotice, Notice, StatusNotice

MAIL_MAX: Final = 8
CLOSE_S_MAX: Final = 5.0
PAUSE_S: Final = 0.01  # for a log that sheds; a full disk sheds for long, so pauses are counted
PAUSES_MAX: Final = 100

Fact = tuple[Any, ...]


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000


class DiscoveryRunner:
    """Follows the store that the settings name and appends what differs.

    append:       takes facts in order; must not block. Called on the event loop.
    held_digests: what the fold holds now, of all namespaces (`Keyspaces.held_digests`).
    on_refused:   counted outcomes that are not in the log (`DiscoveryNotice`). Restarts are in it:
                  the reason stands in `PassBegan`.
    on_state:     every change of phase; `connected` feeds the gauge.
    on_notice:    what people should read (`StatusNotice`).
    clock_us:     monotonic microseconds.
    make_source:  the source for settings.
    pass_number:  of the last pass that the log knows.
    is_shedding:  whether more waits for the disk than should; facts then come more slowly.
    """

    def __init__(
        self,
        settings: DiscoverySettings,
        append: Callable[[Fact], object],
        held_digests: Mapping[HeldKey, bytes],
        on_refused: Callable[[DiscoveryNotice], object],
        on_state: Callable[[StateChanged], object],
        clock_us: Callable[[], int] = _monotonic_us,
        on_notice: Callable[[Notice], object] = lambda notice: None,
        make_source: Callable[[DiscoverySettings], DiscoverySource] = source_of,
        pass_number: int = 0,
        is_shedding: Callable[[], bool] = lambda: False,
    ) -> None:
        self.settings = settings
        self.state = StateChanged(Phase.IDLE, "not started")
        self._append = append
        self._on_refused = on_refused
        self._on_state = on_state
        self._on_notice = on_notice
        self._clock_us = clock_us
        self._make_source = make_source
        self._is_shedding = is_shedding
        self._machine = self._machine_for(settings, held_digests, pass_number)
        self._source: DiscoverySource | None = None
        self._session: Session | None = None
        self._step: asyncio.Task[None] | None = None
        self._mail: asyncio.Queue[SourceEvent] = asyncio.Queue(MAIL_MAX)
        self._commands: list[Callable[[], list[Effect]]] = []
        self._wake = asyncio.Event()
        self._due_us: int | None = None
        self._is_stopping = False
        self._siblings = SiblingNamespaces()
        self._siblings_due_us: int | None = None

    async def run(self) -> None:
        """Follow the store until `stop`. Raises only what `append` and the callbacks raise."""
        try:
            await self._perform(self._started("start"))
            while not self._is_stopping:
                await self._perform(await self._next_effects())
                await self._look_for_siblings()
        finally:
            # Also when cancelled: the session must not outlive the task, the pass must be seen to end.
            await asyncio.shield(asyncio.ensure_future(self._perform(self._machine.stop())))

    def replace(self, settings: DiscoverySettings, reason: str | None = None) -> None:
        """Go on with other settings. Equal ones change nothing. Safe before `run` (REL-11).

        reason: shown and logged instead of the one that `restart_for` finds.
        """
        self._command(lambda: self._replaced(settings, reason))

    def repeat_pass(self, held_digests: Mapping[HeldKey, bytes]) -> None:
        """Read everything again, comparing with what the fold really holds."""
        self._command(lambda: self._machine.repeat(held_digests, self._clock_us()))

    def stop(self) -> None:
        """Let `run` return, within CLOSE_S_MAX."""
        self._is_stopping = True
        self._wake.set()

    # between events

    async def _next_effects(self) -> list[Effect]:
        """Wait for a command, an event or the time, whichever comes first."""
        while not self._is_stopping:
            if self._commands:
                return self._commands.pop(0)()
            now_us = self._clock_us()
            if self._due_us is not None and now_us >= self._due_us:
                self._due_us = None  # before the mail: a store that never stops talking has a limit too
                return self._machine.tick(now_us)
            if not self._mail.empty():
                await self._let_the_log_catch_up()
                return self._machine.receive(self._mail.get_nowait(), self._clock_us())
            if self._siblings_due_us is not None and now_us >= self._siblings_due_us:
                return []
            await self._wait(now_us)
        return []

    async def _wait(self, now_us: int) -> None:
        self._wake.clear()
        due = [at_us for at_us in (self._due_us, self._siblings_due_us) if at_us is not None]
        timeout_s = max(0.001, (min(due) - now_us) / 1e6) if due else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()

    async def _let_the_log_catch_up(self) -> None:
        """A first pass can be larger than what may wait for the disk: then it is read more slowly."""
        for _ in range(PAUSES_MAX):
            if self._is_stopping or not self._is_shedding():
                return
            await asyncio.sleep(PAUSE_S)

    def _command(self, command: Callable[[], list[Effect]]) -> None:
        self._commands.append(command)
        self._wake.set()

    def _started(self, reason: str) -> list[Effect]:
        if not self.settings.enabled:
            state = StateChanged(Phase.IDLE, "disabled")
            if self._machine.held.drop(EVERY_NAMESPACE):  # held from before it was disabled
                return [Append(KeysDropped(EVERY_NAMESPACE, "enabled")), state]
            return [state]
        return self._machine.start(self._clock_us(), reason)

    def _replaced(self, settings: DiscoverySettings, reason: str | None) -> list[Effect]:
        restart = restart_for(self.settings, settings)
        if restart is None:
            return []
        effects = self._machine.stop(EndReason.REPLACED)
        shown = reason or str(restart.reason)
        effects += self._dropped(restart, shown)
        self.settings = settings
        self._source = None
        self._siblings = SiblingNamespaces()
        self._machine = self._machine_for(settings, self._machine.held, self._machine.pass_number)
        if not settings.enabled:
            effects.append(Notify(StatusNotice("discovery was stopped", shown)))
        return effects + self._started(shown)

    def _dropped(self, restart: Restart, shown: str) -> list[Effect]:
        if restart.drops is None:
            return []
        self._machine.held.drop(restart.drops)
        return [Append(KeysDropped(restart.drops, shown))]

    def _machine_for(self, settings: DiscoverySettings, held: Any, pass_number: int) -> DiscoveryPass:
        return DiscoveryPass(
            settings.source.value,
            settings.namespaces,
            held,
            settings.backoff_initial_us,
            settings.backoff_max_us,
            pass_number,
        )

    # effects

    async def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Append(fact):
                    self._append(fact)
                case SleepUntil(at_us):
                    self._due_us = at_us
                case StateChanged():
                    self.state = effect
                    self._siblings_due_us = self._clock_us() if effect.connected else None
                    self._on_state(effect)
                case Refused(notice):
                    self._on_refused(notice)
                case Notify(status):
                    self._on_notice(status)
                case Close():
                    await self._close()
                case Connect():
                    self._run_step(self._connecting())
                case ListNames(watched):
                    self._run_step(self._of_session(lambda session: session.names(watched)))
                case ReadValues(listed):
                    self._run_step(self._reading(listed))
                case OpenWatches(listed):
                    self._run_step(self._following(listed))

    def _run_step(self, events: AsyncGenerator[SourceEvent, None]) -> None:
        self._step = asyncio.ensure_future(self._deliver(events))

    async def _deliver(self, events: AsyncGenerator[SourceEvent, None]) -> None:
        """Carry a step's events to the mail; its failure is the last of them."""
        try:
            async for event in events:
                await self._post(event)
        except SourceFailed as failure:
            await self._post(SourceEnded(failure.reason, failure.detail))
        except Exception as fault:  # a source's own fault must not end discovery
            await self._post(SourceEnded(EndReason.ERROR, type(fault).__name__))
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            # Not ours: a library cancelled its own call under us.
            await self._post(SourceEnded(EndReason.STREAM, "the call was cancelled"))

    async def _post(self, event: SourceEvent) -> None:
        await self._mail.put(event)
        self._wake.set()

    async def _connecting(self) -> AsyncGenerator[SourceEvent, None]:
        if self._source is None:
            self._source = self._make_source(self.settings)
        self._session = await self._source.connect(self._tell_waiting)
        yield Connected(self._session.where)

    def _tell_waiting(self, what: str) -> None:
        # The mail is empty while connecting, so this never meets a full queue.
        self._mail.put_nowait(Waiting(what))
        self._wake.set()

    async def _of_session(
        self, step: Callable[[Session], AsyncGenerator[SourceEvent, None]]
    ) -> AsyncGenerator[SourceEvent, None]:
        if self._session is not None:
            async with contextlib.aclosing(step(self._session)) as events:
                async for event in events:
                    yield event

    async def _reading(self, listed: tuple[ReadAt, ...]) -> AsyncGenerator[SourceEvent, None]:
        async for event in self._of_session(lambda session: session.values(listed)):
            yield event
        yield ValuesEnded()

    async def _following(self, listed: tuple[ReadAt, ...]) -> AsyncGenerator[SourceEvent, None]:
        async for event in self._of_session(lambda session: session.changes(listed)):
            yield event
        yield SourceEnded(EndReason.STREAM, "the source stopped telling")

    async def _close(self) -> None:
        """Cancel the step, drop its mail, close the session; abandon what does not end in time."""
        step, self._step = self._step, None
        session, self._session = self._session, None
        ending = asyncio.ensure_future(_ended(step, session))
        await asyncio.wait({ending}, timeout=CLOSE_S_MAX)
        if not ending.done():
            ending.cancel()
            self._source = None  # its lane or channel may be stuck: the next pass makes a new one
            self._on_notice(StatusNotice("discovery session did not close in time", "", "warning"))
        while not self._mail.empty():
            self._mail.get_nowait()

    async def _look_for_siblings(self) -> None:
        now_us = self._clock_us()
        if self._siblings_due_us is None or now_us < self._siblings_due_us or self._session is None:
            return
        self._siblings_due_us = now_us + LOOK_EVERY_US
        held = self._machine.held
        looked = await self._siblings.look(
            self._session,
            self.settings.namespaces,
            lambda namespace: held.count(Keyspace.INSTANCES, namespace),
        )
        for notice in looked:
            self._on_notice(notice)


async def _ended(step: asyncio.Task[None] | None, session: Session | None) -> None:
    if step is not None:
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
    if session is not None:
        with contextlib.suppress(Exception):  # it is being thrown away
            await session.close()


def _is_being_cancelled() -> bool:
    """Whether somebody asked for the end of the running task.

    A function of its own: a task that its own frame names is freed by the cycle collector
    alone, and with it the connection that the frame holds.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
