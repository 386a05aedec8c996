"""Discovery on an etcd of somebody else, named by ETCD_ENDPOINTS (ETCD-19).

Writes only below a namespace that no other process uses, through etcdctl, and removes it again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator

import pytest

from tests.live.discovery_watch import LiveWatch, etcd_settings, instance

ENDPOINTS = tuple(part for part in os.environ.get("ETCD_ENDPOINTS", "").split(",") if part)

pytestmark = [
    pytest.mark.skipif(not ENDPOINTS, reason="ETCD_ENDPOINTS names no etcd to test against"),
    pytest.mark.skipif(shutil.which("etcdctl") is None, reason="no etcdctl: apt-get install etcd-client"),
]


def etcdctl(*arguments: str) -> str:
    environment = {**os.environ, "ETCDCTL_API": "3"}
    for name in ("ETCD_ENDPOINTS", "ETCDCTL_ENDPOINTS"):
        environment.pop(name, None)
    command = ["etcdctl", "--endpoints", ",".join(ENDPOINTS), *arguments]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
    return ran.stdout


@pytest.fixture
def namespace() -> Iterator[str]:
    """A namespace of this process alone; whatever is below it goes at the end."""
    name = f"picklog-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    yield name
    etcdctl("del", "--prefix", f"v1/instances/{name}/")


@pytest.mark.req("ETCD-19")
async def test_foreign_etcd_is_followed_below_a_namespace_of_our_own(namespace: str) -> None:
    await asyncio.to_thread(etcdctl, "put", instance("1a", namespace), "{}")
    async with LiveWatch(etcd_settings(*ENDPOINTS, namespace=namespace)) as watch:
        await watch.settled()
        assert watch.workers() == {"1a"}
        await asyncio.to_thread(etcdctl, "del", instance("1a", namespace))
        await watch.until(lambda: watch.workers() == set())
        assert {fact.namespace for fact in watch.facts if hasattr(fact, "namespace")} == {namespace}
