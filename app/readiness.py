"""What `/ready` answers: the reader's own readiness, and whether a request could go anywhere.

An outage of the log leaves a ready process ready and names it under `degraded`: all others
are in the same place (decision 66). Words are fixed and documented in docs/http.md.
"""

from __future__ import annotations

import asyncio
from typing import Any

from app.tail import Tail
from projections.bounds import SECOND_US
from router.ingress.keys import ANYBODY
from router.ingress.models import servable_models
from router.service import RouterService


def ready_document(tail: Tail, service: RouterService | None, now_us: int) -> dict[str, Any]:
    """`{"ready", "missing", "degraded"}`. now_us: monotonic time as the tail is given it.

    service: None in a process that picks for nobody; it needs no route.
    """
    loop_us = int(asyncio.get_running_loop().time() * SECOND_US)  # what breakers reckon by
    judged = tail.readiness(now_us)
    missing = list(judged.missing)
    held = service.log.settings() if service is not None else tail.fold.settings_now
    if held is None or held.version == 0:
        missing.append("settings")
    elif service is not None and not servable_models(service, service.frontage, held, ANYBODY, loop_us):
        missing.append("route")
    return {"ready": not missing, "missing": missing, "degraded": list(judged.degraded)}
