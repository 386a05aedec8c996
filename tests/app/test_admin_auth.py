"""Who may use /admin: each method, in constant time, and `none` for this machine alone."""

import base64
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from app.admin_auth import admit, credentials
from app.config_sections import AdminAuthSettings, AuthMethod
from router.ingress.errors import RequestRefused

BEARER = AdminAuthSettings.model_validate({"method": "bearer_token", "token": "s3cret"})
BASIC = AdminAuthSettings.model_validate({"method": "basic", "username": "ann", "password": "pä:ss"})
API_KEY = AdminAuthSettings.model_validate({"method": "api_key", "api_key": "k3y"})
NONE = AdminAuthSettings()


def asked(headers: dict[str, str], remote: str | None = "127.0.0.1") -> Any:
    request = make_mocked_request("GET", "/admin/config", headers=headers)
    return request.clone(remote=remote) if remote is not None else request


def who(settings: AdminAuthSettings, headers: dict[str, str], *, is_local_only: bool = True) -> str | None:
    try:
        return admit(asked(headers), settings, is_local_only=is_local_only)
    except RequestRefused as refused:
        return None if refused.status == 401 else f"status {refused.status}"


def basic(text: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


@pytest.mark.req("ADM-01")
@pytest.mark.parametrize(
    ("settings", "headers", "name"),
    [
        (BEARER, {"Authorization": "Bearer s3cret"}, "bearer_token"),
        (BEARER, {"Authorization": "bearer s3cret"}, "bearer_token"),
        (BASIC, basic("ann:pä:ss"), "basic:ann"),
        (API_KEY, {"X-API-Key": "k3y"}, "api_key"),
    ],
)
def test_the_right_secret_is_let_in_under_a_name(
    settings: AdminAuthSettings, headers: dict[str, str], name: str
) -> None:
    assert who(settings, headers, is_local_only=False) == name


@pytest.mark.req("ADM-01")
@pytest.mark.parametrize(
    ("settings", "headers"),
    [
        (BEARER, {}),
        (BEARER, {"Authorization": "Bearer"}),
        (BEARER, {"Authorization": "Bearer s3cre"}),
        (BEARER, {"Authorization": "Bearer s3cret2"}),
        (BEARER, {"Authorization": "Basic s3cret"}),
        (BEARER, {"X-API-Key": "s3cret"}),
        (BEARER, basic("ann:s3cret")),
        (BASIC, {}),
        (BASIC, basic("ann:pass")),
        (BASIC, basic("bob:pä:ss")),
        (BASIC, basic("ann")),
        (BASIC, basic(":pä:ss")),
        (BASIC, {"Authorization": "Basic !!!"}),
        (BASIC, {"Authorization": "Basic " + "A" * 10_000}),
        (BASIC, {"Authorization": "Bearer pä:ss"}),
        (API_KEY, {}),
        (API_KEY, {"X-API-Key": ""}),
        (API_KEY, {"X-API-Key": "k3y "}),
        (API_KEY, {"Authorization": "Bearer k3y"}),
    ],
)
def test_anything_else_is_turned_away(settings: AdminAuthSettings, headers: dict[str, str]) -> None:
    assert who(settings, headers) is None


@pytest.mark.parametrize(
    "settings",
    [
        AdminAuthSettings(method=AuthMethod.BEARER_TOKEN),
        AdminAuthSettings(method=AuthMethod.BASIC),
        AdminAuthSettings.model_validate({"method": "basic", "username": "", "password": ""}),
        AdminAuthSettings.model_validate({"method": "api_key", "api_key": ""}),
    ],
)
@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer "}, basic(":"), {"X-API-Key": ""}, {"Authorization": "Basic "}]
)
def test_a_method_without_its_secret_lets_nobody_in(
    settings: AdminAuthSettings, headers: dict[str, str]
) -> None:
    assert who(settings, headers) is None


@given(
    st.sampled_from([BEARER, BASIC, API_KEY]),
    st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=60),
)
def test_no_header_raises_anything_but_a_refusal(settings: AdminAuthSettings, text: str) -> None:
    for header in ("Authorization", "X-API-Key"):
        for prefix in ("", "Basic ", "Bearer "):
            assert who(settings, {header: prefix + text}) is None or text in ("s3cret", "k3y")


def test_a_refusal_says_how_to_ask_and_names_no_secret() -> None:
    for settings, challenge in ((BEARER, "Bearer"), (BASIC, "Basic")):
        with pytest.raises(RequestRefused) as refused:
            admit(asked({"Authorization": "Bearer wrong"}), settings, is_local_only=True)
        assert dict(refused.value.headers)["WWW-Authenticate"].startswith(challenge)
        assert "wrong" not in refused.value.message


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:8080", "127.9.9.9"])
def test_none_lets_this_machine_in(host: str) -> None:
    assert who(NONE, {"Host": host}) == "none"


@pytest.mark.parametrize("host", ["evil.example:8080", "10.0.0.1", "localhost.evil.example", "[fe80::1]:80"])
def test_none_turns_a_browser_away_that_was_led_here_under_another_name(host: str) -> None:
    assert who(NONE, {"Host": host}) is None


def test_none_lets_nobody_in_where_others_can_reach_the_process() -> None:
    assert who(NONE, {"Host": "127.0.0.1"}, is_local_only=False) is None


def test_none_does_not_mind_the_name_on_a_unix_socket() -> None:
    request = asked({"Host": "whatever"}, remote=None)
    assert request.remote is None or request.remote == ""
    assert admit(request, NONE, is_local_only=True) == "none"


@pytest.mark.req("ADM-01")
@pytest.mark.parametrize(
    "auth",
    [
        {"method": "none"},
        {"method": "bearer_token", "token": "tökén"},
        {"method": "basic", "username": "ops", "password": "p:w"},
        {"method": "api_key", "api_key": "key"},
    ],
)
def test_a_process_with_the_same_settings_is_let_in(auth: dict[str, str]) -> None:
    settings = AdminAuthSettings.model_validate(auth)
    headers = {"Host": "127.0.0.1:8080", **credentials(settings)}
    request = make_mocked_request("GET", "/admin/checkpoints", headers=headers)
    assert admit(request, settings, is_local_only=True).startswith(auth["method"])
