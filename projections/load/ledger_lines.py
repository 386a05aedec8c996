"""The lines of one pick, and the arithmetic that asks them at a time.

A pick of a pair has two lines: the prefill rank is charged with prompt tokens, the decode
rank with blocks. A pick without a prefill rank has one line at the decode rank, charged
with both. The decode half of a pair gets its request only after the prefill, so it never
marks a stall (STORE-10); nor does a request of one block, or of unknown size (STORE-09).

Boundaries: a charge counts while `at - dispatched_at` is under 30 s, a stall is judged from
5 s on, a suspicion holds while `at - ended_at` is under 10 s. A dispatch is answered by a
sample stamped at `dispatched_at` or later; a suspicion is lifted by one stamped after it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Sequence

from projections.bounds import DISPATCH_AGE_US_MAX, STALL_AGE_US, STALL_BLOCKS_MIN, SUSPECT_US
from projections.events.held import LedgerLine
from projections.events.picks import Chosen, LostPick, Phase, PickMade
from projections.load.charges import Charges


class WorkerLines:
    """What is open or unanswered at one worker.

    ranks: dp_rank -> Charges. stalls: (dispatched_at, pick id) in order, of dispatches that
    run and may mark a stall. picks: ids of picks with a line here. newest: no line here was
    dispatched later. suspect_from: log time of the newest fault, None where there is none.
    """

    __slots__ = ("newest", "picks", "ranks", "stalls", "suspect_from")

    def __init__(self) -> None:
        self.ranks: dict[int, Charges] = {}
        self.stalls: list[tuple[int, bytes]] = []
        self.picks: dict[bytes, None] = {}
        self.newest = 0
        self.suspect_from: int | None = None


def lines_of(fact: PickMade) -> tuple[LedgerLine, ...]:
    """The ledger lines of a pick, prefill first; () where it chose nothing."""
    outcome, question = fact.outcome, fact.question
    if outcome.namespace is None:
        return ()
    head = (fact.pick_id, fact.replica, outcome.namespace)
    times = (question.asked_at, question.dispatched_at)
    return _lines(head, times, outcome.prefill.chosen, outcome.decode.chosen)


def lines_of_lost(replica: bytes, lost: LostPick) -> tuple[LedgerLine, ...]:
    """The same for a pick of which only this was recorded. None of them has ended."""
    head = (lost.pick_id, replica, lost.namespace)
    return _lines(head, (lost.asked_at, lost.dispatched_at), lost.prefill, lost.decode)


def charged_blocks(line: LedgerLine) -> int:
    """Blocks that a line adds to its rank's decode backlog."""
    return line.blocks or 0 if line.phase == Phase.DECODE else 0


def may_stall(line: LedgerLine) -> bool:
    """Whether this line, left unanswered, may speak against its worker."""
    return not line.pair_decode and line.blocks is not None and line.blocks >= STALL_BLOCKS_MIN


def unanswered_after(heard_at: int | None, at: int) -> int:
    """The instant after which a dispatch is unanswered and still weighs at log time `at`."""
    oldest = at - DISPATCH_AGE_US_MAX
    return oldest if heard_at is None or heard_at < oldest else heard_at


def is_stall(stalls: Sequence[tuple[int, bytes]], after: int, at: int, ended: Container[bytes] = ()) -> bool:
    """Whether one of `stalls`, in order of dispatch, is later than `after` and at least 5 s old."""
    if not stalls or at - stalls[0][0] < STALL_AGE_US:
        return False  # the usual answer
    first: tuple[int, ...] = (after + 1,)  # sorts before every entry of that instant
    for place in range(bisect_left(stalls, first), len(stalls)):
        dispatched_at, pick_id = stalls[place]
        if at - dispatched_at < STALL_AGE_US:
            return False
        if pick_id not in ended:
            return True
    return False


def is_suspicion(suspect_from: int | None, heard_at: int | None, at: int) -> bool:
    """Whether a fault at `suspect_from` still excludes its worker at log time `at`."""
    if suspect_from is None or at - suspect_from >= SUSPECT_US:
        return False
    return heard_at is None or heard_at <= suspect_from


def _lines(
    head: tuple[bytes, bytes, str], times: tuple[int, int], prefill: Chosen | None, decode: Chosen | None
) -> tuple[LedgerLine, ...]:
    """One line for each chosen rank; ended_at None."""
    lines = []
    for phase, chosen in ((Phase.PREFILL, prefill), (Phase.DECODE, decode)):
        if chosen is not None:
            pair_decode = phase is Phase.DECODE and prefill is not None
            place = (chosen.instance_id, chosen.dp_rank, int(phase), max(0, chosen.tokens))
            lines.append(LedgerLine(*head, *place, chosen.blocks, *times, pair_decode, None))
    return tuple(lines)
