"""Client keys in both modes."""

from __future__ import annotations

from typing import Any

import pytest

from router.ingress.errors import ErrorCode, RequestRefused
from router.ingress.keys import ANYBODY, Caller, Keys
from router.settings import KeySettings, RouterSettings

KEYS = (
    KeySettings("all", "k-all"),
    KeySettings("some", "k-some", allowed_backends=frozenset({"a"})),
    KeySettings("off", "k-off", enabled=False),
    KeySettings("old", "k-old", expires_at_s=100.0),
    KeySettings("odd", "k-é"),
)


def keys(**changes: Any) -> Keys:
    return Keys(RouterSettings(keys=KEYS, **changes))


def test_known_keys_are_recognised_by_either_header() -> None:
    for made in (keys(), keys(keys_required=True)):
        assert made.caller("Bearer k-all", None, 5.0) == Caller("all", None)
        assert made.caller("bearer  k-some", None, 5.0) == Caller("some", frozenset({"a"}))
        assert made.caller(None, "k-old", 99.0) == Caller("old", None)
        assert made.caller("Bearer k-é", None, 5.0) == Caller("odd", None)


@pytest.mark.parametrize(
    ("authorization", "api_key", "now_s"),
    [
        (None, None, 5.0),
        ("Bearer nobody", None, 5.0),
        ("Bearer ", None, 5.0),
        ("Basic k-all", None, 5.0),
        ("k-all", None, 5.0),
        ("Bearer k-off", None, 5.0),
        ("Bearer k-old", None, 100.0),
        ("Bearer \udcff", None, 5.0),
    ],
)
def test_others_are_anybody_or_refused(authorization: str | None, api_key: str | None, now_s: float) -> None:
    assert keys().caller(authorization, api_key, now_s) is ANYBODY
    with pytest.raises(RequestRefused) as refused:
        keys(keys_required=True).caller(authorization, api_key, now_s)
    assert refused.value.code is ErrorCode.INVALID_API_KEY
    assert ("WWW-Authenticate", "Bearer") in refused.value.headers


@pytest.mark.req("MNS-02")
def test_a_key_uses_only_its_backends() -> None:
    some = keys().caller("Bearer k-some", None, 5.0)
    assert [some.may_use(name) for name in "ab"] == [True, False]
    assert ANYBODY.may_use("b")
