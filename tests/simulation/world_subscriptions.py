"""Subscriptions of a simulated owner to the load of its fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.subscriptions.continuity import Continuity
from ingest.subscriptions.supervisor import SubscriptionRow
from ingest.wire.publisher_frames import Sample
from projections.events.signals import (
    Family,
    FrameRefused,
    SampleReceived,
    SubscriptionChanged,
    SubscriptionState,
    Transport,
)
from projections.fold import Fold
from projections.notices import FrameResult
from projections.registry.fleet import Fleet
from tests.simulation.world_blocks import row_of

if TYPE_CHECKING:
    from tests.simulation.world_owner import OwnerProcess

MERGE_US = 2_000


class SimSubscriptions:
    """Subscriptions as the supervisor keeps them, each with the real `Continuity`."""

    def __init__(self, process: OwnerProcess, fold: Fold) -> None:
        self._process = process
        self.followed = -1
        self._connections: dict[tuple[str, int], int] = {}
        self._held = {}
        for key, held in fold.state.status.subscriptions.items():
            if key[0] == Family.LOAD:
                self._held[key[1:]] = held.component
                self._connections[key[1:]] = held.connection
        self.lines: dict[tuple[str, int], SimLine] = {}

    def follow(self, fleet: Fleet) -> None:
        """Start and end lines as the folded fleet says."""
        wanted = {(*one.key,) for one in fleet.publishers if one.topic == "kv_metrics"}
        held, self._held = self._held, {}
        for key in sorted(held):
            if key not in wanted:
                self._say(key, SubscriptionState.ENDED, "departed")
        for key in sorted(set(self.lines) - wanted):
            self.lines.pop(key).close()
            self._say(key, SubscriptionState.ENDED, "departed")
        for key in sorted(wanted - set(self.lines)):
            self._say(key, SubscriptionState.CONNECTING, "started")
            self.lines[key] = SimLine(self, self._process, key)

    def next_connection(self, key: tuple[str, int]) -> int:
        """A number that never comes back."""
        self._connections[key] = self._connections.get(key, 0) + 1
        return self._connections[key]

    def cut(self, reason: str) -> None:
        """All connections end."""
        for line in self.lines.values():
            line.cut(reason)

    def rows(self) -> list[SubscriptionRow]:
        """As the supervisor tells them."""
        return [row_of(Family.LOAD, key, line, self._connections) for key, line in self.lines.items()]

    def renumber(self, key: tuple[str, int], shift: int) -> None:
        """As the supervisor does."""
        self._connections[key] = self._connections.get(key, 0) + shift
        if key in self.lines:
            self.lines[key].connection += shift

    def _say(self, key: tuple[str, int], state: SubscriptionState, reason: str) -> None:
        connection = self._connections.get(key, 0)
        self._process.say_ingest(
            SubscriptionChanged(
                int(Family.LOAD), *key, "", int(state), connection, int(Transport.DIRECT), reason
            )
        )

    def connected(self, key: tuple[str, int]) -> None:
        """Tell the log."""
        self._say(key, SubscriptionState.CONNECTED, "connected")

    def backed_off(self, key: tuple[str, int], reason: str) -> None:
        """Tell the log."""
        self._say(key, SubscriptionState.BACKOFF, reason)


class SimLine:
    """One publisher's subscription: connect, listen, wait, again."""

    def __init__(self, owner: SimSubscriptions, process: OwnerProcess, key: tuple[str, int]) -> None:
        self._owner, self._process, self.key = owner, process, key
        self._continuity = Continuity()
        self.session = 0  # counts the connections; their numbers may grow for another reason
        self.connection = 0
        self.is_connected = False
        self._is_closed = False
        self._is_planned = False
        self._dial()

    def close(self) -> None:
        """Silent at once."""
        self._is_closed, self.is_connected = True, False

    def cut(self, reason: str) -> None:
        """The connection ends; samples that wait are told unless they are old."""
        if not self.is_connected:
            return
        if reason == "stalled":
            self._continuity = Continuity()
        self._tell()
        self.is_connected = False
        self._continuity = Continuity()
        self._owner.backed_off(self.key, reason)
        self._dial()

    def frame(self, session: int, sample: Sample | None, sequence: int) -> None:
        """A message arrived; None: one that is refused."""
        if not self.is_connected or session != self.session:
            return
        self._process.heard((*self.key, self.connection, sequence))
        result: FrameResult | None = FrameResult.MALFORMED
        if sample is None:
            self._continuity.fill(sequence)
        else:
            result = self._continuity.take(sample)
        if result is not None:
            self._process.say_ingest(
                FrameRefused(int(Family.LOAD), *self.key, self.connection, int(result), 1)
            )
        if self._continuity.waiting and not self._is_planned:
            self._is_planned = True
            self._process.later(self._process.sim.rng.choice((0, MERGE_US, 60_000)), self._planned)

    def _dial(self) -> None:
        self._process.later(self._process.sim.rng.choice((1_000, 50_000, 1_500_000)), self._connect)

    def _connect(self) -> None:
        if self._is_closed or self.is_connected:
            return
        if not self._process.sim.is_listening(self.key):
            self._dial()
            return
        self._continuity = Continuity()
        self.session += 1
        self.connection = self._owner.next_connection(self.key)
        self.is_connected = True
        self._owner.connected(self.key)

    def _planned(self) -> None:
        self._is_planned = False
        if self._process.appender.is_shedding and self.is_connected:
            self._is_planned = True
            self._process.later(50_000, self._planned)
            return
        self._tell()

    def _tell(self) -> None:
        if not self.is_connected:
            return
        for covers_from, sample, _ in self._continuity.drain():
            self._process.say_ingest(
                SampleReceived(
                    *self.key,
                    self.connection,
                    covers_from,
                    sample.sequence,
                    sample.worker_id,
                    sample.dp_rank,
                    sample.active_decode_blocks,
                    sample.active_prefill_tokens,
                    sample.kv_used_blocks,
                    sample.published_at_ms,
                )
            )
