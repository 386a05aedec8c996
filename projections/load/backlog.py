"""A rank's sample and its age, read as a verdict and a backlog, for each phase apart.

Publishers speak on change and are silent while nothing changes, so the age of a sample
means little without what it said:

    fresh    young enough; its value is the backlog, or the phase has none where it is nil
    quiet    never sampled, or the old sample said 0: the backlog is 0
    silent   the old sample said more, or nothing of this phase: the backlog is not known

A nil field is neither zero nor backlog. Stalls and suspicion are facts about a worker, not
about a sample; whoever competes ranks adds them.

Source: specification, "Staleness and the best-effort contract"; STORE-03, STORE-04, PICK-04, PICK-07.
"""

from __future__ import annotations

from projections.events.picks import Phase, Verdict
from projections.load.store import HeldSample


def phase_value(sample: HeldSample, phase: Phase) -> int | None:
    """What a sample says of a phase: prompt tokens waiting, or blocks in use; None where nil.

    Without active_decode_blocks, kv_used_blocks stands in (PICK-04).
    """
    if phase is Phase.PREFILL:
        return sample.active_prefill_tokens
    blocks = sample.active_decode_blocks
    return sample.kv_used_blocks if blocks is None else blocks


def read_backlog(
    sample: HeldSample | None, phase: Phase, at: int, staleness_us_max: int
) -> tuple[Verdict, int | None]:
    """(FRESH, QUIET or SILENT, backlog) at log time `at`; backlog None where it is not known.

    A sample of exactly staleness_us_max is still fresh.
    """
    if sample is None:
        return Verdict.QUIET, 0
    value = phase_value(sample, phase)
    if at - sample.received_at <= staleness_us_max:
        return Verdict.FRESH, value
    if value == 0:
        return Verdict.QUIET, 0
    return Verdict.SILENT, None
