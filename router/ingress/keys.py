"""Client keys: who calls, and which backends may serve the call.

Permissive mode needs no key and recognises a known one; blocking mode answers 401 without a
known, enabled, unexpired key. Keys are looked up by their SHA-256, so that the time of a
look-up tells nothing about a key. A caller's key is never sent on.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from router.ingress.errors import ErrorCode, RequestRefused
from router.settings import KeySettings, RouterSettings

_CHALLENGE = (("WWW-Authenticate", "Bearer"),)


class Caller(NamedTuple):
    """A recognised caller. allowed_backends: None for every backend."""

    key_id: str | None
    allowed_backends: frozenset[str] | None

    def may_use(self, backend: str) -> bool:
        """Whether the backend may serve this caller."""
        return self.allowed_backends is None or backend in self.allowed_backends


ANYBODY = Caller(None, None)


class Keys:
    """The keys of one settings value."""

    def __init__(self, settings: RouterSettings) -> None:
        self._required = settings.keys_required
        self._known: dict[bytes, KeySettings] = {_digest(key.key): key for key in settings.keys}

    def caller(self, authorization: str | None, api_key: str | None, now_s: float) -> Caller:
        """Who calls, by `Authorization: Bearer KEY` or `X-API-Key: KEY`.

        now_s: Unix seconds, for keys that expire.
        Raises RequestRefused(invalid_api_key) in blocking mode without a good key.
        """
        if not self._known and not self._required:
            return ANYBODY
        key = self._lookup(_token(authorization) or api_key, now_s)
        if key is not None:
            return Caller(key.id, key.allowed_backends)
        if self._required:
            raise RequestRefused(ErrorCode.INVALID_API_KEY, headers=_CHALLENGE)
        return ANYBODY

    def _lookup(self, token: str | None, now_s: float) -> KeySettings | None:
        if not token:
            return None
        key = self._known.get(_digest(token))
        if key is None or not key.enabled:
            return None
        if key.expires_at_s is not None and now_s >= key.expires_at_s:
            return None
        return key


def _token(authorization: str | None) -> str | None:
    if authorization is None:
        return None
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
