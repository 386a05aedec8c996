"""The kind table: numbers and fields are the log's format, so they are pinned here."""

from __future__ import annotations

import typing

import pytest

from projections.events.codec import decode_record, encode_record
from projections.events.kinds import FACT_KINDS, INNER, KIND_NEWEST, KIND_OF_FACT, SCHEMA, Kind, Speaker

# kind, fact and the fields it had when its number was given. A field is only ever appended.
PINNED: tuple[tuple[int, str, str], ...] = (
    (1, "PassBegan", "source namespaces pass_number reason"),
    (2, "KeyPut", "keyspace namespace key revision value value_bytes value_digest refusal"),
    (3, "KeyDeleted", "keyspace namespace key revision"),
    (4, "PassSettled", "source namespaces pass_number keys digest revision unwatched"),
    (5, "PassEnded", "source namespaces pass_number reason"),
    (6, "KeysDropped", "namespaces reason"),
    (
        10,
        "SampleReceived",
        "namespace publisher_id connection covers_from sequence worker_id dp_rank active_decode_blocks "
        "active_prefill_tokens kv_used_blocks published_at_ms raw_digest",
    ),
    (12, "FrameRefused", "family namespace publisher_id connection result frames"),
    (
        13,
        "SubscriptionChanged",
        "family namespace publisher_id component state connection transport reason",
    ),
    (14, "SubscriptionContinued", "family namespace publisher_id component connection transport"),
    (20, "PickMade", "pick_id replica own_seq as_of config_version question outcome suspect"),
    (
        21,
        "DispatchEnded",
        "pick_id replica own_seq ended_at status fault http_status backend first_byte_us duration_us "
        "prompt_tokens completion_tokens cached_tokens",
    ),
    (22, "PicksLost", "replica lines"),
    (30, "LaneOpened", "epoch wall_us previous_writer cause"),
    (31, "ClockTicked", "wall_us noted_offset digests records check_sum"),
    (32, "WriterContinued", "previous_writer last_sequence"),
    (33, "ReplicaStarted", "replica label role version python flags kinds fold_modes"),
    (34, "ReplicaGone", "replica last_seen"),
    (35, "Pinged", "replica number as_of"),
    (36, "FoldModeAdopted", "flags"),
    (37, "ConfigProposed", "replica digest settings pick"),
    (38, "ConfigAdopted", "version proposed_by digest settings pick enabled"),
    (39, "CheckpointDue", "cause"),
    (40, "RecordCondemned", "offset detail"),
    (50, "CheckpointOpened", "offset check time log_id"),
    (51, "CheckpointClosed", "facts digests"),
    (52, "KeyHeld", "keyspace namespace key revision value value_bytes value_digest refusal put_at"),
    (53, "PassHeld", "namespace source pass_number settled ended revision unwatched watched"),
    (
        54,
        "WorkerHeld",
        "namespace instance_id first_seen last_updated last_sample_at suspect_from",
    ),
    (55, "FleetHeld", "generation reported mixed full"),
    (
        56,
        "SampleHeld",
        "namespace instance_id dp_rank publisher_id sequence received_at active_decode_blocks "
        "active_prefill_tokens kv_used_blocks",
    ),
    (
        57,
        "PublisherHeld",
        "family namespace publisher_id component state connection transport reason last_sequence "
        "changed_at sampled_connection",
    ),
    (
        58,
        "LedgerLine",
        "pick_id replica namespace instance_id dp_rank phase tokens blocks asked_at dispatched_at "
        "pair_decode ended_at",
    ),
    (59, "WriterSeen", "writer last_sequence seen_at"),
    (60, "SettingsHeld", "version proposed_by digest settings pick enabled offset adopted_at"),
    (
        61,
        "ReplicaHeld",
        "replica label role version python flags kinds fold_modes started_at seen_at gone_at own_seq",
    ),
    (
        62,
        "OwnerHeld",
        "writer epoch stamp fold_mode condemned tick_offset tick_records tick_check_sum",
    ),
    (63, "RunHeld", "depth tokens names full parts others further"),
    (64, "KvRankHeld", "namespace instance_id dp_rank departed feeders"),
    (65, "KvPublisherHeld", "namespace publisher_id down_at bound_worker bound_rank cursors"),
    (66, "KvTierHeld", "tier"),
    (80, "PicksDistrusted", "replica after upto"),
    (67, "PredictionHeld", "namespace instance_id dp_rank asked_at number shared hashes"),
    (
        11,
        "KvBatchReceived",
        "namespace publisher_id connection covers_from sequence heads hashes published_at_ms raw_digest",
    ),
)


@pytest.mark.req("EVS-21")
def test_no_kind_is_renumbered_and_fields_are_only_appended() -> None:
    for number, name, fields in PINNED:
        fact = FACT_KINDS[number].fact
        assert fact.__name__ == name
        known = fields.split()
        assert list(fact._fields[: len(known)]) == known  # type: ignore[attr-defined]
        appended = fact._fields[len(known) :]  # type: ignore[attr-defined]
        assert set(appended) <= set(fact._field_defaults), "an appended field has a default"  # type: ignore[attr-defined]


def test_every_kind_is_pinned_and_every_fact_has_one_kind() -> None:
    assert sorted(number for number, _, _ in PINNED) == sorted(FACT_KINDS) == sorted(map(int, Kind))
    assert len(KIND_OF_FACT) == len(FACT_KINDS) and SCHEMA == 1
    assert max(FACT_KINDS) == KIND_NEWEST


def test_who_may_write_what() -> None:
    speakers = {kind: FACT_KINDS[kind].speaker for kind in FACT_KINDS}
    anybody = {kind for kind, speaker in speakers.items() if speaker is Speaker.ANYBODY}
    assert anybody == {20, 21, 22, 32, 33, 35, 37, 80}
    assert {kind for kind, speaker in speakers.items() if speaker is Speaker.CLAIMANT} == {30}
    assert {kind for kind, speaker in speakers.items() if speaker is Speaker.CHECKPOINT} == {*range(50, 68)}


def made(hint: object) -> object:
    """Some value of an annotation."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return () if Ellipsis in inner else tuple(made(one) for one in inner)
    if inner:
        return made(inner[0])
    if isinstance(hint, type) and issubclass(hint, tuple):
        hints = typing.get_type_hints(hint)
        return hint(*(made(hints[name]) for name in hint._fields))  # type: ignore[attr-defined, arg-type]
    return hint() if isinstance(hint, type) else None


@pytest.mark.parametrize("kind", sorted(FACT_KINDS))
def test_every_fact_comes_back_from_its_bytes_with_inner_facts_by_name(kind: int) -> None:
    fact = made(FACT_KINDS[kind].fact)
    assert isinstance(fact, tuple)
    back = decode_record(3, encode_record(5, b"w" * 16, 1, 1, fact))
    assert back.fact == fact and type(back.fact) is type(fact)
    for index, inner, many in INNER.get(type(fact), ()):
        assert many or back.fact[index] is None or type(back.fact[index]) is inner
