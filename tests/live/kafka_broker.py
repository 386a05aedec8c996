"""A real Apache Kafka for live tests: one broker that is its own controller, on loopback, on free ports.

It speaks plaintext for tests that only want a log, and, where certificates are given, TLS, SASL
(PLAIN) and SASL over TLS (SCRAM) on ports of their own. Its heap is small, its data lies in the
folder given, and it ends with this process. A client may be sent on a detour: one more listener
tells an address that is not its own. Several brokers make a cluster: `kafka_cluster`. Every call
blocks.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from deploy.demo import install_kafka
from deploy.demo.addresses import free_port
from deploy.demo.children import Child, Nursery
from deploy.demo.fleet import FleetFailed
from tests.live.certificates import Authority
from tests.live.peers import START_S_MAX, missing

GET_JAVA = "no Java on this machine: apt-get install openjdk-17-jre-headless maven"
GET_KAFKA = f"Kafka {install_kafka.VERSION} is not installed: python -m deploy.demo.install_kafka"
USER, PASSWORD = "reader", "reader-secret"
SECURED = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_{USER}="{PASSWORD}";'
)  # fmt: skip
SCRAM_JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
# The same for every start: a broker is small here, and one that is asked for little answers at once.
FIXED = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "true",  # as Kafka comes: a topic that is asked for is made
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "log.cleaner.enable": "false",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "500",
}
JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class Seat(NamedTuple):
    """A broker's place in a cluster. controllers: the port of each node's controller."""

    node: int
    cluster: str
    controllers: Mapping[int, int]
    settings: Mapping[str, str]


def java() -> str:
    """Path of java; skips or fails where it, or Kafka's jars, are missing."""
    program = shutil.which("java")
    if program is None:
        missing(GET_JAVA)
    assert program is not None
    if not install_kafka.is_installed():
        missing(GET_KAFKA)
    return program


class KafkaBroker:
    """One broker that can be killed, frozen and started again; its ports stay the same."""

    def __init__(
        self,
        folder: Path,
        authority: Authority | None = None,
        *,
        detour_port: int | None = None,
        seat: Seat | None = None,
    ) -> None:
        """detour_port: what clients of the listener DETOUR are told to connect to."""
        self.folder = folder
        self._detour_port = detour_port
        self._seat = seat
        self._java = java()
        folder.mkdir(parents=True, exist_ok=True)
        names = ["PLAINTEXT", "CONTROLLER"] + (list(SECURED) if authority is not None else [])
        names += ["DETOUR"] if detour_port is not None else []
        self._ports: dict[str, int] = {}
        taken = set(seat.controllers.values()) if seat is not None else set()
        for name in names:
            self._ports[name] = free_port(taken | set(self._ports.values()))
        if seat is not None:
            self._ports["CONTROLLER"] = seat.controllers[seat.node]
        if authority is not None:
            self.client = authority.client()
        self._settings = folder / "server.properties"
        self._settings.write_text(self._properties(authority))
        argv = [self._java, *JVM, "-cp", install_kafka.class_path(), "kafka.Kafka", str(self._settings)]
        self._nursery = Nursery()
        self._nursery.add(Child("kafka", argv, dict(os.environ), folder / "kafka.log", folder))
        self._format()

    def address(self, protocol: str = "PLAINTEXT") -> str:
        """`127.0.0.1:port` of a listener: PLAINTEXT or one of SECURED."""
        return f"127.0.0.1:{self._ports[protocol]}"

    @property
    def is_running(self) -> bool:
        return self._nursery["kafka"].is_running

    def start(self) -> KafkaBroker:
        """Start and wait until its listener takes connections."""
        self.begin()
        return self.wait()

    def begin(self) -> None:
        """Start, and do not wait: a broker of a cluster waits for the others."""
        self._nursery.start("kafka")

    def wait(self) -> KafkaBroker:
        """Until its listener takes connections."""
        child = self._nursery["kafka"]
        deadline = time.monotonic() + START_S_MAX
        while not self._listens():
            if not child.is_running or time.monotonic() > deadline:
                raise FleetFailed(f"Kafka does not answer; the end of {child.log}:\n{child.tail()}")
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """SIGKILL and wait: connections are reset, what it wrote stays."""
        self._nursery.end("kafka", signal.SIGKILL)

    def freeze(self) -> None:
        """SIGSTOP, and wait for the last thread: connections stay, nothing is answered."""
        child = self._nursery["kafka"]
        child.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{child.pid}/task")
        while any(_state(task) != "T" for task in tasks.iterdir()):
            time.sleep(0.01)

    def thaw(self) -> None:
        self._nursery["kafka"].send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.thaw()
        self._nursery.end("kafka", signal.SIGKILL)
        self._nursery.close()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(("127.0.0.1", self._ports["PLAINTEXT"])) == 0

    def _format(self) -> None:
        cluster = self._seat.cluster if self._seat is not None else cluster_id()
        argv = ["-cp", install_kafka.class_path(), "kafka.tools.StorageTool", "format", "-t", cluster]
        if "SASL_SSL" in self._ports:
            for mechanism in SCRAM:
                argv += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        done = subprocess.run(
            [self._java, *JVM, *argv, "-c", str(self._settings)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode != 0:
            raise FleetFailed(f"Kafka's storage cannot be prepared: {done.stderr or done.stdout}")

    def _properties(self, authority: Authority | None) -> str:
        at = {name: f"{name}://127.0.0.1:{port}" for name, port in self._ports.items()}
        settings = dict(FIXED)
        settings["listeners"] = ",".join(at.values())
        told = {name: text for name, text in at.items() if name != "CONTROLLER"}
        if self._detour_port is not None:
            told["DETOUR"] = f"DETOUR://127.0.0.1:{self._detour_port}"
        settings["advertised.listeners"] = ",".join(told.values())
        plain = ("CONTROLLER", "DETOUR")
        protocols = {name: "PLAINTEXT" if name in plain else name for name in at}
        settings["listener.security.protocol.map"] = ",".join(f"{k}:{v}" for k, v in protocols.items())
        settings["controller.quorum.voters"] = f"1@127.0.0.1:{self._ports['CONTROLLER']}"
        if self._seat is not None:
            voters = [f"{node}@127.0.0.1:{port}" for node, port in self._seat.controllers.items()]
            settings |= {"node.id": str(self._seat.node), "controller.quorum.voters": ",".join(voters)}
            settings |= self._seat.settings
        settings["log.dirs"] = str(self.folder / "data")
        if authority is not None:
            settings |= self._secured(authority)
        return "".join(f"{name}={text}\n" for name, text in settings.items())

    def _secured(self, authority: Authority) -> dict[str, str]:
        server = authority.server("kafka")
        both = self.folder / "kafka-server.pem"
        both.write_bytes(server.key.read_bytes() + server.certificate.read_bytes())
        settings = {
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": ",".join(SCRAM),
            "listener.name.ssl.ssl.client.auth": "required",
        }
        for mechanism in SCRAM:
            settings[f"listener.name.sasl_ssl.{mechanism.lower()}.sasl.jaas.config"] = SCRAM_JAAS
        for listener in ("ssl", "sasl_ssl"):
            head = f"listener.name.{listener}.ssl"
            settings |= {
                f"{head}.keystore.type": "PEM",
                f"{head}.keystore.location": str(both),
                f"{head}.truststore.type": "PEM",
                f"{head}.truststore.location": str(authority.ca),
            }
        return settings


def cluster_id() -> str:
    """A new one, as Kafka writes them."""
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "A")


def _state(task: Path) -> str:
    """One letter, as the kernel tells it behind the name in brackets; `T` is stopped."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
