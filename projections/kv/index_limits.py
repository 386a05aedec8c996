"""How much the index may hold (KVX-12)."""

from __future__ import annotations

from typing import NamedTuple

from projections.bounds import (
    KV_BLOCKS_PER_RANK_MAX,
    KV_NODES_MAX,
    KV_OWNERS_PER_NODE_MAX,
    KV_OWNERSHIPS_MAX,
    KV_RUN_BLOCKS_MAX,
)


class IndexLimits(NamedTuple):
    """Ceilings of one index, each at least 1.

    nodes: held blocks and the blocks they hang from, of all slots together. blocks: of one slot.
    ownerships: (slot, block) pairs. owners: slots that hold one node. A second name of a held block
    counts as a block and as an ownership too, or names would have no ceiling.
    run_blocks: the longest run; it changes no answer, only speed and memory.
    """

    nodes: int = KV_NODES_MAX
    blocks: int = KV_BLOCKS_PER_RANK_MAX
    ownerships: int = KV_OWNERSHIPS_MAX
    owners: int = KV_OWNERS_PER_NODE_MAX
    run_blocks: int = KV_RUN_BLOCKS_MAX


INDEX_LIMITS = IndexLimits()
