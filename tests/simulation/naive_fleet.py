"""The naive model's first half: which records count, and who was a member after each of them.

Nothing is kept from one record to the next but the held keys themselves: the whole fleet is
joined anew from their JSON each time (RED-*, DUP-*, D 7, 11, 16, 22, 23).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import xxhash

from projections.events.codec import RecordRefused, decode_record
from projections.events.control import ClockTicked, FoldModeAdopted, LaneOpened
from projections.events.discovery import KeyDeleted, KeyPut, KeysDropped, PassBegan, PassSettled
from projections.events.kinds import FACT_KINDS, Speaker
from projections.events.signals import KvBatchReceived
from projections.registry.keyspace import key_digest_input

KV_INDEX = 1  # the fold mode in which block events count
COUNTED_ONCE = 4  # the one in which copies never do
U64 = (1 << 64) - 1
Name = tuple[str, int]  # namespace, instance id


class Said(NamedTuple):
    """A record that took effect; time: log time, never going back over the owner's records."""

    offset: int
    time: int
    fact: tuple[Any, ...]


class Member(NamedTuple):
    """A worker as its two records describe it."""

    role: str
    model: str | None
    ranks: tuple[int, ...]
    block_size: int | None
    kv_blocks: int | None
    batched_tokens: int | None


class Fleet(NamedTuple):
    """Members, and the ranks that publishers of block events are bound to: (worker, rank)."""

    members: dict[Name, Member]
    bindings: dict[tuple[str, int], tuple[int, int]]


def effective(records: Iterable[tuple[int, bytes]], condemned: frozenset[int]) -> list[Said]:
    """Records that count: sent once, by the owner where only the owner may speak, not condemned."""
    said: list[Said] = []
    sent: set[tuple[bytes, int]] = set()
    newest: dict[bytes, int] = {}
    before_time: set[bytes] = set()  # writers that were heard before log time began, and not since
    owner: tuple[bytes, int] = (b"", 0)
    takes_blocks = False
    now = 0
    for offset, data in records:
        if offset in condemned:
            continue
        try:
            record = decode_record(offset, data)
        except RecordRefused:
            continue
        if (record.writer, record.sequence) in sent or record.sequence < newest.get(record.writer, 0):
            continue
        sent.add((record.writer, record.sequence))
        newest[record.writer] = record.sequence
        if not now:
            before_time.add(record.writer)
        else:
            before_time.discard(record.writer)
        if isinstance(record.fact, LaneOpened):
            if record.fact.epoch != owner[1] + 1:
                continue
            owner, now = (record.writer, record.fact.epoch), max(now, record.time)
            before_time.discard(record.writer)
        elif FACT_KINDS[record.kind].speaker is Speaker.OWNER:
            if (record.writer, record.epoch) != owner:
                continue
            now = max(now, record.time)
            if isinstance(record.fact, ClockTicked):  # by log time, they were silent since its beginning
                sent = {(writer, number) for writer, number in sent if writer not in before_time}
                newest = {writer: number for writer, number in newest.items() if writer not in before_time}
                before_time.clear()
        if isinstance(record.fact, FoldModeAdopted):
            takes_blocks = KV_INDEX in record.fact.flags
            if COUNTED_ONCE in record.fact.flags:
                before_time.clear()
        elif isinstance(record.fact, KvBatchReceived) and not takes_blocks:
            continue
        said.append(Said(offset, now, record.fact))
    return said


def fleets_of(said: list[Said]) -> list[tuple[int, Fleet]]:
    """Members after each discovery record, each time from all held keys.

    Once a pass has settled on what is held, its watches never go back: what does is a repetition.
    """
    keys: dict[tuple[int, str, str], KeyPut] = {}
    watched: dict[str, dict[int, int]] = {}  # namespaces whose pass settled: newest revision a keyspace
    fleets = []
    for offset, _, fact in said:
        if isinstance(fact, KeyPut | KeyDeleted):
            newest = watched.get(fact.namespace, {})
            if 0 < fact.revision < newest.get(fact.keyspace, 0):
                continue
            newest[fact.keyspace] = max(fact.revision, newest.get(fact.keyspace, 0))
            keys.pop((fact.keyspace, fact.namespace, fact.key), None)
            if isinstance(fact, KeyPut):
                keys[(fact.keyspace, fact.namespace, fact.key)] = fact
        elif isinstance(fact, KeysDropped):
            dropped = fact.namespaces or {name[1] for name in keys}
            keys = {name: put for name, put in keys.items() if name[1] not in dropped}
            watched = {space: newest for space, newest in watched.items() if space not in dropped}
        elif isinstance(fact, PassBegan | PassSettled):
            for space in fact.namespaces:
                watched.pop(space, None)
            if isinstance(fact, PassSettled) and _holds(keys, fact):
                watched.update({space: {} for space in fact.namespaces})
            continue
        else:
            continue
        fleets.append((offset, Fleet(_members(keys), _bindings(keys))))
    return fleets


def _holds(keys: dict[tuple[int, str, str], KeyPut], fact: PassSettled) -> bool:
    mine = [name for name in keys if name[1] in fact.namespaces]
    digest = sum(xxhash.xxh3_64_intdigest(key_digest_input(*n, keys[n].value_digest)) for n in mine)
    return (len(mine), digest & U64) == (fact.keys, fact.digest)


def _members(keys: dict[tuple[int, str, str], KeyPut]) -> dict[Name, Member]:
    endpoints: dict[Name, list[dict[str, Any]]] = {}
    cards: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for (keyspace, space, _), put in keys.items():
        value = _json(put.value)
        if keyspace == 1 and value["endpoint"] == "generate":
            endpoints.setdefault((space, value["instance_id"]), []).append(value)
        elif keyspace == 2 and not value.get("model_suffix"):
            cards.setdefault((space, value["component"], value["instance_id"]), []).append(value["card_json"])
    members = {}
    for name, claims in endpoints.items():
        if len(claims) > 1:
            continue  # DUP-01, 02
        component = claims[0]["component"]
        found = cards.get((name[0], component, name[1]), [])
        card = found[0] if len(found) == 1 else {}  # DUP-03
        by_component = component if component in ("prefill", "decode") else None
        by_card = card.get("worker_type")
        if by_component and by_card and by_component != by_card:
            continue  # RED-06
        runtime = card.get("runtime_config", {})
        start, size = runtime.get("data_parallel_start_rank", 0), runtime.get("data_parallel_size", 1)
        members[name] = Member(
            by_card or by_component or "unknown",
            card.get("display_name"),
            tuple(range(start, start + size)),
            card.get("kv_cache_block_size") or None,
            runtime.get("total_kv_blocks") or None,
            runtime.get("max_num_batched_tokens") or None,
        )
    return members


def _bindings(keys: dict[tuple[int, str, str], KeyPut]) -> dict[tuple[str, int], tuple[int, int]]:
    """By publisher; two sources that claim one publisher bind it to nothing."""
    claims: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for (keyspace, space, _), put in keys.items():
        if keyspace == 4:
            value = _json(put.value)
            claims.setdefault((space, value["publisher_id"]), []).append(value["metadata"]["worker"])
    return {
        source: (workers[0]["worker_id"], workers[0]["dp_rank"])
        for source, workers in claims.items()
        if len(workers) == 1
    }


@lru_cache(maxsize=1024)
def _json(value: bytes) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(value)
    return loaded
