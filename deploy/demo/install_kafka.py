"""Fetches Apache Kafka as its jars, into `.venvs/kafka-VERSION`, for tests against the real broker.

No package of the distribution and no wheel holds a Kafka server; Maven's central repository has it
as jars. A POM of two lines names the server and a logger that says nothing, Maven copies both with
all that they need, and Java runs them (`class_path`). A stamp holds the digest of the POM; where it
fits, nothing is done.

    python -m deploy.demo.install_kafka

Needs `mvn` and Java 17: on Debian, apt-get install openjdk-17-jre-headless maven. Standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from deploy.demo.fleet_plan import DEMO_FOLDER

VERSION = "4.4.0"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>picklog</groupId><artifactId>kafka-broker</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""
REPOSITORY = DEMO_FOLDER.parent.parent
TRIES_MAX = 4
PAUSE_S = 5.0
MAVEN_S_MAX = 600.0
STAMP = "installed.sha256"


class InstallFailed(RuntimeError):
    """The jars cannot be had; says why, with Maven's last lines."""


def folder() -> Path:
    """Where the jars live: below PICKLOG_VENVS, else `.venvs` of the repository."""
    return Path(os.environ.get("PICKLOG_VENVS") or REPOSITORY / ".venvs") / f"kafka-{VERSION}"


def class_path() -> str:
    """What `java -cp` takes."""
    return str(folder() / "jars" / "*")


def is_installed() -> bool:
    stamp = folder() / STAMP
    return stamp.is_file() and stamp.read_text().strip() == _fingerprint()


def install() -> Path:
    """Fetch the jars unless they are there; their folder. Safe to call from several processes."""
    home = folder()
    home.mkdir(parents=True, exist_ok=True)
    with (home.parent / f".{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_installed():
            return home
        for program in ("mvn", "java"):
            if shutil.which(program) is None:
                raise InstallFailed(f"no {program} here: apt-get install openjdk-17-jre-headless maven")
        print(f"fetching Apache Kafka {VERSION} into {home.name} (once, half a minute)", file=sys.stderr)
        (home / "pom.xml").write_text(POM)
        shutil.rmtree(home / "jars", ignore_errors=True)
        _maven(home)
        (home / STAMP).write_text(_fingerprint() + "\n")
    return home


def _fingerprint() -> str:
    return hashlib.sha256(POM.encode()).hexdigest()


def _maven(home: Path) -> None:
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars"]
    said = ""
    for attempt in range(1, TRIES_MAX + 1):
        try:
            result = subprocess.run(
                ["mvn", "-q", "-B", *goal],
                cwd=home,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=MAVEN_S_MAX,
            )
        except subprocess.TimeoutExpired:
            said = f"no end within {MAVEN_S_MAX:.0f} s"
            continue
        if result.returncode == 0:
            return
        said = "\n".join((result.stdout + result.stderr).strip().splitlines()[-8:])
        if attempt < TRIES_MAX:
            time.sleep(PAUSE_S * attempt)
    raise InstallFailed(f"Kafka {VERSION} cannot be fetched ({TRIES_MAX} tries); Maven says:\n{said}")


def main() -> int:
    try:
        print(f"{VERSION} {install()}")
    except InstallFailed as problem:
        print(f"install: {problem}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
