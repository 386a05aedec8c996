"""What every page of metrics has in common: its content type, and the series of the release that answers."""

from __future__ import annotations

import sys
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from app.version import VERSION

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def tell_build(registry: CollectorRegistry) -> None:
    """Add `picklog_build_info`; dashboards find the processes by it."""
    build = Gauge("picklog_build_info", "Version.", ("version", "python"), registry=registry)
    build.labels(VERSION, ".".join(map(str, sys.version_info[:2]))).set(1)
