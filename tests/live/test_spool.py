"""A real broker is away for seconds while a fleet talks: the owner spools and ships, and nothing is missing.

The fleet is a file store with two workers and publishers of libzmq: enough block events that memory alone
would not carry them, and samples beside them.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import zmq

from deploy.demo.addresses import free_port
from ingest.log.kafka_reader import KafkaReader
from ingest.wire.publisher_frames import Sample, encode_sample_message
from projections.events.control import LaneOpened
from projections.events.picks import PickMade
from projections.events.signals import KV_EVENT_HEAD, KvBatchReceived, SampleReceived
from tests.ingest.wire.kv_messages import event, message, removed, stored
from tests.live.hostile_peers import MODEL, Frontend, Store
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.live.router_process import RouterProcess, picklog, until
from tests.live.whole_log import facts_of

pytestmark = [pytest.mark.live("kafka"), pytest.mark.timeout(180)]
WORKERS = (31, 32)
BLOCKS = 320  # of an event; as many are removed three events later
FRAMES_PER_S = 150  # of block events; about a MiB a second in the log
SPOOLED_BYTES = 1 << 20


class Talker:
    """A worker's two publishers, which talk until they are closed. told: numbers that were published last.

    blocks: of an event.
    """

    def __init__(self, store: Store, number: int, blocks: int = BLOCKS) -> None:
        self._number = number
        self._blocks = blocks
        self._context = zmq.Context()
        self._kv, self._load = self._bound(), self._bound()
        store.worker(number)
        store.channel(0x700 + number, self._address(self._load))
        channel = store.path(
            "event_channels",
            f"namespace/dynamo/component/backend/endpoint/generate/topic/kv_metrics/{0x700 + number:x}",
        )
        text = channel.read_text().replace("kv_metrics", "kv-events")
        text = text.replace(str(0x700 + number), str(0x900 + number))
        text = text.replace(self._address(self._load), self._address(self._kv))
        store.put(
            "event_channels",
            f"namespace/dynamo/component/backend/endpoint/generate/topic/kv-events/{0x900 + number:x}",
            text.encode(),
        )
        self.told = {"kv": 0, "load": 0}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._talk)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def fall_silent(self) -> None:
        """Say no more; what was said may still be on its way."""
        self._ending.set()
        self._thread.join()

    def close(self) -> None:
        """What was said last is on its way."""
        self.fall_silent()
        self._context.destroy(linger=2_000)

    def _bound(self) -> zmq.Socket[bytes]:
        made = self._context.socket(zmq.PUB)
        made.sndhwm = 100_000
        made.bind("tcp://127.0.0.1:*")
        return made

    @staticmethod
    def _address(bound: zmq.Socket[bytes]) -> str:
        address = bound.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(address, bytes)
        return address.decode().rstrip("\0")

    def _talk(self) -> None:
        while not self._ending.wait(1 / FRAMES_PER_S):
            turn = self.told["kv"] + 1
            self._kv.send_multipart(self.kv_message(turn))
            self.told["kv"] = turn
            if turn % 5 == 0:
                number = self.told["load"] + 1
                self._load.send_multipart(encode_sample_message(0x700 + self._number, self.sample(number)))
                self.told["load"] = number

    def kv_message(self, turn: int) -> tuple[bytes, ...]:
        """The frames of block event number `turn`."""
        data = self._removed(turn) if turn % 2 else self._stored(turn)
        return message([event(turn, data, worker_id=self._number)], turn, 0x900 + self._number)

    def sample(self, number: int) -> Sample:
        """Sample number `number`."""
        turn = 5 * number
        return Sample(number, turn, self._number, 0, None, None, turn % 1000)

    def _names(self, turn: int) -> range:
        start = (self._number << 40) + turn * self._blocks
        return range(start, start + self._blocks)

    def _stored(self, turn: int) -> Any:
        return stored(*[(name, name) for name in self._names(turn)])

    def _removed(self, turn: int) -> Any:
        return removed(*self._names(turn - 3))


class Site:
    """A store, a topic, an ingest process with its spool and a router."""

    def __init__(self, topics: Topics, folder: Path) -> None:
        self.place = topics.place()
        self.store = Store(folder / "store")
        self.frontend = Frontend()
        self._servers, self._folder = topics.broker.address(), folder
        self.ingest = self.process("ingest")
        self.router = self.process("router")

    def process(self, command: str, name: str = "", **settings: Any) -> RouterProcess:
        """One more process, not started. name: of its folder, the command unless it is given."""
        port = free_port()
        discovery = {"source": "file", "file": {"root": str(self.store.root), "namespace": "dynamo"}}
        kafka = {
            "bootstrap_servers": [self._servers],
            "topic": self.place.topic,
            "replication_factor": 1,
            "spool_bytes": "256MiB",
        }
        front = {"name": "frontend-1", "type": "openai", "role": "unified", "url": self.frontend.url}
        config = {
            "server": {"bind_address": f"127.0.0.1:{port}"},
            "backends": [{**front, "models": [MODEL]}],
            "health_checks": {"interval": "1s"},
            "disaggregated_serving": {"enabled": True},
            "dynamo": {
                "enabled": True,
                "discovery": discovery,
                "load": {"direct_allow_cidrs": ["127.0.0.0/8"]},
                "shim": {"backends": ["frontend-1"]},
                "kv": {"enabled": True},
            },
            "log": {"kind": "kafka", "kafka": kafka, "raw": {"enabled": False}},
            "audit": {"enabled": False},
            "checkpoints": {"bytes": "64MiB"},
            **settings,
        }
        return RouterProcess(self._folder / (name or command), config, port, command)

    def begin(self) -> list[Talker]:
        """Start the owner, and a router once it hears all publishers; these, still silent."""
        talkers = [Talker(self.store, number) for number in WORKERS]
        self.ingest.start(ready=False)
        until(lambda: self.ingest.connected() == 2 * len(WORKERS), self.ingest.log_tail)
        self.router.start()
        return talkers

    def facts(self) -> list[Any]:
        """The whole log, see `facts_of`."""
        reader = KafkaReader.open(self.place)
        try:
            return facts_of(reader)
        finally:
            reader.close()

    def close(self) -> None:
        self.router.close()
        self.ingest.close()
        self.frontend.close()
        self.store.close()


@pytest.fixture
def site(kafka: KafkaBroker, tmp_path: Path) -> Iterator[Site]:
    with Topics(kafka) as topics:
        made = Site(topics, tmp_path)
        try:
            yield made
        finally:
            made.close()


@pytest.mark.req("EVS-17")
@pytest.mark.parametrize("fate", ["killed", "frozen"])
def test_what_a_fleet_says_while_the_broker_is_away_is_all_in_the_log(
    site: Site, kafka: KafkaBroker, fate: str
) -> None:
    talkers = site.begin()
    with talkers[0], talkers[1]:
        assert site.router.chat("before", MODEL).status == 200
        away(site, kafka, fate)
        until(lambda: site.ingest.log_lines("the spool is empty again"), site.ingest.log_tail)
        assert site.router.chat("behind", MODEL).status == 200
    assert site.ingest.log_lines("the rest is spooled")
    until(lambda: missing(site, talkers) == [], lambda: str(missing(site, talkers)))
    figures = site.ingest.metrics()
    assert not any(value for name, value in figures.items() if name.startswith("picklog_shed_total"))
    assert not figures.get('continuum_dynamo_kv_events_total{result="gap"}')
    assert (figures["picklog_spool_bytes"], figures["picklog_spool_records"]) == (0, 0)
    facts = site.facts()
    assert sum(isinstance(fact, LaneOpened) for fact in facts) == 1
    assert sum(isinstance(fact, PickMade) for fact in facts) >= 3
    said = picklog("replay", "verify", "--log", f"kafka:{site.router.file}")
    assert said.returncode == 0, (said.stdout, said.stderr)


def away(site: Site, kafka: KafkaBroker, fate: str) -> None:
    """The broker is away until some MiB are spooled; picks go on."""

    def spooled() -> bool:
        return site.ingest.metrics()["picklog_spool_bytes"] > SPOOLED_BYTES

    kafka.kill() if fate == "killed" else kafka.freeze()
    try:
        assert site.router.chat("meanwhile", MODEL).status == 200
        until(spooled, site.ingest.log_tail)
    finally:
        kafka.start() if fate == "killed" else kafka.thaw()


def missing(site: Site, talkers: list[Talker]) -> list[str]:
    """What the log has not, of all that was said: numbers of frames and ids of events, by publisher."""
    runs: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    events: defaultdict[int, list[int]] = defaultdict(list)
    for fact in site.facts():
        if isinstance(fact, SampleReceived | KvBatchReceived):
            runs[fact.publisher_id].append((fact.covers_from, fact.sequence))
        if isinstance(fact, KvBatchReceived):
            events[fact.publisher_id] += [head[2] for head in KV_EVENT_HEAD.iter_unpack(fact.heads)]
    found = []
    for number, talker in zip(WORKERS, talkers, strict=True):
        for publisher, last in ((0x700 + number, talker.told["load"]), (0x900 + number, talker.told["kv"])):
            due = 1
            for covers_from, sequence in runs[publisher]:
                if covers_from != due:
                    found.append(f"{publisher:x}: {covers_from} where {due} was due")
                due = sequence + 1
            if due != last + 1:
                found.append(f"{publisher:x}: ends before {due}, {last} was said last")
        if events[0x900 + number] != [*range(1, talker.told["kv"] + 1)]:
            found.append(f"{0x900 + number:x}: event ids are not all, in order, once")
    return found
