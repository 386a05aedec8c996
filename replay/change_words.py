"""Changes between two marks in words: one sentence a change, oldest first, loads and blocks last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from projections.bounds import SECOND_US
from projections.events.picks import Verdict
from projections.load.store import HeldSample
from replay.changes import Changes, Event, WorkerChange, rank_name, worker_name
from replay.setting_words import value_text
from replay.timeline import RankLoad

NAMED_MAX = 3
EVENTS_TOLD_MAX = 1_000
TOGETHER_US = SECOND_US  # events of one kind this close are told in one sentence
Times = Callable[[int], str]
_KINDS = {"worker": "worker ", "subscription": "publisher ", "rank": "rank "}


def words_of(changes: Changes, to_time: Times) -> list[str]:
    """One sentence a change. to_time: text of a log time."""
    found = [_event_words(group, to_time) for group in _groups(changes.events[:EVENTS_TOLD_MAX])]
    unsaid = changes.dropped + max(0, len(changes.events) - EVENTS_TOLD_MAX)
    if unsaid:
        found.append(f"{unsaid} further events are not told one by one")
    found += [_worker_words(change) for change in changes.changed]
    found += _verdict_words(changes)
    found += _sample_words(changes)
    found += _block_words(changes)
    found += _dispatch_words(changes)
    return found or ["nothing changed"]


def _groups(events: Sequence[Event]) -> list[list[Event]]:
    """Events in order; neighbours that say the same of several subjects together."""
    groups: list[list[Event]] = []
    for event in events:
        last = groups[-1][-1] if groups else None
        if (
            last is not None
            and event.several
            and (event.kind, event.several) == (last.kind, last.several)
            and event.at - groups[-1][0].at <= TOGETHER_US
        ):
            groups[-1].append(event)
        else:
            groups.append([event])
    return groups


def _event_words(group: list[Event], to_time: Times) -> str:
    first = group[0]
    when = f" at {to_time(first.at)} (offset {first.offset})"
    if len(group) > 1:
        names = ", ".join(event.subject for event in group[:NAMED_MAX])
        more = f" and {len(group) - NAMED_MAX} more" if len(group) > NAMED_MAX else ""
        return f"{len(group)} {first.several}{when}: {names}{more}"
    kind = _KINDS.get(first.kind, "")
    return f"{kind}{first.subject} {first.what}{when}{first.detail and ': '}{first.detail}"


def _worker_words(change: WorkerChange) -> str:
    parts = [f"{name} {value_text(was)} -> {value_text(now)}" for name, was, now in change.fields]
    return f"worker {worker_name(change.worker)} changed: {', '.join(parts)}"


def _verdict_words(changes: Changes) -> Iterator[str]:
    became: dict[tuple[Verdict, Verdict], list[RankLoad]] = {}
    for before, after in changes.loads:
        if before.verdict is not after.verdict:
            became.setdefault((before.verdict, after.verdict), []).append(after)
    for (was, now), rows in sorted(became.items()):
        ranks = "1 rank" if len(rows) == 1 else f"{len(rows)} ranks"
        yield f"{ranks} became {now.label} (before: {was.label}): {_named(rows)}"


def _sample_words(changes: Changes) -> Iterator[str]:
    moved = []
    for before, after in changes.loads:
        was, now = _blocks(before.sample), _blocks(after.sample)
        if was != now:
            moved.append((abs((now or 0) - (was or 0)), before, after))
    if not moved:
        return
    moved.sort(key=lambda entry: (-entry[0], entry[1].rank))
    largest = [
        f"{_rank(after)} {value_text(_blocks(before.sample))} -> {value_text(_blocks(after.sample))}"
        for _, before, after in moved[:NAMED_MAX]
    ]
    ranks = "1 rank reports" if len(moved) == 1 else f"{len(moved)} ranks report"
    yield f"{ranks} other blocks in use, most of all {', '.join(largest)}"


def _block_words(changes: Changes) -> Iterator[str]:
    before, after = ({row.rank: row.blocks[0] for row in index.ranks} for index in changes.blocks)
    moved = [
        (-abs(after.get(rank, 0) - before.get(rank, 0)), rank)
        for rank in sorted({**before, **after})
        if before.get(rank, 0) != after.get(rank, 0)
    ]
    if not moved:
        return
    largest = [
        f"{rank_name(rank)} {before.get(rank, 0)} -> {after.get(rank, 0)}"
        for _, rank in sorted(moved)[:NAMED_MAX]
    ]
    ranks = "1 rank holds" if len(moved) == 1 else f"{len(moved)} ranks hold"
    yield f"{ranks} other numbers of blocks, most of all {', '.join(largest)}"


def _dispatch_words(changes: Changes) -> Iterator[str]:
    if changes.picks or changes.lost:
        lost = f" and {changes.lost} more whose records were lost" if changes.lost else ""
        yield f"{_plural(changes.picks, 'pick was', 'picks were')} made{lost}"
    if changes.ends:
        ends = ", ".join(f"{count} {status}" for status, count in changes.ends.items())
        yield f"{_plural(sum(changes.ends.values()), 'dispatch', 'dispatches')} ended: {ends}"
    before, after = changes.unanswered
    if before != after:
        yield f"unanswered dispatches: {before} -> {after}"


def _plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _blocks(sample: HeldSample | None) -> int | None:
    if sample is None:
        return None
    return sample.kv_used_blocks if sample.active_decode_blocks is None else sample.active_decode_blocks


def _named(rows: list[RankLoad]) -> str:
    names = ", ".join(map(_rank, rows[:NAMED_MAX]))
    more = f" and {len(rows) - NAMED_MAX} more" if len(rows) > NAMED_MAX else ""
    by = Counter(row.rank.namespace for row in rows)
    return names + more + (f" in {len(by)} namespaces" if more and len(by) > 1 else "")


def _rank(row: RankLoad) -> str:
    return f"{row.rank.worker.to_text()} rank {row.rank.dp_rank}"
