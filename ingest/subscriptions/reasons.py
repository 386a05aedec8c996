"""Why a subscription is where it is: the fixed words in `SubscriptionChanged.reason`.

A closed set, so that it fits a log record, a label and a filter. What the peer itself said is
never part of it.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """One word for each way into a state."""

    # CONNECTING
    STARTED = "started"
    MOVED = "moved"  # the record names another address or component
    SETTINGS_CHANGED = "settings_changed"
    # CONNECTED
    CONNECTED = "connected"
    RESTARTED = "restarted"  # numbers of an engine went back: another process at this address
    REBOUND = "rebound"  # an engine belongs to another worker from here on, or to none; ENDED goes before
    # BACKOFF
    BAD_ADDRESS = "bad_address"
    DENIED_ADDRESS = "denied_address"
    NAME_UNRESOLVED = "name_unresolved"
    RESOLVER_BUSY = "resolver_busy"
    DIAL_FAILED = "dial_failed"
    DIAL_TIMEOUT = "dial_timeout"
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    TRANSPORT_REFUSED = "transport_refused"
    CLOSED = "closed"
    STALLED = "stalled"  # this process stood still, whatever waits in the socket is old
    STOPPED = "stopped"
    FAULT = "fault"  # a mistake of ours, told with its detail in a notice
    # PENDING
    OVER_LIMIT = "over_limit"
    # ENDED
    DEPARTED = "departed"
