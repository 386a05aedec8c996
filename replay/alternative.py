"""The same question under other settings: what would have been picked from the state as it was.

Everything that the settings decide is decided again: the rule, how old a sample may be, which
of the offered namespaces count, the model's Dynamo name. Everything else stays as recorded:
fleet, samples, unanswered dispatches, suspicion, eligible namespaces, draws.

Rotations are what one pick hands to the next, so they are threaded anew: a replica's next
pick of a model begins where *this* alternative left it, not where the recorded one did. They
begin with the recorded value, and are set to it again wherever the recorded chain itself does
not continue (a lost pick, a new process), since nobody knows what lay between.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from projections.events.control import PickSettings
from projections.events.picks import Outcome, PickMade, Question
from replay.engine import Asked
from router.picker.pick import pick

_Rotations = tuple[int, int]
_TERM = "kv"


class Alternative(NamedTuple):
    """Settings to ask under.

    settings: None for those of each pick. replaced: fields put over them. `kv` switches the
    prefix term: None takes it away, anything else is the term where there is none. `kv.temperature`
    is a part of the term, which changes nothing where there is none. labels: (key, value) of a
    sweep as people wrote them.
    """

    name: str
    settings: PickSettings | None
    replaced: tuple[tuple[str, Any], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    def of(self, recorded: PickSettings) -> PickSettings:
        """The settings in place of the recorded ones."""
        settings = self.settings or recorded
        for field, value in sorted(self.replaced, key=_field_of):  # the term before its parts
            whole, _, part = field.partition(".")
            if whole != _TERM:
                settings = settings._replace(**{whole: value})
            elif not part:
                settings = settings._replace(kv=value and (settings.kv or value))
            elif settings.kv is not None:
                settings = settings._replace(kv=settings.kv._replace(**{part: value}))
        return settings


class Again(NamedTuple):
    """A pick asked under an alternative."""

    question: Question
    settings: PickSettings
    outcome: Outcome


class Asker:
    """Asks picks under one alternative, in the order in which they were made."""

    def __init__(self, alternative: Alternative) -> None:
        self.alternative = alternative
        self._recorded: dict[tuple[bytes, str], _Rotations] = {}
        self._ours: dict[tuple[bytes, str], _Rotations] = {}

    def ask(self, asked: Asked) -> Again:
        """What it would have been. The pick must be verifiable."""
        assert asked.view is not None and asked.settings is not None
        fact, recorded = asked.fact, asked.fact.question
        settings = self.alternative.of(asked.settings.pick)
        served = dict(settings.model_map).get(recorded.model, recorded.model)
        prefill, decode = self._begun(fact, served)
        question = recorded._replace(served_model=served, rotation_prefill=prefill, rotation_decode=decode)
        outcome = pick(asked.view, question, settings, asked.flags)
        self.pass_by(fact)
        self._ours[(fact.replica, served)] = (outcome.rotation_prefill, outcome.rotation_decode)
        return Again(question, settings, outcome)

    def pass_by(self, fact: PickMade) -> None:
        """A pick that is not asked: the recorded chain goes on over it."""
        left = (fact.outcome.rotation_prefill, fact.outcome.rotation_decode)
        self._recorded[(fact.replica, fact.question.served_model)] = left

    def _begun(self, fact: PickMade, served: str) -> _Rotations:
        question = fact.question
        begun = (question.rotation_prefill, question.rotation_decode)
        if self._recorded.get((fact.replica, question.served_model)) != begun:
            return begun
        return self._ours.get((fact.replica, served), begun)


def _field_of(replaced: tuple[str, Any]) -> str:
    return replaced[0]
