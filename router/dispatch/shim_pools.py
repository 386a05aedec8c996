"""Backends: which there are, how they do, and which one takes a request.

A `Replica` is one configured backend with its connections, breaker, health and permits. A
`PoolTable` is what one settings value makes of them: frontends by namespace, and ordinary
backends. A request keeps the table it was accepted under; replicas that a reload leaves
unchanged are shared between tables, so their health and connections last.

From a table come the eligible namespaces of a question with a cause for every other one
(decision 28), and the replica for a try: the one with the fewest requests in flight, equal
ones in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import Enum
from typing import Final, NamedTuple

import structlog

from projections.events.picks import AbsentCause
from router.dispatch.breaker import Breaker
from router.dispatch.upstream import Address, Upstream
from router.ingress.keys import Caller
from router.settings import BackendSettings, RouterSettings

MODELS_LISTED_MAX: Final = 4096  # of one backend's /v1/models
UNUSABLE_MODELS_MAX: Final = 256

_log = structlog.get_logger("router.pools")

# The furthest obstacle names the cause: a disabled replica says less than an ill one.
_CAUSES_BY_NEARNESS: Final = (
    AbsentCause.SHIM_UNUSABLE,
    AbsentCause.BREAKER_OPEN,
    AbsentCause.SHIM_UNHEALTHY,
    AbsentCause.KEY_NOT_ALLOWED,
    AbsentCause.DISABLED,
)


class Health(Enum):
    """What probes say of a backend."""

    UNKNOWN = "unknown"
    READY = "ready"
    WARMING_UP = "warming_up"
    DOWN = "down"


class Replica:
    """One backend. In-flight permits are taken and given back by `Permit` alone."""

    def __init__(self, settings: BackendSettings, breaker: Breaker, probed: bool) -> None:
        self.settings = settings
        self.name = settings.name
        self.upstream = Upstream(Address.of_url(settings.url))
        self.breaker = breaker
        self.health = Health.UNKNOWN if probed else Health.READY
        self.models: frozenset[str] = frozenset()
        self.in_flight = 0
        self.unusable_models: dict[str, None] = {}
        self.probe_soon: Callable[[], None] = _nothing

    @property
    def is_ready(self) -> bool:
        """Whether probes say that it serves."""
        return self.health is Health.READY

    def obstacle(self, caller: Caller, model: str, now_us: int) -> AbsentCause | None:
        """Why the replica cannot take a request of this caller for this model, or None."""
        if not self.settings.enabled or self.settings.internal:
            return AbsentCause.DISABLED
        if not caller.may_use(self.name):
            return AbsentCause.KEY_NOT_ALLOWED
        if not self.is_ready:
            return AbsentCause.SHIM_UNHEALTHY
        if not self.breaker.lets_through(now_us):
            return AbsentCause.BREAKER_OPEN
        if model in self.unusable_models:
            return AbsentCause.SHIM_UNUSABLE
        return None

    def serves(self, model: str) -> bool:
        """Whether an ordinary backend takes this model: configured, else listed."""
        return model in (self.settings.models or self.models)

    def mark_unusable(self, model: str) -> None:
        """It answered 404 for a model that the registry serves; until a probe lists the model."""
        if model not in self.unusable_models:
            _log.warning(
                "frontend does not know a model that the fleet serves", backend=self.name, model=model
            )
        self.unusable_models[model] = None
        if len(self.unusable_models) > UNUSABLE_MODELS_MAX:
            del self.unusable_models[next(iter(self.unusable_models))]
        self.probe_soon()

    def take_models(self, models: Iterable[str]) -> None:
        """The models that a probe listed; those become usable again."""
        self.models = frozenset(list(models)[:MODELS_LISTED_MAX])
        for model in self.models:
            self.unusable_models.pop(model, None)


def _nothing() -> None:
    pass


class Permit:
    """One request in flight at a replica, given back exactly once (DYN-15)."""

    __slots__ = ("_held", "_trial", "replica")

    def __init__(self, replica: Replica, now_us: int) -> None:
        self.replica = replica
        self._held = True
        self._trial = replica.breaker.began(now_us)
        replica.in_flight += 1

    def give_back(self) -> None:
        """The request is over, whatever came of it; again does nothing."""
        if self._held:
            self._held = False
            self.replica.in_flight -= 1
            self.replica.breaker.ended(trial=self._trial)


class Eligibility(NamedTuple):
    """Namespaces that may be offered to a pick, and the cause for every other configured one."""

    namespaces: tuple[str, ...]
    absent: tuple[tuple[str, int], ...]


class PoolTable:
    """Frontends by namespace and ordinary backends of one settings value."""

    def __init__(self, settings: RouterSettings, replicas: dict[str, Replica]) -> None:
        self.replicas = replicas
        pooled = {name for pool in settings.pools for name in pool.backends}
        self.pools: dict[str, tuple[Replica, ...]] = {
            pool.namespace: tuple(replicas[name] for name in pool.backends if name in replicas)
            for pool in settings.pools
        }
        self.ordinary: tuple[Replica, ...] = tuple(
            replica for name, replica in replicas.items() if name not in pooled
        )
        self._turn = 0

    def eligibility(self, namespaces: Iterable[str], caller: Caller, model: str, now_us: int) -> Eligibility:
        """Which of the namespaces have a frontend for this caller and model (MNS-02)."""
        eligible, absent = [], []
        for namespace in namespaces:
            pool = self.pools.get(namespace)
            if not pool:
                absent.append((namespace, int(AbsentCause.NO_SHIM_CONFIGURED)))
                continue
            causes = [replica.obstacle(caller, model, now_us) for replica in pool]
            if None in causes:
                eligible.append(namespace)
            else:
                absent.append((namespace, int(next(c for c in _CAUSES_BY_NEARNESS if c in causes))))
        return Eligibility(tuple(eligible), tuple(absent))

    def shim(
        self, namespace: str, caller: Caller, model: str, tried: Collection[Replica], now_us: int
    ) -> Replica | None:
        """A frontend of the namespace that was not tried yet, or None."""
        pool = self.pools.get(namespace, ())
        return self._least_busy([r for r in pool if r.obstacle(caller, model, now_us) is None], tried)

    def backend(self, caller: Caller, model: str, tried: Collection[Replica], now_us: int) -> Replica | None:
        """An ordinary backend that serves the model and was not tried yet, or None."""
        return self._least_busy(
            [r for r in self.ordinary if r.serves(model) and r.obstacle(caller, model, now_us) is None],
            tried,
        )

    def _least_busy(self, usable: list[Replica], tried: Collection[Replica]) -> Replica | None:
        left = [replica for replica in usable if replica not in tried]
        if not left:
            return None
        fewest = min(replica.in_flight for replica in left)
        equal = [replica for replica in left if replica.in_flight == fewest]
        self._turn += 1
        return equal[self._turn % len(equal)]

    def knows(self, model: str) -> bool:
        """Whether any backend claims the model, in whatever state."""
        return any(replica.serves(model) for replica in self.ordinary)

    def is_awaited(self, model: str) -> bool:
        """Whether a frontend claims the model or lists it: workers of it are to be expected."""
        replicas = [replica for pool in self.pools.values() for replica in pool]
        return any(model in replica.settings.models or model in replica.models for replica in replicas)


def next_replicas(settings: RouterSettings, held: dict[str, Replica]) -> dict[str, Replica]:
    """The replicas of new settings: unchanged ones kept, the others new. Order as configured.

    A backend whose name, url, key or any other member changed is a new replica. Breaker
    settings are taken over by all. Whoever is left out is to be retired by the caller.
    """
    replicas: dict[str, Replica] = {}
    for backend in settings.backends:
        replica = held.get(backend.name)
        if replica is None or replica.settings != backend:
            replica = Replica(backend, Breaker(settings.breaker), settings.health.enabled)
        replica.breaker.settings = settings.breaker
        if not settings.health.enabled:
            replica.health = Health.READY
        replicas[backend.name] = replica
    return replicas
