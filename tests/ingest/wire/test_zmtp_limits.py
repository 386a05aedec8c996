"""The table of bounds, number by number."""

from __future__ import annotations

import dataclasses

import pytest

from ingest.wire.zmtp_limits import KV_EVENTS_LIMITS, KV_METRICS_LIMITS, ZmtpLimits


@pytest.mark.req("ZMTP-05")
def test_bounds_of_load_subscriptions_are_those_of_the_table() -> None:
    assert dataclasses.asdict(KV_METRICS_LIMITS) == {
        "frame_bytes_max": (256, 8, 8, 32 * 1024),
        "message_bytes_max": 64 * 1024,
        "command_bytes_max": 512,
        "frame_buffer_bytes": 512,
        "read_bytes": 2048,
        "write_bytes": 64,
        "connect_us": 10_000_000,
        "handshake_us": 10_000_000,
        "reconnect_us_min": 500_000,
        "reconnect_us_max": 30_000_000,
        "healthy_session_us": 30_000_000,
    }


@pytest.mark.req("ZMTP-05")
def test_block_event_subscriptions_differ_in_body_and_message_alone() -> None:
    bigger = dataclasses.replace(
        KV_METRICS_LIMITS,
        frame_bytes_max=(256, 8, 8, 1024 * 1024),
        message_bytes_max=1024 * 1024 + 64 * 1024,
    )
    assert bigger == KV_EVENTS_LIMITS


@pytest.mark.parametrize("limits", [KV_METRICS_LIMITS, KV_EVENTS_LIMITS], ids=["kv_metrics", "kv-events"])
def test_every_frame_at_its_bound_fits_a_whole_message(limits: ZmtpLimits) -> None:
    assert sum(limits.frame_bytes_max) <= limits.message_bytes_max


@pytest.mark.req("ZMTP-05")
def test_bounds_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        KV_METRICS_LIMITS.message_bytes_max = 1  # type: ignore[misc]


@pytest.mark.parametrize("buffer", [63, 256, 600])
def test_frame_buffer_must_hold_a_command_and_be_a_power_of_two(buffer: int) -> None:
    with pytest.raises(AssertionError):
        ZmtpLimits((256, 8, 8, 1024), 4096, frame_buffer_bytes=buffer)
