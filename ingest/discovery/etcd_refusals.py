"""What grpc and etcd say when they refuse, as reasons for the end of a pass.

etcd uses few status codes for many things, so some of its own words are looked at too; the
words are those of v3.4 and v3.5. What is shown to people is etcd's text or the bare status,
never a text of grpc's: those carry addresses.

Source: etcd `api/v3rpc/rpctypes/error.go`.
"""

from __future__ import annotations

from typing import Final

import grpc
import grpc.aio

from ingest.discovery.source import EndReason

TEXT_SHOWN_MAX: Final = 200


def is_permission(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.PERMISSION_DENIED


def is_above_ceiling(error: grpc.aio.AioRpcError) -> bool:
    details = error.details() or ""
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details


_REASONS: Final = {
    grpc.StatusCode.PERMISSION_DENIED: EndReason.PERMISSION,
    grpc.StatusCode.UNAUTHENTICATED: EndReason.UNAUTHENTICATED,
    grpc.StatusCode.OUT_OF_RANGE: EndReason.COMPACTED,  # compacted, or a restored store's future
    grpc.StatusCode.DEADLINE_EXCEEDED: EndReason.SILENT,
}
# etcd says INVALID_ARGUMENT both for a wrong password and for a call without a token.
_LOGIN_WORDS: Final = ("user name is empty", "authentication failed", "auth store", "invalid auth")


def reason_of(error: grpc.aio.AioRpcError) -> EndReason:
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        details = error.details() or ""
        if any(words in details for words in _LOGIN_WORDS):
            return EndReason.UNAUTHENTICATED
    return _REASONS.get(error.code(), EndReason.STREAM)


def shown(error: grpc.aio.AioRpcError) -> str:
    """etcd's own words, or the status alone: grpc's texts carry addresses."""
    details = error.details() or ""
    words = details[:TEXT_SHOWN_MAX] if details.startswith("etcdserver:") else ""
    return f"{error.code().name} {words}".strip()
