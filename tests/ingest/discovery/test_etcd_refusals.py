"""What etcd and grpc say, as reasons; and what of it is shown."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from ingest.discovery.etcd_refusals import TEXT_SHOWN_MAX, is_above_ceiling, is_permission, reason_of, shown
from ingest.discovery.source import EndReason


def error(code: grpc.StatusCode, details: str = "") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


@pytest.mark.parametrize(
    ("code", "details", "reason"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "", EndReason.PERMISSION),
        (grpc.StatusCode.UNAUTHENTICATED, "", EndReason.UNAUTHENTICATED),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", EndReason.UNAUTHENTICATED),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            "etcdserver: authentication failed, invalid user ID or password",
            EndReason.UNAUTHENTICATED,
        ),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: duplicate key", EndReason.STREAM),
        (grpc.StatusCode.OUT_OF_RANGE, "", EndReason.COMPACTED),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", EndReason.SILENT),
        (grpc.StatusCode.UNAVAILABLE, "", EndReason.STREAM),
    ],
)
def test_refusal_has_its_reason(code: grpc.StatusCode, details: str, reason: EndReason) -> None:
    assert reason_of(error(code, details)) is reason


def test_only_grpcs_own_ceiling_asks_for_smaller_pages() -> None:
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert is_above_ceiling(error(exhausted, "CLIENT: Received message larger than max (5 vs. 4)"))
    assert not is_above_ceiling(error(exhausted, "etcdserver: too many requests"))
    assert not is_above_ceiling(error(grpc.StatusCode.INTERNAL, "larger than max"))


def test_addresses_are_not_shown_and_etcds_words_are_cut() -> None:
    unavailable = grpc.StatusCode.UNAVAILABLE
    assert shown(error(unavailable, "failed to connect to ipv4:10.0.0.7:2379")) == "UNAVAILABLE"
    long = shown(error(unavailable, "etcdserver: " + "x" * 1_000))
    assert len(long) == len("UNAVAILABLE ") + TEXT_SHOWN_MAX


def test_permission_is_told_apart() -> None:
    assert is_permission(error(grpc.StatusCode.PERMISSION_DENIED))
    assert not is_permission(error(grpc.StatusCode.UNAUTHENTICATED))
