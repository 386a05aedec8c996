"""What the Dockerfile installs, installed: its RUN steps one after another, without a container engine.

The steps run by /bin/sh in a folder that stands for the image: a fresh environment for its
Python, the files that a build would be sent for its context. Then the result serves with the
whole file system read-only but for the two places that the image may write to, and without
capabilities. Not proven here: the base image, and that a container engine takes the file.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.demo.addresses import free_port
from deploy.demo.children import Child, Nursery
from tests.deploy.image_file import DOCKERFILE, Stage, Step, context_files, copied, health_command, stages
from tests.deploy.tools import tool
from tests.live.peers import missing
from tests.live.router_process import until
from tests.sources import REPOSITORY

BUILD, FINAL = stages(DOCKERFILE.read_text())
STEP_S_MAX = 300.0


@dataclass(frozen=True, slots=True)
class Image:
    """Folders that stand for those of the image."""

    root: Path

    def inside(self, text: str) -> str:
        """A text of the Dockerfile with its absolute places moved below the root."""
        for place in ("/opt/picklog", "/usr/local/bin/", "/tmp/wheels", "/data", "/src"):
            text = text.replace(place, f"{self.root}{place}")
        return text

    def build(self, stage: Stage, folder: Path) -> None:
        """Every RUN of a stage, each with the ENV that stands before it."""
        environment = {"PATH": "$PATH", "HOME": str(self.root)}
        for step in stage.steps:
            if step.word == "ENV":
                environment.update(Stage("", "", [step]).environment())
            elif step.word == "RUN":
                self._run(step.text, environment, folder)

    def _run(self, command: str, environment: dict[str, str], folder: Path) -> None:
        path = f"{self.root}/usr/local/bin:{os.environ['PATH']}"
        # the index that this machine uses may stand in its environment
        passed = {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
        said = subprocess.run(
            ["/bin/sh", "-ec", self.inside(command)],
            cwd=folder,
            env={
                **passed,
                **{name: self.inside(text).replace("$PATH", path) for name, text in environment.items()},
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=STEP_S_MAX,
        )
        assert said.returncode == 0, f"{command}\n{said.stdout}\n{said.stderr}"

    def program(self, name: str) -> str:
        return str(self.root / "opt/picklog/bin" / name)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Everything that the Dockerfile's RUN steps make, in their order."""
    tool("hadolint")  # whoever has the tools has a package index
    found = Image(tmp_path_factory.mktemp("image"))
    venv.create(found.root / "usr/local", with_pip=True, symlinks=True)
    source = found.root / "src"
    for place, name in copied(BUILD, context_files()).items():
        target = source / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPOSITORY / name, target)
    found.build(BUILD, source)
    owner = "-o 10001 -g 10001 "
    if os.geteuid() != 0:
        for position, step in enumerate(FINAL.steps):
            FINAL.steps[position] = Step(step.word, step.text.replace(owner, ""))
    found.build(FINAL, found.root)
    return found


def test_the_console_script_and_every_extra_are_there(image: Image) -> None:
    said = subprocess.run([image.program("picklog"), "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("picklog ")
    extras = "aiokafka, asyncpg, faust, grpc, jinja2, minijinja, tokenizers, uvloop"
    code = f"import {extras}; import app.cli; print(app.__file__)"
    checked = subprocess.run(
        [image.program("python"), "-I", "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    assert Path(checked.stdout.strip()).is_relative_to(image.root), (
        "Picklog is a copy, not a link to its sources"
    )


def test_neither_installer_nor_test_tools_are_in_the_image(image: Image) -> None:
    listed = {
        path.name.partition("-")[0].lower() for path in image.root.glob("opt/picklog/lib/*/site-packages/*")
    }
    assert "aiohttp" in listed
    assert listed & {"pip", "uv", "hatchling", "pytest", "mypy", "setuptools", "wheel"} == set()
    assert not list(image.root.glob("usr/local/lib/*/site-packages/pip"))
    assert (image.root / "data").stat().st_mode & 0o777 == 0o700


@pytest.fixture
def sealed(image: Image, tmp_path: Path) -> Iterator[tuple[Nursery, int, Path]]:
    """The image's start command in a mount namespace that may write to data and to what stands for /tmp."""
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("setpriv") is None:
        missing("a sealed file system needs root and util-linux")
    port = free_port()
    config = tmp_path / "config.yaml"
    config.write_text(f'server: {{bind_address: "127.0.0.1:{port}"}}\nlog: {{retention: {{bytes: 64MiB}}}}\n')
    data, scratch = tmp_path / "data", tmp_path / "scratch"
    data.mkdir()
    scratch.mkdir()
    (start,) = FINAL.texts("CMD")
    places = {"/etc/picklog/config.yaml": str(config), "/data": str(data)}
    arguments = [places.get(word, word) for word in json.loads(start)]
    script = (
        'mount --make-rprivate / && mount --bind "$1" "$1" && mount --bind "$2" "$2" '
        "&& mount -o remount,bind,ro / && shift 2 "
        '&& exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"'
    )
    argv = ["unshare", "--mount", "sh", "-ec", script, "sh", str(data), str(scratch)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(scratch), "TMPDIR": str(scratch)}
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        environment[name] = FINAL.environment()[name]
    nursery = Nursery()
    log = tmp_path / "image.log"
    nursery.add(Child("image", [*argv, image.program("picklog"), *arguments], environment, log, data))
    yield nursery, port, log
    nursery.close(patience_s=20)


def test_it_serves_and_ends_with_a_read_only_root_and_no_capabilities(
    image: Image, sealed: tuple[Nursery, int, Path]
) -> None:
    nursery, port, log = sealed
    nursery.start("image")
    check = [image.program("python"), *health_command(FINAL)[1:]]
    address = {**os.environ, "PICKLOG_HEALTH": f"http://127.0.0.1:{port}/health"}

    def is_healthy() -> bool:
        return subprocess.run(check, env=address, capture_output=True, check=False).returncode == 0

    until(is_healthy, lambda: log.read_text()[-2000:])
    until(lambda: list((log.parent / "data" / "log").glob("*.seg")), lambda: log.read_text()[-2000:])
    assert nursery.end("image", signal.SIGTERM, patience_s=40) == 0, log.read_text()[-2000:]
    assert "Read-only file system" not in log.read_text()
    assert not is_healthy(), "the check fails where nobody serves"
