"""Block events of real fleets, decoded and folded: what every rank holds, also while requests came.

The heads of three recordings are compared with a plain dictionary. Two whole recordings, one of
them of a relay that drops events, are folded and compared with what a second, independent program
made of them: blocks held at the end, the exclusive or of their hashes, and the overlap of every
request. Workers that were killed are kept there: that program kept them too. With PICKLOG_CAPTURES
all full captures are held against it in the same way.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest

from ingest.wire.router_events import KvFrame, decode_kv_message
from projections.events.picks import BlockHashes
from projections.events.signals import KV_EVENT_HEAD, KvBatchReceived, KvOperation
from projections.kv.block_hash import block_hashes
from replay.timeline import index_at
from tests.projections.fleet_script import NS
from tests.projections.kv.kv_script import KV, KvScript
from tests.recordings.test_etcd_watch import fact_of

HERE = Path(__file__).parent
HEADS = ("1.4.2", "1.5.0", "1.6.1")
LOSSY = "1.4.2-agg-lossy"
CAPTURES = ("1.4.2-disagg", "1.4.2-agg-dp2", "1.5.0-disagg", "1.6.1-agg", LOSSY)
RECORDED = ("1.4.2-agg-dp2", LOSSY)
HELD_WITHOUT_PARENTS = {227: 133, 183: 162}  # of the lossy one: what hangs from the root

ORPHANS = 115  # stored under 58 parents that never came, or under one of these


class Message(NamedTuple):
    """A kv-events message by its time of receipt."""

    t_ns: int
    publisher: int
    frame: KvFrame


def messages(path: Path) -> Iterator[Message]:
    with gzip.open(path) as file:
        for received_ns, _, frames in msgpack.Unpacker(file, raw=True):
            if frames[0] != b"kv-events":
                continue
            publisher = int.from_bytes(frames[1], "big")
            frame = decode_kv_message(frames, publisher)
            assert isinstance(frame, KvFrame) and not frame.dropped, frame
            yield Message(received_ns, publisher, frame)


def say(script: KvScript, message: Message) -> None:
    frame = message.frame
    position = frame.sequence, frame.sequence
    script.say(
        KvBatchReceived(NS, message.publisher, 1, *position, frame.heads, frame.hashes, frame.published_at_ms)
    )


def words(column: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(column) // 8}Q", column)


class Plain:
    """Engine hashes and paths of every rank, in dictionaries."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {}

    def take(self, frame: KvFrame) -> None:
        at = 0
        hashes = words(frame.hashes)
        for worker, rank, _, operation, _, has_parent, blocks in KV_EVENT_HEAD.iter_unpack(frame.heads):
            held = self.held.setdefault((worker, rank), {})
            if operation == KvOperation.STORED:
                path: tuple[int, ...] | None = ()
                if has_parent:
                    path, at = held.get(hashes[at]), at + 1
                for token, name in zip(
                    hashes[at : at + blocks], hashes[at + blocks : at + 2 * blocks], strict=True
                ):
                    if path is not None:
                        path = held[name] = (*path, token)
                at += 2 * blocks
            elif operation == KvOperation.REMOVED:
                for name in hashes[at : at + blocks]:
                    held.pop(name, None)
                at += blocks


@pytest.mark.req("KVX-05", "KVX-08", "KVX-10")
@pytest.mark.parametrize("version", HEADS)
def test_the_head_of_a_recording_is_held_as_a_plain_dictionary_holds_it(version: str) -> None:
    script, plain = KvScript(), Plain()
    for message in messages(HERE / f"kv_events-head-{version}.msgpack.gz"):
        for worker, *_ in KV_EVENT_HEAD.iter_unpack(message.frame.heads):
            if not script.fold.state.registry.is_live(NS, worker, 0):
                script.worker(worker, runtime={"data_parallel_size": 4})
        say(script, message)
        plain.take(message.frame)
        assert not set(script.results()) - {"applied", "orphan", "unknown_removed"}
    found = index_at(script.fold)
    assert {row.rank[1:]: row.blocks[0] for row in found.ranks} == {
        rank: len(held) for rank, held in plain.held.items()
    }
    for row in found.ranks:
        total = 0
        for name in plain.held[row.rank[1:]]:
            total ^= name
        assert row.engine_hash_xor == total
    script.kv.indexes[0].check()


class Capture(NamedTuple):
    """One run of a fleet: its keys, messages and requests, and what another program made of them.

    expected: held_at_end, held_xor, last_event_id and events by rank; block_size. requests: n, t_send_ns,
    prompt_token_ids, and overlap_blocks by rank.
    """

    keys: list[dict[str, Any]]
    messages: Path
    requests: list[dict[str, Any]]
    expected: dict[str, Any]


def lines_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as lines:
        return [json.loads(line) for line in lines]


def recorded(name: str) -> Capture:
    """One of the two that are in the repository."""
    keys = [row for row in lines_of(HERE / f"etcd-watch-{name}.jsonl.gz") if "key" in row]
    expected, *requests = lines_of(HERE / f"kv_held-{name}.jsonl.gz")
    return Capture(keys, HERE / f"kv_events-all-{name}.msgpack.gz", requests, expected)


def full_capture(name: str) -> Capture:
    folder = Path(os.environ["PICKLOG_CAPTURES"]) / name
    expected = json.loads((folder / "expected.json").read_text())
    overlaps = {row["n"]: row["overlap_blocks"] for row in expected["requests"]}
    requests = [
        {**row, "overlap_blocks": overlaps[row["n"]]}
        for row in lines_of(folder / "requests.jsonl.gz")
        if row.get("prompt_token_ids")
    ]
    keys = lines_of(folder / "etcd-watch.jsonl.gz")
    return Capture(keys, folder / "zmq.msgpack.gz", requests, expected)


def rows_by_time(capture: Capture) -> list[tuple[int, int, Any]]:
    """(time, order, row) of keys that were put, block events and requests."""
    rows: list[tuple[int, int, Any]] = []
    rows += [(0, n, row) for n, row in enumerate(capture.keys) if row["type"] == "put"]
    rows += [(one.t_ns, n, one) for n, one in enumerate(messages(capture.messages))]
    rows += [(row["t_send_ns"], row["n"], row) for row in capture.requests]
    return sorted(rows, key=lambda row: row[:2])


@pytest.mark.req("KVX-05", "KVX-09", "RND-14")
@pytest.mark.parametrize("name", RECORDED)
def test_a_whole_recording_is_held_as_another_program_says(name: str) -> None:
    check_held(name, recorded(name))


@pytest.mark.skipif("PICKLOG_CAPTURES" not in os.environ, reason="full captures are not in the repository")
@pytest.mark.parametrize("name", CAPTURES)
def test_a_full_capture_is_held_as_another_program_says(name: str) -> None:
    check_held(name, full_capture(name))


def check_held(name: str, capture: Capture) -> None:
    """Blocks, last event ids and the exclusive or of names at the end; overlaps at each request."""
    expected = capture.expected
    script, results, compared = KvScript(), dict[str, int](), 0
    for _, _, row in rows_by_time(capture):
        if isinstance(row, Message):
            say(script, row)
            for label, times in script.results().items():
                results[label] = results.get(label, 0) + times
        elif "key" in row:
            fact = fact_of(row)
            if fact is not None:
                script.say(fact)
        elif name != LOSSY:
            compared += 1
            assert overlaps_of(script, row, expected["block_size"]) == row["overlap_blocks"], row["n"]
    ranks = {f"{row.rank[1]}/{row.rank[2]}": row for row in index_at(script.fold).ranks}
    assert ranks.keys() == expected["held_at_end"].keys()
    for rank, row in ranks.items():
        assert row.last_event_id == expected["last_event_id"][rank]
        held = expected["held_at_end"][rank]
        if name == LOSSY:
            assert row.blocks == (HELD_WITHOUT_PARENTS[held],)
        else:
            assert (row.blocks, str(row.engine_hash_xor)) == ((held,), expected["held_xor"][rank])
    events = sum(sum(counts.values()) for counts in expected["events"].values())
    if name == LOSSY:
        assert results == {"applied": events - ORPHANS, "orphan": ORPHANS}
    else:
        assert results == {"applied": events} and compared > 10


def overlaps_of(script: KvScript, request: dict[str, Any], size: int) -> dict[str, int]:
    """Blocks of a request's prompt that each rank holds on the device."""
    tokens = array("I", request["prompt_token_ids"]).tobytes()
    hashes = block_hashes(tokens, size, 1337)
    known = BlockHashes(size, len(hashes) // 8, 0, hashes)
    question = script.question(model="tiny-chat")._replace(hashes=(known,))
    prefixes = script.view().prefixes(question, KV)
    return {f"{key[1]}/{key[2]}": prefix.device for key, prefix in prefixes.items()}
