"""Could a rank have confirmed a prediction at all? What was told of its blocks since the pick.

An index starts empty while caches are warm: when prefix-aware picks are switched on, at a start
without a checkpoint, behind a gap or a new publisher. What a worker cached before is not stored
anew, so blocks under it come with a parent that nobody has heard of, orphans, and no block of
such a prompt is ever held. That says nothing of how prompts are rendered, and neither does a
prompt that the worker had in whole, of which nothing comes. Where prompts are rendered otherwise
their blocks are stored from the root, or under one that is known, so they leave no orphans.

Two offsets are kept for it: of the newest orphan of a rank, and of the newest news of a
publisher. Both come from notices of the fold; in doubt, as where prompts of both kinds are
served at one time, nothing is concluded. A publisher of several ranks has one offset for all.

Sources: requirement row KVX-10; issue "KV awareness", prompt to blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, TypeVar

from projections.bounds import KV_PUBLISHERS_MAX, KV_RANKS_MAX
from projections.notices import BlocksOrphaned, KvEventResult, KvNotice, Notice

Key = TypeVar("Key")
_NEVER: Final = -1


class RankNews:
    """Offsets of the newest KV_RANKS_MAX orphans and KV_PUBLISHERS_MAX publishers, the oldest out."""

    def __init__(self) -> None:
        self._orphans: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self._told: OrderedDict[tuple[str, int], int] = OrderedDict()

    def noticed(self, notices: Iterable[Notice], as_of: int) -> None:
        """A slice of the fold told these; it ends at offset `as_of`."""
        for notice in notices:
            if isinstance(notice, KvNotice):
                if notice.result is KvEventResult.APPLIED:
                    key = notice.namespace, notice.publisher_id
                    _note(self._told, key, as_of, KV_PUBLISHERS_MAX)
            elif isinstance(notice, BlocksOrphaned):
                _note(self._orphans, notice, as_of, KV_RANKS_MAX)

    def could_confirm(self, rank: tuple[str, int, int], publisher_id: int, since: int) -> bool:
        """Whether blocks of the rank came after offset `since`, and none of them was an orphan.

        publisher_id: who tells of the blocks on the rank's device.
        """
        if self._orphans.get(rank, _NEVER) > since:
            return False
        return self._told.get((rank[0], publisher_id), _NEVER) > since


def _note(offsets: OrderedDict[Key, int], key: Key, as_of: int, most: int) -> None:
    offsets[key] = as_of
    offsets.move_to_end(key)
    if len(offsets) > most:
        offsets.popitem(last=False)
