"""Every compiled-in ceiling: value, unit, reason, source.

Whatever the fleet or a client can make large is compared with one of these before
memory is taken for it; beyond it there is a typed, counted refusal. None of them is a
setting: a bound that an operator can raise by mistake is no bound. Relations between
bounds are asserted at import.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
SECOND_US: Final = 1_000_000

# Discovery records (specification, "Bounded memory"; decisions 11, 22, 25)
RECORD_VALUE_BYTES_MAX: Final = 16 * MIB  # a raw value above this is never parsed
CARD_RETAINED_BYTES_MAX: Final = 1 * MIB  # opaque card kept beside the typed fields
CARDS_INTERNED_BYTES_MAX: Final = 256 * MIB  # all kept opaque cards together
KEYS_PER_KEYSPACE_MAX: Final = 16_384  # distinct keys, each keyspace apart
KEY_BYTES_MAX: Final = 2 * KIB  # names are a few dozen bytes; etcd itself allows 1.5 MiB
NAMESPACES_MAX: Final = 16
VALUE_NESTING_MAX: Final = 64  # JSON depth; a deeper value is refused before parsing
DUPLICATE_KEYS_NAMED_MAX: Final = 4  # keys named in one duplicate notice
CONFLICTS_REPORTED_MAX: Final = 4_096  # key sets remembered as reported, oldest out
MIXED_NAMED_MAX: Final = 8  # mixed (namespace, model) pairs named in one publish
DP_SIZE_MAX: Final = 4_096  # ranks of one worker; a card that claims more is read as 1

# Load publishers (specification, "The bounded transport"; ZMTP-05; decisions 40, 62)
SUBSCRIPTIONS_MAX: Final = 1_024  # per family, in ascending publisher id
SAMPLE_PAYLOAD_BYTES_MAX: Final = 16 * KIB  # envelope payload of kv_metrics
SAMPLE_FRAME_BYTES_MAX: Final = 32 * KIB  # body frame of kv_metrics
KV_FRAME_BYTES_MAX: Final = 1 * MIB  # body frame of kv-events
KV_EVENTS_PER_FRAME_MAX: Final = 4_096  # upstream sends at most 128
KV_HASHES_PER_FRAME_MAX: Final = 131_072  # 116,508 fill a frame; upstream sends 16,384 of stores
SAMPLES_MAX: Final = 65_536  # held (worker, rank) entries

# Block events and the index of what ranks hold (KVX-03, KVX-12; decision 25)
KV_NODES_MAX: Final = 1_048_576  # blocks that are held and those they hang from
KV_BLOCKS_PER_RANK_MAX: Final = 262_144
KV_OWNERSHIPS_MAX: Final = 8_388_608  # (rank, block) pairs
KV_OWNERS_PER_NODE_MAX: Final = 4_096
KV_RUN_BLOCKS_MAX: Final = 256  # blocks that the index keeps in one piece; changes no answer
KV_PIECE_BLOCKS_MAX: Final = 1_024  # blocks of one piece in a checkpoint
KV_RANKS_MAX: Final = 16_384  # ranks of which blocks may be known, departed ones included
KV_PUBLISHERS_MAX: Final = 4_096  # with cursors; live subscriptions are a quarter
KV_CURSORS_PER_SUBSCRIPTION_MAX: Final = 4_096  # ranks that one publisher may tell of
KV_CURSORS_MAX: Final = 65_536  # of all publishers
KV_STALE_US: Final = 60 * SECOND_US  # what a publisher told counts this long after it was last heard
PREDICTIONS_MAX: Final = 65_536  # own picks that stand for blocks, oldest out
PREDICTED_BLOCKS_MAX: Final = 4_194_304  # of their prompts together: 32 MiB of hashes
PREDICTION_US_MAX: Final = 600 * SECOND_US  # longer than any setting may ask for

# Dispatches (decisions 18-20, 29)
LEDGER_LINES_MAX: Final = 65_536  # oldest out
DISPATCH_AGE_US_MAX: Final = 30 * SECOND_US  # an unanswered dispatch weighs this long
STALL_AGE_US: Final = 5 * SECOND_US  # unanswered this long: the worker may be stalled
STALL_BLOCKS_MIN: Final = 2  # a one-block request never marks a stall
SUSPECT_US: Final = 10 * SECOND_US  # exclusion after a fault seen at dispatch
ROTATIONS_MAX: Final = 4_096  # (phase, model) rotations of a replica, oldest out
PICK_ROWS_MAX: Final = 8  # best candidate rows kept in a PickMade, each phase

# The log (decisions 5, 7, 11, 15, 33, 34)
RECORD_BYTES_MAX: Final = 4 * MIB
COMMIT_BATCH_BYTES_MAX: Final = 8 * MIB
COMMIT_BATCH_RECORDS_MAX: Final = 65_536
OFFSET_JUMP: Final = 1 << 20  # a recovery that cuts opens the next segment at a multiple
PICKS_BUFFERED_MAX: Final = 10_000  # full pick records kept while the log is away
PICKS_BUFFERED_US_MAX: Final = 30 * SECOND_US
HELD_FRAMES_US_MAX: Final = 10 * SECOND_US  # what a standby has heard, oldest out (decision 45)
HELD_FRAMES_MAX: Final = 262_144  # some 27,000 a second on the reference fleet
HELD_FRAMES_BYTES_MAX: Final = 256 * MIB  # of them
CHECKPOINT_TAIL_MAX: Final = 500_000  # records, and kv-events in them, that a start folds: some 2 s
CHECKPOINT_SPACING_US: Final = 10 * SECOND_US  # so that a storm is not checkpointed all the time
RESERVE_BYTES: Final = 64 * MIB  # disk kept for picks, ends and control records
WRITER_FORGOTTEN_US: Final = 24 * 3600 * SECOND_US
REPLICA_GONE_US: Final = 30 * SECOND_US
WRITERS_MAX: Final = 65_536  # remembered writers, oldest last record out
REPLICAS_MAX: Final = 4_096
SETTINGS_KEPT_MAX: Final = 1_024  # adopted settings versions that a pick may still name

# Files of a model's tokenizer and template (specification, "Artifacts"; ART-06, ART-13)
ARTIFACT_BYTES_MAX: Final = 64 * MIB  # one file, as declared and as read
ARTIFACT_SETS_MAX: Final = 16  # loaded models' files in memory, least lately used out
ARTIFACT_SETS_BYTES_MAX: Final = 256 * MIB  # all of them together
ARTIFACT_LOADS_MAX: Final = 2  # at one time
ARTIFACT_RETRY_US: Final = 300 * SECOND_US  # after a load that failed
ARTIFACT_CACHE_BYTES_MAX: Final = 1 * GIB  # fetched files on disk, least lately used out
ARTIFACT_SOURCES_MAX: Final = 8  # places that are tried for one file, of those that workers name
ARTIFACT_REDIRECTS_MAX: Final = 3
ARTIFACT_MODELS_SAID_MAX: Final = 4_096  # models whose missing pins are remembered as said

# Prompts (RND-03..06; decision 61)
PROMPT_TEXT_BYTES_MAX: Final = 1 * MIB  # rendered text; a client's text above it is not even rendered
PROMPT_TOKENS_MAX: Final = 1_048_576
PROMPT_MESSAGES_MAX: Final = 4_096  # each is written anew on the event loop, in some 2 us
PROMPT_PARTS_MAX: Final = 16_384  # parts of contents, calls, reasoning and tools of one body, as messages
PROMPT_SEGMENTS_MAX: Final = 16_384  # pieces of one prompt that are looked up; more are encoded whole
PROMPT_SEGMENTS_BYTES_MAX: Final = 64 * MIB  # memo of encoded segments, least lately used out
PROMPT_HASHES_BYTES_MAX: Final = 16 * MIB  # memo of hashed stretches of tokens, least lately used out
RENDER_FRAME_BYTES_MAX: Final = 8 * MIB  # one message to or from a render process, but for files
RENDER_FUEL: Final = 5_000_000  # instructions of one minijinja render
RENDER_CPU_S_MAX: Final = 1  # of one render or encode
RENDER_US_MAX: Final = 2 * SECOND_US  # of one prompt, from its permit to its hashes
RENDER_PERMIT_US_MAX: Final = 20_000  # wait for a permit
RENDER_PERMITS_MIN: Final = 4  # one a core within these
RENDER_PERMITS_MAX: Final = 32
ENCODE_TEXTS_MAX: Final = 256  # rendered texts whose tokens are waited for; further prompts go without
ENCODE_TEXTS_BYTES_MAX: Final = 32 * MIB  # of them together
SPECIAL_TOKENS_MAX: Final = 4_096  # of one tokenizer, at which its text is split

# Requests
REQUEST_ID_CHARACTERS_MAX: Final = 128
MODEL_NAME_CHARACTERS_MAX: Final = 512
BODY_MEMBERS_MAX: Final = 1_024  # of its outermost object; the API knows some forty
BODY_VALUES_MAX: Final = 1 << 20  # values in one body: each is some 64 bytes while it is read

assert CARD_RETAINED_BYTES_MAX < RECORD_VALUE_BYTES_MAX
assert CARD_RETAINED_BYTES_MAX < RECORD_BYTES_MAX, "a KeyPut with its card must fit one record"
assert SAMPLE_PAYLOAD_BYTES_MAX < SAMPLE_FRAME_BYTES_MAX <= KV_FRAME_BYTES_MAX
assert RECORD_BYTES_MAX < COMMIT_BATCH_BYTES_MAX
assert KV_FRAME_BYTES_MAX // 9 <= KV_HASHES_PER_FRAME_MAX, "a full frame of full hashes is no excess"
assert 8 * KV_HASHES_PER_FRAME_MAX + 64 * KV_EVENTS_PER_FRAME_MAX < RECORD_BYTES_MAX, "a frame is one record"
assert RENDER_PERMITS_MAX <= ENCODE_TEXTS_MAX, "what is rendered at one time may be encoded"
assert PROMPT_TEXT_BYTES_MAX * RENDER_PERMITS_MAX <= ENCODE_TEXTS_BYTES_MAX, "and whatever its size"
assert PROMPT_TOKENS_MAX * 4 < RENDER_FRAME_BYTES_MAX, "the tokens of a prompt go in one message"
assert STALL_AGE_US < DISPATCH_AGE_US_MAX
assert 3 * ARTIFACT_BYTES_MAX <= ARTIFACT_SETS_BYTES_MAX, "three slots of one model must fit"
assert KV_BLOCKS_PER_RANK_MAX <= KV_NODES_MAX <= KV_OWNERSHIPS_MAX
assert SUBSCRIPTIONS_MAX <= KV_PUBLISHERS_MAX <= KV_CURSORS_MAX
