"""A chat of several turns, each of which repeats all before it, and where its turns went.

Every turn sends the system prompt and all earlier turns again, so a worker that served the turn before holds
nearly all of the prompt. Prefix-aware picks send it back there; picks by load do not know. What was really
found cached is what the worker says in `usage.prompt_tokens_details.cached_tokens`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.demo import chats
from deploy.demo.chats import Answer, Chat, Pin, Verdict
from deploy.demo.fleet_plan import PAIRED_MODEL

SYSTEM_PROMPT = (
    "You are the {trade} of a small town by the sea. You have read every letter that arrived in the last "
    "forty years, and you answer each question in one short sentence. You never guess. When you do not know, "
    "you say who might. You call people by their first names, you do not talk about money, and you tell "
    "nobody what you heard of others. The harbour opens at six, the market on Tuesdays and Saturdays, the "
    "library whenever Ada is there. The ferry goes to the island at nine and comes back at five; it does not "
    "go when the flag on the mole is red. The road over the hill is closed from the first snow. The doctor "
    "comes on Mondays, the school has three teachers, and the bakery has no bread left after ten. There are "
    "two inns: one looks at the sea, the other one has the better kitchen. Strangers ask for the lighthouse, "
    "which cannot be visited, and for the old mill, which can, if somebody asks Jon for the key. Be kind to "
    "everybody, also to those who ask twice."
)
TURNS = (
    "When does the ferry go, and how do I know in the morning whether it will go at all?",
    "I would like to see the old mill before that. Whom do I ask, and where do I find him?",
    "Good. Which of the two inns would you choose for an evening in November, and why that one?",
    "One more: my son wants to climb the lighthouse. What do I tell him?",
)
ACTS = (
    (
        True,
        "postmaster",
        "four turns with prefix-aware picks: each goes where its beginning is held (figures in blocks of 16)",
    ),
    (False, "watchmaker", "the same without them: workers take turns, and compute again what another holds"),
    (True, "pilot", "and with them again"),
)
"""Whether prefix-aware picks are on, the trade that makes the prompt a new one, and what is said first."""
READING_S = 0.2  # a person reads the answer; the worker's events arrive


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn that was sent. explained: the pick's document; empty where none came."""

    chat: Chat
    answer: Answer
    verdict: Verdict
    explained: Mapping[str, Any]

    @property
    def prefiller(self) -> Pin | None:
        """Who computed the prompt: the prefill worker of a pair, else the only one."""
        return self.verdict.prefill or self.verdict.decode


def talk(
    router: str, name: str, model: str, trade: str, explain: Callable[[str], Mapping[str, Any]]
) -> list[Turn]:
    """Send the turns one after another, `name-1` and so on being their request ids. Stops at a complaint.

    trade: makes the system prompt one that no other conversation shares.
    """
    before: list[Mapping[str, str]] = [{"role": "system", "content": SYSTEM_PROMPT.format(trade=trade)}]
    turns: list[Turn] = []
    for number, text in enumerate(TURNS, 1):
        chat = Chat(f"{name}-{number}", model, text, streamed=number % 2 == 0, before=tuple(before))
        answer = chats.send(router, chat)
        verdict = chats.judge(answer, is_paired=model == PAIRED_MODEL)
        turns.append(Turn(chat, answer, verdict, {} if verdict.complaint else explain(chat.identifier)))
        if verdict.complaint:
            break
        before += [{"role": "user", "content": text}, {"role": "assistant", "content": answer.text}]
        time.sleep(READING_S)
    return turns


def is_stuck(turns: Sequence[Turn]) -> bool:
    """Whether all turns were computed by one worker."""
    return len({turn.prefiller for turn in turns}) == 1


def cached_share(turns: Sequence[Turn]) -> float | None:
    """Share of the prompt tokens after the first turn that workers found cached.

    None where answers do not tell (1.4.2), or tell of the decode worker of a pair, which computes nothing.
    """
    later = turns[1:]
    wanted = found = 0
    for turn in later:
        if turn.answer.cached_tokens is None or turn.verdict.prefill is not None:
            return None
        wanted += turn.answer.prompt_tokens or 0
        found += turn.answer.cached_tokens
    return found / wanted if wanted else None
