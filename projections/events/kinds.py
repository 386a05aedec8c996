"""The kind table: what may stand in the log, under which number, written by whom.

Kinds and schemas are numbers and are never reused. Appending a field with a default is
free; anything else is schema + 1, one upcaster and one golden record.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from projections.events import control, discovery, held, picks, signals

SCHEMA = 1  # of every record written by this release


class Kind(IntEnum):
    """Record kinds. 1-9 discovery, 10-19 signals, 20-29 picks, 30-49 control, 50-79 held.

    From 80 on: what came later, whatever it is about. `ReplicaStarted.kinds` tells in one number
    what a release reads, so a new kind takes the next number beyond all others.
    """

    PASS_BEGAN = 1
    KEY_PUT = 2
    KEY_DELETED = 3
    PASS_SETTLED = 4
    PASS_ENDED = 5
    KEYS_DROPPED = 6
    SAMPLE_RECEIVED = 10
    KV_BATCH_RECEIVED = 11
    FRAME_REFUSED = 12
    SUBSCRIPTION_CHANGED = 13
    SUBSCRIPTION_CONTINUED = 14
    PICK_MADE = 20
    DISPATCH_ENDED = 21
    PICKS_LOST = 22
    LANE_OPENED = 30
    CLOCK_TICKED = 31
    WRITER_CONTINUED = 32
    REPLICA_STARTED = 33
    REPLICA_GONE = 34
    PINGED = 35
    FOLD_MODE_ADOPTED = 36
    CONFIG_PROPOSED = 37
    CONFIG_ADOPTED = 38
    CHECKPOINT_DUE = 39
    RECORD_CONDEMNED = 40
    CHECKPOINT_OPENED = 50
    CHECKPOINT_CLOSED = 51
    KEY_HELD = 52
    PASS_HELD = 53
    WORKER_HELD = 54
    FLEET_HELD = 55
    SAMPLE_HELD = 56
    PUBLISHER_HELD = 57
    LEDGER_LINE = 58
    WRITER_SEEN = 59
    SETTINGS_HELD = 60
    REPLICA_HELD = 61
    OWNER_HELD = 62
    RUN_HELD = 63
    KV_RANK_HELD = 64
    KV_PUBLISHER_HELD = 65
    KV_TIER_HELD = 66
    PREDICTION_HELD = 67
    PICKS_DISTRUSTED = 80


class Speaker(IntEnum):
    """Who may write a kind."""

    OWNER = 1  # the pair (writer, epoch); dropped from anybody else
    ANYBODY = 2  # replicas and the owner's process alike, with epoch 0
    CHECKPOINT = 3  # inside checkpoint segments only
    CLAIMANT = 4  # LaneOpened: judged by the fold


class KindRow(NamedTuple):
    """One row of the table."""

    fact: type
    speaker: Speaker


FACT_KINDS: dict[int, KindRow] = {
    Kind.PASS_BEGAN: KindRow(discovery.PassBegan, Speaker.OWNER),
    Kind.KEY_PUT: KindRow(discovery.KeyPut, Speaker.OWNER),
    Kind.KEY_DELETED: KindRow(discovery.KeyDeleted, Speaker.OWNER),
    Kind.PASS_SETTLED: KindRow(discovery.PassSettled, Speaker.OWNER),
    Kind.PASS_ENDED: KindRow(discovery.PassEnded, Speaker.OWNER),
    Kind.KEYS_DROPPED: KindRow(discovery.KeysDropped, Speaker.OWNER),
    Kind.SAMPLE_RECEIVED: KindRow(signals.SampleReceived, Speaker.OWNER),
    Kind.KV_BATCH_RECEIVED: KindRow(signals.KvBatchReceived, Speaker.OWNER),
    Kind.FRAME_REFUSED: KindRow(signals.FrameRefused, Speaker.OWNER),
    Kind.SUBSCRIPTION_CHANGED: KindRow(signals.SubscriptionChanged, Speaker.OWNER),
    Kind.SUBSCRIPTION_CONTINUED: KindRow(signals.SubscriptionContinued, Speaker.OWNER),
    Kind.PICK_MADE: KindRow(picks.PickMade, Speaker.ANYBODY),
    Kind.DISPATCH_ENDED: KindRow(picks.DispatchEnded, Speaker.ANYBODY),
    Kind.PICKS_LOST: KindRow(picks.PicksLost, Speaker.ANYBODY),
    Kind.LANE_OPENED: KindRow(control.LaneOpened, Speaker.CLAIMANT),
    Kind.CLOCK_TICKED: KindRow(control.ClockTicked, Speaker.OWNER),
    Kind.WRITER_CONTINUED: KindRow(control.WriterContinued, Speaker.ANYBODY),
    Kind.REPLICA_STARTED: KindRow(control.ReplicaStarted, Speaker.ANYBODY),
    Kind.REPLICA_GONE: KindRow(control.ReplicaGone, Speaker.OWNER),
    Kind.PINGED: KindRow(control.Pinged, Speaker.ANYBODY),
    Kind.FOLD_MODE_ADOPTED: KindRow(control.FoldModeAdopted, Speaker.OWNER),
    Kind.CONFIG_PROPOSED: KindRow(control.ConfigProposed, Speaker.ANYBODY),
    Kind.CONFIG_ADOPTED: KindRow(control.ConfigAdopted, Speaker.OWNER),
    Kind.CHECKPOINT_DUE: KindRow(control.CheckpointDue, Speaker.OWNER),
    Kind.RECORD_CONDEMNED: KindRow(control.RecordCondemned, Speaker.OWNER),
    Kind.CHECKPOINT_OPENED: KindRow(held.CheckpointOpened, Speaker.CHECKPOINT),
    Kind.CHECKPOINT_CLOSED: KindRow(held.CheckpointClosed, Speaker.CHECKPOINT),
    Kind.KEY_HELD: KindRow(held.KeyHeld, Speaker.CHECKPOINT),
    Kind.PASS_HELD: KindRow(held.PassHeld, Speaker.CHECKPOINT),
    Kind.WORKER_HELD: KindRow(held.WorkerHeld, Speaker.CHECKPOINT),
    Kind.FLEET_HELD: KindRow(held.FleetHeld, Speaker.CHECKPOINT),
    Kind.SAMPLE_HELD: KindRow(held.SampleHeld, Speaker.CHECKPOINT),
    Kind.PUBLISHER_HELD: KindRow(held.PublisherHeld, Speaker.CHECKPOINT),
    Kind.LEDGER_LINE: KindRow(held.LedgerLine, Speaker.CHECKPOINT),
    Kind.WRITER_SEEN: KindRow(held.WriterSeen, Speaker.CHECKPOINT),
    Kind.SETTINGS_HELD: KindRow(held.SettingsHeld, Speaker.CHECKPOINT),
    Kind.REPLICA_HELD: KindRow(held.ReplicaHeld, Speaker.CHECKPOINT),
    Kind.OWNER_HELD: KindRow(held.OwnerHeld, Speaker.CHECKPOINT),
    Kind.RUN_HELD: KindRow(held.RunHeld, Speaker.CHECKPOINT),
    Kind.KV_RANK_HELD: KindRow(held.KvRankHeld, Speaker.CHECKPOINT),
    Kind.KV_PUBLISHER_HELD: KindRow(held.KvPublisherHeld, Speaker.CHECKPOINT),
    Kind.KV_TIER_HELD: KindRow(held.KvTierHeld, Speaker.CHECKPOINT),
    Kind.PREDICTION_HELD: KindRow(held.PredictionHeld, Speaker.CHECKPOINT),
    Kind.PICKS_DISTRUSTED: KindRow(picks.PicksDistrusted, Speaker.ANYBODY),
}

# Tuples inside facts: type -> (field index, type of the inner tuple, whether the field
# holds many of them). Decoding rebuilds them, so that facts read by name at every depth.
INNER: dict[type, tuple[tuple[int, type, bool], ...]] = {
    picks.PickMade: ((5, picks.Question, False), (6, picks.Outcome, False)),
    picks.Question: ((15, picks.BlockHashes, True),),
    picks.Outcome: ((1, picks.PhaseOutcome, False), (2, picks.PhaseOutcome, False)),
    picks.PhaseOutcome: ((1, picks.Chosen, False),),
    picks.PicksLost: ((1, picks.LostPick, True),),
    picks.LostPick: ((5, picks.Chosen, False), (6, picks.Chosen, False)),
    control.PickSettings: ((6, control.KvPickSettings, False),),
    control.KvPickSettings: ((8, control.ConditionalSettings, False),),
    control.ConfigProposed: ((3, control.PickSettings, False),),
    control.ConfigAdopted: ((4, control.PickSettings, False),),
    held.SettingsHeld: ((4, control.PickSettings, False),),
}

KIND_OF_FACT: dict[type, int] = {row.fact: int(kind) for kind, row in FACT_KINDS.items()}
KIND_NEWEST = max(FACT_KINDS)

# Facts that got fields after the first release -> how many fields it had. Later ones are left out at the
# end while they hold their defaults: what says nothing new keeps its bytes, so digests in the ticks of
# old logs still agree, and older releases read it.
FIRST_FIELDS: dict[type, int] = {
    picks.Question: 13,
    picks.Outcome: 6,
    control.PickSettings: 6,
}
