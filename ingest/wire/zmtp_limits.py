"""Ceilings and times of a subscription, one frozen value for each family of topics.

They are compiled in and never settings (ZMTP-05): a bound that can be raised by mistake is
no bound. The 32 KiB of a sample's body are the smallest power of two above a 16 KiB payload
and its 5 bytes of header; 512 + 2048 + 64 are the 2624 bytes that an idle subscription costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ingest.wire.zmtp_frames import GREETING_BYTES
from projections.bounds import KIB, KV_FRAME_BYTES_MAX, SAMPLE_FRAME_BYTES_MAX

ID_BYTES: Final = 8  # publisher id and sequence, u64 big-endian
TOPIC_BYTES_MAX: Final = 256
SUBSCRIPTION_BYTES_MAX: Final = 200  # of a topic that is asked for; one frame of the short form


@dataclass(frozen=True, slots=True)
class ZmtpLimits:
    """Ceilings and times of one kind of subscription; compiled in, never settings (ZMTP-05).

    Sizes are bytes, times microseconds. The machine uses the sizes; the times belong to the
    session around it and stand here so that one place shows all of them.
    """

    frame_bytes_max: tuple[int, ...]  # by place in the message; its length = frames a message
    message_bytes_max: int  # all frame bodies of a message together
    command_bytes_max: int = 512
    frame_buffer_bytes: int = 512  # to begin with and when idle
    read_bytes: int = 2 * KIB  # one read step
    write_bytes: int = 64  # answers that may wait to be sent
    connect_us: int = 10_000_000
    handshake_us: int = 10_000_000
    reconnect_us_min: int = 500_000
    reconnect_us_max: int = 30_000_000
    healthy_session_us: int = 30_000_000

    def __post_init__(self) -> None:
        """The buffer must be able to hold what is parsed in place: greeting and commands."""
        assert self.frame_buffer_bytes >= max(GREETING_BYTES, self.command_bytes_max)
        assert self.frame_buffer_bytes & (self.frame_buffer_bytes - 1) == 0

    @property
    def idle_bytes(self) -> int:
        """Buffers of a subscription on which nothing is under way: 2624."""
        return self.frame_buffer_bytes + self.read_bytes + self.write_bytes


KV_METRICS_LIMITS: Final = ZmtpLimits((TOPIC_BYTES_MAX, ID_BYTES, ID_BYTES, SAMPLE_FRAME_BYTES_MAX), 64 * KIB)
ENGINE_EVENTS_LIMITS: Final = ZmtpLimits(
    (TOPIC_BYTES_MAX, ID_BYTES, KV_FRAME_BYTES_MAX), KV_FRAME_BYTES_MAX + 64 * KIB
)  # topic, sequence, batch
KV_EVENTS_LIMITS: Final = ZmtpLimits(
    (TOPIC_BYTES_MAX, ID_BYTES, ID_BYTES, KV_FRAME_BYTES_MAX), KV_FRAME_BYTES_MAX + 64 * KIB
)
