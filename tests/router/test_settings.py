"""Settings of the router print no secret and know which backend stands in a pool."""

from __future__ import annotations

from router.settings import BackendSettings, KeySettings, PoolSettings, RouterSettings


def test_secrets_are_not_printed() -> None:
    settings = RouterSettings(
        backends=(BackendSettings("a", "http://127.0.0.1:1", api_key="backend-secret"),),
        keys=(KeySettings("k", "client-secret"),),
    )
    assert "secret" not in repr(settings)
    assert "http://127.0.0.1:1" in repr(settings)


def test_a_pool_holds_its_backends() -> None:
    settings = RouterSettings(pools=(PoolSettings("dynamo", ("a", "b")),))
    assert [settings.pool_of(name) for name in ("a", "b", "c")] == ["dynamo", "dynamo", None]
