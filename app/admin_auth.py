"""Who may use `/admin`, and one line of audit for every request to it.

Secrets are compared through their digests in constant time; a wrong user name costs as
much as a wrong password. `none` serves this machine alone: it is refused when any bind is
reachable from elsewhere, also when a changed configuration says `none` while the process
still listens where the old one told it, and when a browser was led here under another
site's name (the Host header is no address of this machine).

Source: contract, sections 3 and 6; requirement row ADM-01.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog
from aiohttp import web

from app.config_sections import AdminAuthSettings, AuthMethod
from router.ingress.answers import error_answer
from router.ingress.chat import request_id_of
from router.ingress.errors import ErrorCode, RequestRefused

CREDENTIAL_CHARACTERS_MAX: Final = 8192
NOBODY: Final = "nobody"
PATH_CHARACTERS_SHOWN: Final = 200
CLIENT_LEFT: Final = 499  # in the audit line alone: nobody was there to be answered
_CHALLENGES: Final = {
    AuthMethod.BEARER_TOKEN: (("WWW-Authenticate", 'Bearer realm="picklog admin"'),),
    AuthMethod.BASIC: (("WWW-Authenticate", 'Basic realm="picklog admin", charset="UTF-8"'),),
    AuthMethod.API_KEY: (),
}
_ASK: Final = {
    AuthMethod.BEARER_TOKEN: "send 'Authorization: Bearer TOKEN'",
    AuthMethod.BASIC: "send user and password by basic authentication",
    AuthMethod.API_KEY: "send the key in X-API-Key",
}


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Handlers = dict[str, dict[str, Handler]]
"""By path below /admin and method."""

log = structlog.get_logger("picklog.admin")


class Secret(Protocol):
    """A secret of the configuration; printing it shows nothing."""

    def get_secret_value(self) -> str:
        """The secret itself."""


class AdminGate:
    """Lets requests to handlers through, or answers why not, with a line in the process log for each.

    auth: in force when a request comes. is_local_only: see `admit`.
    """

    def __init__(self, auth: Callable[[], AdminAuthSettings], is_local_only: bool) -> None:
        self._auth = auth
        self._is_local_only = is_local_only

    def open(self, application: web.Application, routes: Handlers) -> None:
        """Add the routes, and an answer for all other paths."""
        for path, handlers in routes.items():
            application.router.add_route("*", path, self._admitted(handlers))
        application.router.add_route("*", "/{path:.*}", self._admitted({}))

    def _admitted(self, handlers: dict[str, Handler]) -> Handler:
        async def admitted(request: web.Request) -> web.StreamResponse:
            who, status = NOBODY, 500
            try:
                who = admit(request, self._auth(), is_local_only=self._is_local_only)
                answer = await _handler_for(handlers, request)(request)
                status = answer.status
            except RequestRefused as refused:
                status = refused.status
                return error_answer(refused, request_id_of(request))
            except asyncio.CancelledError:
                status = CLIENT_LEFT
                raise
            finally:
                path = request.path[:PATH_CHARACTERS_SHOWN]
                log.info("admin request", who=who, method=request.method, path=path, status=status)
            return answer

        return admitted


def _handler_for(handlers: dict[str, Handler], request: web.Request) -> Handler:
    if not handlers:
        raise RequestRefused(ErrorCode.NOT_FOUND)
    handler = handlers.get("GET" if request.method == "HEAD" else request.method)
    if handler is None:
        raise RequestRefused(ErrorCode.METHOD_NOT_ALLOWED, headers=(("Allow", ", ".join(handlers)),))
    return handler


def credentials(settings: AdminAuthSettings) -> dict[str, str]:
    """Headers by which another process with the same settings lets this one in."""
    if settings.method is AuthMethod.NONE:
        return {}
    if settings.method is AuthMethod.API_KEY:
        return {"X-API-Key": _text(settings.api_key)}
    if settings.method is AuthMethod.BEARER_TOKEN:
        return {"Authorization": f"Bearer {_text(settings.token)}"}
    pair = f"{settings.username or ''}:{_text(settings.password)}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"}


def _text(secret: Secret | None) -> str:
    return secret.get_secret_value() if secret is not None else ""


def admit(request: web.BaseRequest, settings: AdminAuthSettings, *, is_local_only: bool) -> str:
    """Who asks, as the audit line names them.

    is_local_only: every listening address of the process is loopback or a socket file.
    Raises RequestRefused(invalid_api_key, 401) for everybody who may not.
    """
    method = settings.method
    if method is AuthMethod.NONE:
        if not is_local_only:
            raise RequestRefused(
                ErrorCode.INVALID_API_KEY, "Admin is closed: this process listens beyond loopback."
            )
        if not _names_this_machine(request):
            raise RequestRefused(
                ErrorCode.INVALID_API_KEY, "Admin without authentication answers to 127.0.0.1 and localhost."
            )
        return method.value
    if not _may_enter(request, settings):
        message = f"Admin authentication is needed: {_ASK[method]}."
        raise RequestRefused(ErrorCode.INVALID_API_KEY, message, headers=_CHALLENGES[method])
    user = f":{settings.username}" if method is AuthMethod.BASIC else ""
    return method.value + user


def _may_enter(request: web.BaseRequest, settings: AdminAuthSettings) -> bool:
    if settings.method is AuthMethod.API_KEY:
        return _is_secret(request.headers.get("X-API-Key"), settings.api_key)
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if settings.method is AuthMethod.BEARER_TOKEN:
        return scheme.lower() == "bearer" and _is_secret(given.strip(), settings.token)
    pair = _basic_pair(given.strip()) if scheme.lower() == "basic" else None
    user, password = pair if pair is not None else ("", "")
    is_user = _are_equal(user, settings.username or "")
    is_password = _is_secret(password, settings.password)
    return is_user and is_password and pair is not None and bool(settings.username)


def _basic_pair(given: str) -> tuple[str, str] | None:
    if len(given) > CREDENTIAL_CHARACTERS_MAX:
        return None
    try:
        text = base64.b64decode(given, validate=True).decode("utf-8", "surrogateescape")
    except (ValueError, binascii.Error):
        return None
    user, colon, password = text.partition(":")
    return (user, password) if colon else None


def _is_secret(given: str | None, secret: Secret | None) -> bool:
    known = secret.get_secret_value() if secret is not None else ""
    return _are_equal(given or "", known) and bool(known)


def _are_equal(given: str, known: str) -> bool:
    """In a time that depends on neither."""
    one, other = (hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in (given, known))
    return hmac.compare_digest(one, other)


def _names_this_machine(request: web.BaseRequest) -> bool:
    """Whether the Host header means this machine; a Unix socket has nothing to mistake."""
    if request.remote in (None, ""):
        return True
    host = request.headers.get("Host", "")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() in ("localhost", ""):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
