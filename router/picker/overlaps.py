"""What ranks hold of a prompt, as columns of their table.

Where blocks on the device alone count, an index tells it by groups of slots that hold the same,
so no rank is looked up by its name, and a group that is most of the table (all that hold a
system prompt, or nothing) is written at once. Anything else comes rank by rank.

Source: KVP-01, KVP-08, KVX-09, DYN-04.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from projections.kv.columns import members
from projections.registry.fleet import Fleet
from projections.view import DeviceDepths, InFlight, RankPrefix
from router.picker.rank_table import RankTable, SlotPlaces, slot_places

MANY = 32  # slots of a group from which on they are told all at once
OTHERS_SHARE = 4  # a crowd leaves at most one in so many ranks outside


class Crowd(NamedTuple):
    """Most ranks of a table hold the same. depth: blocks that they hold.

    others: places outside. mask: slots outside.
    """

    depth: int
    others: list[int]
    mask: int


def fill_device(fleet: Fleet, depths: DeviceDepths, table: RankTable) -> Crowd | None:
    """Overlaps where only blocks on the device count. Returns the crowd, if there is one."""
    slots = slot_places(fleet, table.roster, depths)
    count = len(table.overlaps)
    crowd = _crowd(depths, slots, count)
    within = slots.mask
    if crowd is not None:
        within = crowd.mask
        table.overlaps = [crowd.depth] * count
        for place in crowd.others:
            table.overlaps[place] = 0
    of_slot, overlaps = slots.of_slot, table.overlaps
    for depth, mask in depths.groups:
        mask &= within
        if not mask & mask - 1:
            if mask:
                overlaps[of_slot[mask.bit_length() - 1]] = depth
        elif mask.bit_count() > MANY:
            for slot in members(mask):
                overlaps[of_slot[slot]] = depth
        else:
            while mask:
                lowest = mask & -mask
                mask ^= lowest
                overlaps[of_slot[lowest.bit_length() - 1]] = depth
    return crowd


def fill(prefixes: Mapping[tuple[str, int, int], RankPrefix], table: RankTable) -> None:
    """Overlaps, and the blocks of lower tiers that go on behind them."""
    place_of = table.roster.place_of.get
    for key, (device, host, disk, expected) in prefixes.items():
        place = place_of(key)
        if place is None:
            continue
        overlap = device if device >= expected else expected
        table.overlaps[place], table.predicted[place] = overlap, overlap - device
        if host or disk:
            host_end = device + host
            table.host[place] = max(0, host_end - overlap)
            table.disk[place] = max(0, host_end + disk - max(host_end, overlap))


def leave_out(in_flight: Mapping[tuple[str, int, int], InFlight], table: RankTable) -> None:
    """What is under way to a rank weighs only by what it does not share with the prompt."""
    tokens, blocks, sizes = table.unanswered_tokens, table.unanswered_blocks, table.roster.usable_sizes
    for key, (computing, shared) in in_flight.items():
        place = table.roster.place_of.get(key)
        if place is not None:
            tokens[place] = max(0, tokens[place] - computing * sizes[place])
            blocks[place] = max(0, blocks[place] - shared)


def _crowd(depths: DeviceDepths, slots: SlotPlaces, count: int) -> Crowd | None:
    """The group that is most of the table; those that hold nothing are one, too."""
    most_others = count // OTHERS_SHARE
    if len(depths.groups) > most_others:
        return None
    empty = slots.mask
    for depth, mask in depths.groups:
        mask &= slots.mask
        empty ^= mask
        if count - mask.bit_count() <= most_others:
            others = slots.mask ^ mask
            return Crowd(depth, [*_places(others, slots.of_slot), *slots.unslotted], others)
    others = slots.mask ^ empty
    return Crowd(0, _places(others, slots.of_slot), others) if others.bit_count() <= most_others else None


def _places(mask: int, of_slot: list[int]) -> list[int]:
    """Places of few slots."""
    found = []
    while mask:
        lowest = mask & -mask
        mask ^= lowest
        found.append(of_slot[lowest.bit_length() - 1])
    return found
