"""The rule that takes turns, whatever the load: a second picker, to compare the first with.

Candidates, pairing, suspicion and the rows are those of every rule; no cost decides, so all
candidates that are not left out take their turn in canonical order. Samples are read into
the rows all the same, so that a table shows what the rule did not look at.

Source: requirement row DYN-16.
"""

from __future__ import annotations

from projections.events.control import PickSettings
from projections.events.picks import Question
from projections.view import View
from router.picker import load_based
from router.picker.decision import Decision


def decide(view: View, question: Question, settings: PickSettings, flags: tuple[int, ...]) -> Decision:
    """Take turns among decode candidates, then among prefill candidates of the winner's namespace."""
    return load_based.decide(view, question, settings, flags, compare=False)
