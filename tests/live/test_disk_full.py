"""An owner whose disk is full, for real: on Kafka while its spool is needed, and on segments.

The fleet is a file store with libzmq publishers; the disk is a tmpfs of some MiB.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ingest.log.appender import SHED_AT_BYTES
from ingest.log.segment_reader import SegmentReader
from ingest.log.spool import CHUNK_BYTES
from projections.bounds import SECOND_US
from projections.events.control import ClockTicked, LaneOpened
from projections.events.picks import PickMade
from projections.events.signals import KvBatchReceived, SampleReceived
from tests.live.hostile_peers import MODEL, Hostile
from tests.live.kafka_broker import KafkaBroker
from tests.live.kafka_topics import Topics
from tests.live.router_process import RouterProcess, Traffic, picklog, until
from tests.live.small_disk import SmallDisk
from tests.live.test_spool import WORKERS, Site, Talker
from tests.live.whole_log import facts_of

pytestmark = pytest.mark.timeout(300)
MIB = 1 << 20
SPOOL_DISK_BYTES = 6 * MIB
SEGMENTS_DISK_BYTES = 192 * MIB  # the reserve alone takes 64
MEMORY_BYTES = SPOOL_DISK_BYTES // 2 + SHED_AT_BYTES
BLOCKS = 1_280  # of an event: 32 MiB that wait in memory are reached in seconds
RESERVE, PLENTY = 'picklog_log_room{room="reserve"}', 'picklog_log_room{room="plenty"}'


@pytest.fixture
def disk_of(tmp_path: Path) -> Iterator[Callable[[RouterProcess, int], SmallDisk]]:
    """Call it to give a process that was not started yet a small disk for its data directory."""
    made: list[SmallDisk] = []

    def give(process: RouterProcess, size_bytes: int) -> SmallDisk:
        disk = SmallDisk(tmp_path / f"disk-{len(made)}", size_bytes)
        made.append(disk)
        (disk.path / "data").mkdir(mode=0o700)
        process.data.symlink_to(disk.path / "data")
        return disk

    yield give
    for disk in made:
        disk.close()


def shed(process: RouterProcess) -> dict[str, int]:
    """Facts that were left out for want of room, by importance."""
    found = process.metrics()
    head = 'picklog_shed_total{importance="'
    return {name[len(head) : -2]: int(n) for name, n in found.items() if name.startswith(head) and n}


def waiting_bytes(owner: RouterProcess) -> float:
    """Of facts that wait for the log, in the spool and in memory."""
    return owner.metrics()["picklog_append_pending_bytes"]


def unheard(facts: list[Any], talkers: list[Talker]) -> tuple[int, int]:
    """Samples and block events that were published and that no record holds or covers."""
    missing = [0, 0]
    for number, talker in zip(WORKERS, talkers, strict=True):
        for kind, publisher, last in (
            (SampleReceived, 0x700 + number, talker.told["load"]),
            (KvBatchReceived, 0x900 + number, talker.told["kv"]),
        ):
            runs = [fact for fact in facts if isinstance(fact, kind) and fact.publisher_id == publisher]
            told = sum(run.sequence - run.covers_from + 1 for run in runs)  # integers
            missing[kind is KvBatchReceived] += last - told
    return missing[0], missing[1]


def is_all_told(facts: list[Any], talkers: list[Talker], owner: RouterProcess) -> bool:
    """Whether the log lacks just what its owner counts as shed; later samples may stand for shed ones."""
    samples, blocks = unheard(facts, talkers)
    return blocks == shed(owner).get("kv", 0) and samples <= shed(owner).get("sample", 0)


def untold(facts: list[Any], talkers: list[Talker], owner: RouterProcess) -> str:
    """The same in words."""
    return f"{unheard(facts, talkers)} samples and batches are missing, {shed(owner)} were shed"


def asked(facts: list[Any]) -> set[str]:
    """Names of the chats whose picks are in the log."""
    return {fact.question.request_id for fact in facts if isinstance(fact, PickMade)}


def facts_in(owner: RouterProcess) -> list[Any]:
    """The whole log in its segments, see `facts_of`."""
    reader = SegmentReader.open(owner.data)
    try:
        return facts_of(reader)
    finally:
        reader.close()


def refused(traffic: Traffic) -> list[Any]:
    """Chats that were not answered; the frontend here streams nothing."""
    return [sent for sent in traffic.finished() if sent.answer.status != 200]


def rows(follower: RouterProcess, *place: str) -> set[str]:
    """Pick ids that the audit has. place: of the database, where it is not in the data directory."""
    where = place or ("--log", str(follower.data))
    said = picklog("audit", "query", "--json", "select pick_id from picks", *where)
    assert said.returncode == 0, said.stderr
    return {row["pick_id"] for row in json.loads(said.stdout)}


@pytest.mark.live("kafka")
@pytest.mark.req("EVS-17")
def test_a_spool_that_fills_its_disk_says_so_and_loses_nothing_but_what_it_counts(
    kafka: KafkaBroker, tmp_path: Path, disk_of: Callable[[RouterProcess, int], SmallDisk]
) -> None:
    with Topics(kafka) as topics:
        site = Site(topics, tmp_path)
        disk = disk_of(site.ingest, SPOOL_DISK_BYTES)
        follower = site.process("audit", audit={"enabled": True})
        try:
            assert_full_and_emptied(site, disk, kafka, follower)
        finally:
            follower.close()
            site.close()


def assert_full_and_emptied(site: Site, disk: SmallDisk, kafka: KafkaBroker, follower: RouterProcess) -> None:
    """The story of the test above, and what must be true afterwards."""
    owner = site.ingest
    talkers = [Talker(site.store, number, BLOCKS) for number in WORKERS]
    owner.start(ready=False)
    until(lambda: owner.connected() == 2 * len(WORKERS), owner.log_tail)
    site.router.start()
    follower.start(ready=False)
    until(lambda: follower.get("/ready")[0] == 200, follower.log_tail)
    traffic = Traffic(site.router, MODEL)
    with talkers[0], talkers[1], traffic.running(threads=2, pause_s=0.2):
        traffic.wait_more(4)
        pid = owner.pid
        kafka.kill()
        try:
            until(
                lambda: waiting_bytes(owner) > MEMORY_BYTES, lambda: f"memory fills: {waiting_bytes(owner)}"
            )
            assert disk.free_bytes < 2 * CHUNK_BYTES, "a chunk takes all that is left, or finds no room"
            traffic.wait_more(4)
        finally:
            kafka.start()
        until(lambda: owner.log_lines("the spool is empty again"), owner.log_tail, patience_s=90)
        traffic.wait_more(4)
        until(lambda: disk.free_bytes > SPOOL_DISK_BYTES // 2, "the disk is given back")
        for talker in talkers:
            talker.fall_silent()
        until(lambda: is_all_told(site.facts(), talkers, owner), lambda: untold(site.facts(), talkers, owner))
    assert owner.pid == pid and owner.log_lines("the disk takes nothing more for the spool")
    assert refused(traffic) == []
    names = {sent.identifier for sent in traffic.finished()}
    until(lambda: names <= asked(site.facts()), "each pick is in the log, whole", pause_s=1.0)
    facts = site.facts()
    assert (owner.metrics()["picklog_spool_bytes"], owner.metrics()["picklog_spool_records"]) == (0, 0)
    ticks = [fact.wall_us for fact in facts if isinstance(fact, ClockTicked)]
    assert all(later - tick < 5 * SECOND_US for tick, later in pairwise(ticks)), "no tick is missing"
    assert sum(isinstance(fact, LaneOpened) for fact in facts) == 1
    said = picklog("replay", "verify", "--json", "--log", f"kafka:{site.router.file}")
    assert said.returncode == 0 and json.loads(said.stdout)["different"] == 0, (said.stdout, said.stderr)
    picks = {fact.pick_id.hex() for fact in facts if isinstance(fact, PickMade)}
    until(lambda: rows(follower) == picks, follower.log_tail, pause_s=1.0)
    assert follower.metrics()["picks_unreproduced_total"] == 0


@pytest.mark.req("EVS-17")
def test_segments_on_a_full_disk_take_picks_from_the_reserve_and_all_once_there_is_room(
    tmp_path: Path, disk_of: Callable[[RouterProcess, int], SmallDisk]
) -> None:
    peers = Hostile(tmp_path)
    router = peers.router
    disk = disk_of(router, SEGMENTS_DISK_BYTES)
    config = dict(router.config)
    config["dynamo"] = {**config["dynamo"], "kv": {"enabled": True}}
    config["log"] = {**config["log"], "retention": {"bytes": "64MiB"}}
    # SQLite follows links by itself, and would end up where the small disk is not mounted
    config["audit"] = {"url": f"sqlite+aiosqlite:///{tmp_path}/audit.sqlite"}
    router.write(config)
    traffic = Traffic(router, MODEL)
    try:
        talkers = [Talker(peers.store, number) for number in WORKERS]
        router.start()
        until(lambda: router.connected() == 2 * len(WORKERS), router.log_tail)
        with talkers[0], talkers[1]:
            assert router.metrics()[PLENTY]
            with traffic.running(threads=2, pause_s=0.02):
                traffic.wait_more(10)
                pid = router.pid
                disk.fill()
                until(lambda: router.metrics()[RESERVE], lambda: f"the disk is full: {router.log_tail()}")
                traffic.wait_more(200)
                assert router.ready()[0] == 200 and router.metrics()[RESERVE]
                disk.free()
                until(lambda: router.metrics()[PLENTY], lambda: f"there is room: {router.log_tail()}")
                traffic.wait_more(20)
            for talker in talkers:
                talker.fall_silent()
            until(
                lambda: is_all_told(facts_in(router), talkers, router),
                lambda: untold(facts_in(router), talkers, router),
                pause_s=1.0,
            )
        assert router.log_lines("the log took nothing of a batch")
        assert router.pid == pid and refused(traffic) == []
        assert set(shed(router)) <= {"sample", "kv"}, "nothing critical"
        found = router.verify()
        assert asked(facts_in(router)) >= {sent.identifier for sent in traffic.finished()}
        assert found["picks"] == len(router.records("PickMade")) and not router.records("PicksLost")
        assert picklog("log", "verify", "--log", str(router.data)).returncode == 0
        picks = {one["fields"]["pick_id"] for one in router.records("PickMade")}
        place = ("--db", config["audit"]["url"])
        until(lambda: rows(router, *place) == picks, lambda: f"audit: {router.log_tail()}", pause_s=1.0)
    finally:
        peers.close()
