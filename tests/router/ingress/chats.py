"""Fleets, frontends and settings that the tests of chats share."""

from __future__ import annotations

import json
from typing import Any

from projections.registry.fleet import Role
from router.settings import RouterSettings
from tests.router.fake_frontend import FakeFrontend
from tests.router.rig import fleet_of, settings_for, worker

PAIR = fleet_of(worker(11, Role.PREFILL), worker(21, Role.DECODE))
ALONE = fleet_of(worker(31, Role.AGGREGATED))
ROUTES = ["/v1/chat/completions", "/v1/completions"]


def pair_frontend(**changes: Any) -> FakeFrontend:
    return FakeFrontend(prefill={11: 1, 12: 1}, decode={21: 1, 22: 1}, **changes)


def pair_settings(*frontends: FakeFrontend, **changes: Any) -> RouterSettings:
    return settings_for({"dynamo": list(frontends)}, **changes)


def code_of(body: bytes) -> str:
    code: str = json.loads(body)["error"]["code"]
    return code
