"""Do workers report the blocks that were predicted for their prompts? One ratio a model.

Rendering drifts: a frontend of another release, a template that reads the date, a rewrite on
the way. Then predicted hashes match nothing, and a term made of them is noise. So after a
request was served, the prompt's complete blocks are looked for among those that the rank
which prefilled it holds by then: held / predicted over the newest checks is the match ratio.

Below the configured ratio a model's prompts are told MISMATCHED, which every pick records, and
picks go by load. Checks go on meanwhile, so a mended fleet comes back by itself. Blocks that
were evicted before the check count against the ratio too, which is why it is a share and not a
switch. What no rank could confirm, since its cache is older than what is known of it, is no
check: see `rank_news`.

What is learned here is no projection: it enters a pick through its question alone.

Sources: issue "KV awareness", prompt to blocks; field report B-065.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

CHECKS_KEPT: Final = 64  # newest checks that the ratio is made of
CHECKS_MIN: Final = 8  # fewer say nothing
MODELS_MAX: Final = 256  # least recently checked out


class MatchState(NamedTuple):
    """What is known of one model. ratio: None before CHECKS_MIN checks."""

    model: str
    checks: int
    predicted: int
    held: int
    ratio: float | None
    is_trusted: bool


class _Checks:
    __slots__ = ("held", "newest", "predicted")

    def __init__(self) -> None:
        self.newest: deque[tuple[int, int]] = deque()
        self.predicted = 0
        self.held = 0


class SelfCheck:
    """Match ratios of models. ratio_min: 0..1; 0 trusts every model."""

    def __init__(self, ratio_min: float) -> None:
        self.ratio_min = ratio_min
        self._models: OrderedDict[str, _Checks] = OrderedDict()

    def note(self, model: str, predicted: int, held: int) -> None:
        """One check: of `predicted` >= 1 blocks of a prompt the rank held the first `held`."""
        checks = self._models.get(model)
        if checks is None:
            checks = self._models[model] = _Checks()
            if len(self._models) > MODELS_MAX:
                self._models.popitem(last=False)
        self._models.move_to_end(model)
        checks.newest.append((predicted, held))
        checks.predicted += predicted
        checks.held += held
        if len(checks.newest) > CHECKS_KEPT:
            oldest = checks.newest.popleft()
            checks.predicted -= oldest[0]
            checks.held -= oldest[1]

    def is_trusted(self, model: str) -> bool:
        """Whether predicted blocks of the model may weigh."""
        ratio = self.ratio(model)
        return ratio is None or ratio >= self.ratio_min

    def ratio(self, model: str) -> float | None:
        """Held share of predicted blocks, None while too few checks were made."""
        checks = self._models.get(model)
        if checks is None or len(checks.newest) < CHECKS_MIN:
            return None
        return checks.held / checks.predicted

    def forget(self, model: str) -> None:
        """The model's files changed: what was learned is of others."""
        self._models.pop(model, None)

    def states(self) -> list[MatchState]:
        """All models that were checked, by name."""
        return [
            MatchState(
                model,
                len(checks.newest),
                checks.predicted,
                checks.held,
                self.ratio(model),
                self.is_trusted(model),
            )
            for model, checks in sorted(self._models.items())
        ]
