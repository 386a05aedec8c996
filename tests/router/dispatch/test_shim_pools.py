"""Pools: eligibility with its causes, choice of a replica, permits, reloads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from projections.events.picks import AbsentCause
from router.dispatch.breaker import Breaker
from router.dispatch.shim_pools import (
    MODELS_LISTED_MAX,
    UNUSABLE_MODELS_MAX,
    Health,
    Permit,
    PoolTable,
    Replica,
    next_replicas,
)
from router.ingress.keys import ANYBODY, Caller
from router.settings import BackendSettings, BreakerSettings, HealthSettings, PoolSettings, RouterSettings

NOW = 1_000


def settings(
    *names: str, pools: dict[str, tuple[str, ...]] | None = None, **changes: object
) -> RouterSettings:
    return replace(
        RouterSettings(
            backends=tuple(
                BackendSettings(name, f"http://127.0.0.1:{9000 + n}") for n, name in enumerate(names)
            ),
            pools=tuple(PoolSettings(space, backends) for space, backends in (pools or {}).items()),
            health=HealthSettings(enabled=False),
        ),
        **changes,  # type: ignore[arg-type]
    )


def table(made: RouterSettings) -> PoolTable:
    return PoolTable(made, next_replicas(made, {}))


POOLS = {"blue": ("a", "b"), "green": ("c",)}


@pytest.mark.req("MNS-02", "SHIM-04")
def test_namespaces_with_a_usable_frontend_are_eligible() -> None:
    pools = table(settings("a", "b", "c", pools=POOLS))
    found = pools.eligibility(("blue", "green", "red"), ANYBODY, "m", NOW)
    assert found.namespaces == ("blue", "green")
    assert found.absent == (("red", AbsentCause.NO_SHIM_CONFIGURED),)


@pytest.mark.req("MNS-02")
def test_key_limited_to_one_pool_sees_only_that_namespace() -> None:
    pools = table(settings("a", "b", "c", pools=POOLS))
    caller = Caller("k", frozenset({"b"}))
    found = pools.eligibility(("blue", "green"), caller, "m", NOW)
    assert found == (("blue",), (("green", AbsentCause.KEY_NOT_ALLOWED),))
    assert pools.shim("blue", caller, "m", [], NOW) is pools.replicas["b"]
    assert pools.shim("green", caller, "m", [], NOW) is None


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda r: setattr(r, "health", Health.DOWN), AbsentCause.SHIM_UNHEALTHY),
        (lambda r: setattr(r, "health", Health.WARMING_UP), AbsentCause.SHIM_UNHEALTHY),
        (lambda r: setattr(r, "health", Health.UNKNOWN), AbsentCause.SHIM_UNHEALTHY),
        (lambda r: [r.breaker.failed(NOW) for _ in range(5)], AbsentCause.BREAKER_OPEN),
        (lambda r: r.mark_unusable("m"), AbsentCause.SHIM_UNUSABLE),
        (lambda r: setattr(r, "settings", replace(r.settings, enabled=False)), AbsentCause.DISABLED),
        (lambda r: setattr(r, "settings", replace(r.settings, internal=True)), AbsentCause.DISABLED),
    ],
)
def test_every_absence_has_its_cause(spoil: object, cause: AbsentCause) -> None:
    pools = table(settings("c", pools={"green": ("c",)}))
    spoil(pools.replicas["c"])  # type: ignore[operator]
    assert pools.eligibility(("green",), ANYBODY, "m", NOW) == ((), (("green", cause),))


def test_of_several_replicas_the_nearest_to_being_usable_names_the_cause() -> None:
    pools = table(settings("a", "b", pools={"blue": ("a", "b")}))
    pools.replicas["a"].health = Health.DOWN
    for _ in range(5):
        pools.replicas["b"].breaker.failed(NOW)
    assert pools.eligibility(("blue",), ANYBODY, "m", NOW).absent == (("blue", AbsentCause.BREAKER_OPEN),)
    pools.replicas["b"].breaker.succeeded()
    assert pools.eligibility(("blue",), ANYBODY, "m", NOW).namespaces == ("blue",)


@pytest.mark.field("B-033")
def test_least_busy_replica_takes_the_request_and_equal_ones_take_turns() -> None:
    pools = table(settings("a", "b", "c", pools={"blue": ("a", "b", "c")}))
    a, b, c = (pools.replicas[name] for name in "abc")
    Permit(b, NOW)
    chosen = [pools.shim("blue", ANYBODY, "m", [], NOW) for _ in range(4)]
    assert set(chosen) == {a, c}
    assert chosen[0] is not chosen[1]
    Permit(a, NOW)
    assert pools.shim("blue", ANYBODY, "m", [], NOW) is c
    assert pools.shim("blue", ANYBODY, "m", [c], NOW) in (a, b)
    assert pools.shim("blue", ANYBODY, "m", [a, b, c], NOW) is None


@pytest.mark.req("DYN-15")
@pytest.mark.field("B-029")
@given(st.lists(st.integers(0, 5), max_size=40))
def test_permits_given_back_in_any_order_and_often_end_at_none(steps: list[int]) -> None:
    replica = Replica(BackendSettings("a", "http://127.0.0.1:1"), Breaker(BreakerSettings()), False)
    held: list[Permit] = []
    for step in steps:
        if step < 3:
            held.append(Permit(replica, NOW))
        elif held:
            held[step % len(held)].give_back()
        assert 0 <= replica.in_flight <= len(held)
    for permit in held:
        permit.give_back()
        permit.give_back()
    assert replica.in_flight == 0


def test_a_trial_of_the_breaker_is_given_back_with_its_permit() -> None:
    replica = Replica(BackendSettings("a", "http://127.0.0.1:1"), Breaker(BreakerSettings(open_us=10)), False)
    for _ in range(5):
        replica.breaker.failed(NOW)
    permit = Permit(replica, NOW + 20)
    assert not replica.breaker.lets_through(NOW + 20)
    permit.give_back()
    assert replica.breaker.lets_through(NOW + 20)


@pytest.mark.req("SHIM-17")
@pytest.mark.field("B-016")
def test_unusable_model_becomes_usable_when_a_probe_lists_it() -> None:
    replica = Replica(BackendSettings("a", "http://127.0.0.1:1"), Breaker(BreakerSettings()), False)
    asked: list[int] = []
    replica.probe_soon = lambda: asked.append(1)
    replica.mark_unusable("m")
    assert asked == [1]
    assert replica.obstacle(ANYBODY, "n", NOW) is None
    replica.take_models(["n"])
    assert replica.obstacle(ANYBODY, "m", NOW) is AbsentCause.SHIM_UNUSABLE
    replica.take_models(["n", "m"])
    assert replica.obstacle(ANYBODY, "m", NOW) is None


@pytest.mark.field("B-016")
def test_frontend_that_lacks_a_model_is_named_once_until_it_lists_it() -> None:
    replica = Replica(BackendSettings("a", "http://127.0.0.1:1"), Breaker(BreakerSettings()), False)
    with capture_logs() as told:
        for _ in range(3):
            replica.mark_unusable("m")
        replica.take_models(["m"])
        replica.mark_unusable("m")
    assert [(line["log_level"], line["backend"], line["model"]) for line in told] == [
        ("warning", "a", "m")
    ] * 2


def test_listed_and_unusable_models_are_bounded() -> None:
    replica = Replica(BackendSettings("a", "http://127.0.0.1:1"), Breaker(BreakerSettings()), False)
    replica.take_models(f"m{number}" for number in range(MODELS_LISTED_MAX + 10))
    for number in range(UNUSABLE_MODELS_MAX + 10):
        replica.mark_unusable(f"m{number}")
    assert (len(replica.models), len(replica.unusable_models)) == (MODELS_LISTED_MAX, UNUSABLE_MODELS_MAX)


def test_backends_outside_of_pools_are_ordinary_and_chosen_by_model() -> None:
    made = settings("a", "x", "y", pools={"blue": ("a",)})
    made = replace(made, backends=(*made.backends, BackendSettings("z", "http://127.0.0.1:1", models=("m",))))
    pools = table(made)
    assert [replica.name for replica in pools.ordinary] == ["x", "y", "z"]
    pools.replicas["x"].take_models(["n"])
    assert pools.backend(ANYBODY, "n", [], NOW) is pools.replicas["x"]
    assert pools.backend(ANYBODY, "m", [], NOW) is pools.replicas["z"]
    assert pools.backend(ANYBODY, "o", [], NOW) is None
    pools.replicas["z"].take_models(["o"])  # the configured list stands
    assert pools.backend(ANYBODY, "o", [], NOW) is None
    assert (pools.knows("m"), pools.knows("o")) == (True, False)


def test_reload_keeps_unchanged_replicas_and_makes_changed_ones_anew() -> None:
    before = settings("a", "b", "c", pools=POOLS)
    replicas = next_replicas(before, {})
    replicas["a"].health = Health.DOWN
    changed = replace(before.backends[1], api_key="new")
    after = replace(
        before, backends=(before.backends[0], changed), breaker=BreakerSettings(failure_threshold=9)
    )
    again = next_replicas(after, replicas)
    assert list(again) == ["a", "b"]
    assert again["a"] is replicas["a"]
    assert again["a"].breaker.settings.failure_threshold == 9
    assert again["b"] is not replicas["b"]
