"""The picking process of a made world, and those who ask it: conversations that come in bursts.

Each turn of a conversation repeats all that was said before; several begin alike. A burst asks
within milliseconds, while the fold that it asks is some records late, so that own picks which
the fold does not hold yet stand for blocks. Questions are frozen as `router.service` freezes them.
"""

from __future__ import annotations

from array import array
from functools import partial
from typing import TYPE_CHECKING

from ingest.log.segment_log import SegmentLog
from projections.events.picks import DispatchEnded, EndStatus, Fault, KvResult, PickMade
from projections.fold import Fold
from projections.fold_modes import SIDE_INDEX, wanted_modes
from projections.kv.block_hash import SEED, block_hashes
from projections.view import Overlay
from router.picker.pick import pick
from router.picker.pick_flags import PICK_FLAGS
from router.question import PromptFacts, cut_hashes, freeze_question
from router.rotations import Rotations
from tests.golden.engines import BLOCK, WORD
from tests.projections.fleet_script import NS

if TYPE_CHECKING:
    from tests.golden.world_recorder import World

REPLICA = bytes([2]) * 16
ALONE, PAIRED = "tiny-alone", "tiny-paired"
BEGINNINGS = (2, 6, 10, 14)  # blocks
CONVERSATIONS = 9  # of each model at a time
PROMPT_TOKENS_MAX = 400
LATE_RECORDS = 12
PHASES = 2


class Replica:
    """One picking process, and those who ask it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance
        self._fold = Fold()
        self._overlay = Overlay()
        self._rotations = Rotations()
        self._own_seq = self._picks = 0
        # beginnings that conversations of a model share, and conversations that go on
        self._beginnings = {
            model: [self._words(blocks) for blocks in BEGINNINGS] for model in (ALONE, PAIRED)
        }
        self._conversations: dict[str, list[list[int]]] = {ALONE: [], PAIRED: []}

    def plan(self, seconds: int) -> None:
        """Bursts over the whole time."""
        second = 1.5
        while second < seconds - 1:
            self._world.at(second, self._burst)
            second += self._chance.choice((0.15, 0.4, 0.9))

    def _words(self, blocks: int) -> list[int]:
        return [
            self._chance.randrange(1_000, 90_000)
            for _ in range(blocks * BLOCK + self._chance.randrange(BLOCK))
        ]

    def _burst(self) -> None:
        """Some conversations go on, or begin in the same way, within milliseconds."""
        model = self._chance.choice((ALONE, ALONE, PAIRED))
        going_on = self._conversations[model]
        is_new = len(going_on) < CONVERSATIONS or self._chance.random() < 0.3
        beginning = self._chance.choice(self._beginnings[model])
        if self._chance.random() < 0.8:
            self._read(self._chance.randrange(LATE_RECORDS))
        for place in range(self._chance.choice((1, 1, 2, 4))):
            if is_new:
                going_on.append([*beginning])
                del going_on[:-CONVERSATIONS]
            conversation = going_on[-1] if is_new else self._chance.choice(going_on)
            conversation += self._words(self._chance.choice((0, 1, 3)))
            if len(conversation) > PROMPT_TOKENS_MAX:
                going_on.remove(conversation)
            self._world.later(place * 2_000, self._ask, model, [*conversation])

    def _read(self, late_records: int) -> None:
        fold_until(self._world.log, self._fold, self._world.log.end_offset() - late_records)
        held = self._fold.state.status.replica(REPLICA)
        if held is not None:
            self._overlay.folded(held.own_seq)

    def _ask(self, model: str, tokens: list[int]) -> None:
        """Freeze, pick and write, as `router.service` does in one step."""
        settings = self._fold.settings_now
        if settings is None or settings.pick.kv is None:
            return
        packed = block_hashes(array("I", tokens).tobytes(), BLOCK, SEED)
        has_draws = settings.pick.kv.temperature > 0
        view = self._fold.view(self._overlay)
        self._picks += 1
        question = freeze_question(
            request_id=f"request-{self._picks}",
            send=0,
            model=self._chance.choice(("alias", ALONE)) if model == ALONE else model,
            settings=settings.pick,
            asked_at=self._world.time,
            lag_us=self._chance.randrange(5_000),
            eligible=(NS,),
            absent=(),
            estimated_tokens=len(tokens),
            rotations=self._rotations,
            prompt=PromptFacts(KvResult.READY, len(tokens), ((BLOCK, packed),)),
            draws=tuple(self._chance.getrandbits(53) for _ in range(PHASES if has_draws else 0)),
        )
        if wanted_modes(settings.pick)[-1] != SIDE_INDEX:
            question = cut_hashes(question, view.deepest(question, settings.pick.kv))
        outcome = pick(view, question, settings.pick, PICK_FLAGS)
        self._rotations.advance(question.served_model, outcome, by_prefix=True)
        pick_id = self._picks.to_bytes(16, "big")
        fact = PickMade(pick_id, REPLICA, self._own_seq, view.as_of, settings.version, question, outcome)
        self._own_seq += 1
        self._overlay.add_pick(fact)
        self._world.say(fact, REPLICA)
        if outcome.decode.chosen is not None:
            path = tuple(packed[at : at + WORD] for at in range(0, len(packed), WORD))
            self._world.serve(fact, path, partial(self._end, fact))

    def _end(self, fact: PickMade) -> None:
        self._own_seq += 1
        failed = self._chance.random() < 0.05
        status = EndStatus.FAILED if failed else self._chance.choice((EndStatus.OK, EndStatus.CANCELLED))
        what = (status, Fault.FAULT, 503) if failed else (status, Fault.NONE, 200)
        end = DispatchEnded(fact.pick_id, REPLICA, self._own_seq, self._world.time, *what, "shim", 9, 99)
        self._overlay.add_end(end)
        self._world.say(end, REPLICA)


def fold_until(log: SegmentLog, fold: Fold, stop: int) -> None:
    """Fold what the fold does not hold yet of the records below offset `stop`."""
    for batch in log.read(fold.mark.offset + 1, 1 << 30):
        for index, data in enumerate(batch.records):
            if fold.mark.offset < batch.first_offset + index < stop:
                fold.apply(batch.first_offset + index, data, [])
