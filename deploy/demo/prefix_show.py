"""The same conversation with prefix-aware picks, without, and with them again, under one running router.

What is switched is `dynamo.kv.enabled` in the configuration file; the router takes it up through its log,
without a restart, so a replay of the log repeats each pick under the settings of its moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from deploy.demo import conversation
from deploy.demo.addresses import get_json
from deploy.demo.fleet_plan import AGGREGATED_MODEL, PAIRED_MODEL
from deploy.demo.narration import talk_words, turn_words

RELOAD_S_MAX = 30.0
EXPLAIN_S_MAX = 5.0
POLL_S = 0.1


class NotTakenUp(RuntimeError):
    """The router does not do what its configuration says; says what."""


class PrefixShow:
    """names: instance id -> the worker's name. turn_kv: writes the configuration, on or off."""

    def __init__(
        self,
        router: str,
        names: Mapping[str, str],
        turn_kv: Callable[[bool], None],
        say: Callable[[str], None],
    ) -> None:
        self._router = router
        self._names = names
        self._turn_kv = turn_kv
        self._say = say

    def run(self) -> int:
        """All acts of all models; returns how many turns failed, or strayed though picks knew prefixes.

        Raises NotTakenUp.
        """
        failed, is_first = 0, True
        for is_on, trade, heading in conversation.ACTS:
            self._say("")
            if not is_first:
                self._turn_kv(is_on)
            is_first = False
            self._until(partial(self._is_taken_up, is_on), f"dynamo.kv.enabled: {str(is_on).lower()}")
            self._say(heading)
            for model in (AGGREGATED_MODEL, PAIRED_MODEL):
                failed += self._talk(model, trade, is_on)
        return failed

    def _talk(self, model: str, trade: str, is_on: bool) -> int:
        turns = conversation.talk(self._router, f"{trade}-{model}", model, trade, self._explained)
        for turn in turns:
            complaint = turn.verdict.complaint
            self._say(f"  FAILED  {complaint}" if complaint else f"  {turn_words(turn, self._names)}")
        self._say(f"  {model}: {talk_words(turns)}")
        return sum(bool(turn.verdict.complaint) for turn in turns) + (
            is_on and not conversation.is_stuck(turns)
        )

    def _explained(self, identifier: str) -> Mapping[str, Any]:
        """The pick's document from the running router; empty where it has none."""
        try:
            return get_json(f"{self._router}/admin/picks/{identifier}", EXPLAIN_S_MAX)
        except (OSError, ValueError):
            return {}

    def _is_taken_up(self, is_on: bool) -> bool:
        """Whether the settings in force say so, and block events of workers are heard or no longer heard."""
        try:
            enabled = get_json(f"{self._router}/admin/config")["dynamo"]["kv"]["enabled"]
            rows = get_json(f"{self._router}/admin/dynamo/workers")["subscriptions"]
            states = [row["state"] for row in rows if row["family"] == "kv-events"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return bool(enabled) == is_on and set(states) == ({"connected"} if is_on else set())

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + RELOAD_S_MAX
        while not holds():
            if time.monotonic() > deadline:
                raise NotTakenUp(f"after {RELOAD_S_MAX:.0f} s the router has not taken up {what}")
            time.sleep(POLL_S)
