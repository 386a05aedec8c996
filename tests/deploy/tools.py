"""Programs that check deployments, and what to do where they are missing: skip or fail."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from deploy.check import install_tools
from tests.live.peers import missing

GET_TOOLS = "the tools that check deployments are not installed: make deploy-check"
GET_PROMTOOL = "no promtool on this machine: apt-get install prometheus"


def tool(name: str) -> str:
    """Path of a program of the tools' environment."""
    if not install_tools.is_installed():
        missing(GET_TOOLS)
    return str(install_tools.program(name))


def promtool() -> str:
    """Path of Prometheus' own checker."""
    found = shutil.which("promtool")
    if found is None:
        missing(GET_PROMTOOL)
    assert found is not None
    return found


def asked(script: Path, request: Any) -> Any:
    """What a script of `deploy/check` answers, run in the tools' environment: JSON in, JSON out."""
    said = subprocess.run(
        [tool("python"), script],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)
