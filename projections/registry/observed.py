"""What is told of a change of held keys, of passes and of roles: notices, nothing else.

Everything is counted; of what a person should see, a line per key is enough, so a key that
says the same odd thing again is told at debug level (LOAD-05).

Sources: requirement rows RED-06, 09, 12, 14, 15; LOAD-05, 06; MEM-01; B-021, B-023.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from projections.events.discovery import KeysDropped, PassBegan, PassEnded, PassSettled
from projections.identity import WorkerKey
from projections.notices import DiscoveryKind, DiscoveryNotice, Notice, StatusNotice
from projections.registry.join import RoleConflict
from projections.registry.json_text import Unreadable
from projections.registry.key_parts import disagreement
from projections.registry.keyspace import KEYSPACE_LABELS, Change, HeldKey
from projections.registry.records import TOPICS, CardRecord, ChannelFault, ChannelRecord

# Reasons of PassBegan that stand for a watcher replaced by a change of settings.
RESTART_REASONS: Final = frozenset(
    ("restart", "enabled", "source", "connection", "namespace", "namespaces", "backoff", "other")
)
_CHANNEL_FAULTS: Final = {
    ChannelFault.SCOPE: "publisher of an unknown scope",
    ChannelFault.TRANSPORT: "publisher of another transport than direct ZMQ",
    ChannelFault.ADDRESS: "publisher without a tcp address",
}


def change(changed: Change) -> list[Notice]:
    """What a put or delete of one key tells."""
    keyspace, namespace, key = changed.name
    held, before = changed.after, changed.before
    if held is None:
        return [_notice(DiscoveryKind.DELETE, changed, "key deleted", level="debug")]
    found: list[Notice] = [_notice(DiscoveryKind.PUT, changed, "key put", level="debug")]
    trouble = _trouble(held)
    if trouble is not None:
        kind, what, detail = trouble
        said = before is not None and _trouble(before) == trouble
        found.append(_notice(kind, changed, what, detail, "debug" if said else "warning"))
    where = disagreement(keyspace, key, held.record)
    if where is not None:
        said = before is not None and disagreement(keyspace, key, before.record) == where
        level = "debug" if said else "warning"
        found.append(_notice(DiscoveryKind.MISMATCH, changed, "key and value disagree", where, level))
    release = _release(held)
    if release is not None and (before is None or _release(before) != release):
        found.append(StatusNotice("release of a worker", f"{namespace}/{key}: {release}", "debug"))
    return found


def role_conflict(
    key: WorkerKey, before: RoleConflict | None, now: RoleConflict | None, notices: list[Notice]
) -> None:
    """A worker is set apart, naming both roles."""
    if now is None or now == before:
        return
    notices.append(
        DiscoveryNotice(
            DiscoveryKind.EXCLUDED,
            key.namespace,
            f"component claims {now.component.label}, card claims {now.card.label}: worker is set apart",
            identity=key.to_text(),
        )
    )


def pass_began(fact: PassBegan) -> Notice:
    """A listing starts; counted as a restart where settings made it start."""
    detail = f"{fact.source} {', '.join(fact.namespaces)}: {fact.reason}"
    if fact.reason in RESTART_REASONS:
        namespace = fact.namespaces[0] if fact.namespaces else ""
        return DiscoveryNotice(
            DiscoveryKind.RESTART, namespace, "discovery restarts", identity=detail, level="info"
        )
    return StatusNotice("discovery pass began", detail)


def pass_settled(
    fact: PassSettled, is_same: bool, full: Collection[int], claimed: int, published: int
) -> list[Notice]:
    """A listing is over; keys that reader and fold do not share are worth a look.

    claimed: ids that some generate record claims in these namespaces; published: workers there.
    Claims of which none became a worker have a reason that was told of each (B-018).
    """
    namespace = fact.namespaces[0] if fact.namespaces else ""
    detail = f"{fact.source} {', '.join(fact.namespaces)}: {fact.keys} keys, {published} workers"
    found: list[Notice] = [
        DiscoveryNotice(
            DiscoveryKind.RESYNC, namespace, "discovery pass settled", identity=detail, level="info"
        )
    ]
    if claimed and not published:
        found.append(
            StatusNotice(
                "instances are announced and none is a worker", f"{detail}, {claimed} ids", "warning"
            )
        )
    if not is_same:
        # A full keyspace refuses keys that the source has: no news, and said already.
        level = "debug" if full else "warning"
        found.append(StatusNotice("the pass and the fold hold different keys", detail, level))
    return found


def pass_ended(fact: PassEnded) -> Notice:
    """The fleet stays as it was until the next pass."""
    detail = f"{fact.source} {', '.join(fact.namespaces)}: {fact.reason}"
    return StatusNotice("discovery pass ended", detail)


def keys_dropped(fact: KeysDropped, changes: Sequence[Change]) -> list[Notice]:
    """Held keys were forgotten on purpose: counted by namespace, told in one line."""
    scope = ", ".join(fact.namespaces) or "all namespaces"
    found: list[Notice] = [StatusNotice("held keys dropped", f"{scope}: {len(changes)} keys, {fact.reason}")]
    counts: dict[str, int] = {}
    for changed in changes:
        counts[changed.name[1]] = counts.get(changed.name[1], 0) + 1
    for namespace in sorted(counts):
        found.append(
            DiscoveryNotice(
                DiscoveryKind.DELETE, namespace, "keys dropped", times=counts[namespace], level="debug"
            )
        )
    return found


def _trouble(held: HeldKey) -> tuple[DiscoveryKind, str, str] | None:
    """(kind, fixed phrase, detail) of what is odd about a value."""
    record = held.record
    if record is None:
        return DiscoveryKind.OVERSIZED, "value is too large and was not read", ""
    if isinstance(record, Unreadable):
        return DiscoveryKind.MALFORMED, "value cannot be read", record.value
    if isinstance(record, ChannelRecord) and record.topic in TOPICS:
        what = _CHANNEL_FAULTS.get(record.fault)
        return (DiscoveryKind.UNSUPPORTED, what, "") if what is not None else None
    if isinstance(record, CardRecord) and record.card.faults:
        what = "card has fields that cannot be used, the worker stays"
        return DiscoveryKind.MALFORMED, what, ", ".join(record.card.faults)
    return None


def _release(held: HeldKey) -> str | None:
    return held.record.card.release if isinstance(held.record, CardRecord) else None


def _notice(
    kind: DiscoveryKind, changed: Change, what: str, detail: str = "", level: str = "warning"
) -> DiscoveryNotice:
    keyspace, namespace, key = changed.name
    identity = f"{KEYSPACE_LABELS[keyspace]}: {detail}" if detail else KEYSPACE_LABELS[keyspace]
    return DiscoveryNotice(kind, namespace, what, identity, (key,), level=level)
