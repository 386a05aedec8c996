"""Block events as an engine itself publishes them (vLLM, SGLang), turned into those of the log.

    frame 0   topic, any text behind the subscribed beginning
    frame 1   sequence, u64 big-endian, from 0 for each engine process
    frame 2   msgpack [seconds, [event, ...], data parallel rank or nil]

An event is a tagged positional array or a map with `type`; both are read, unknown fields and
further items are ignored (B-062). The engine's own block hashes stay opaque names; what a block
holds is named by the hash of its tokens, computed here. Token ids go no further than this module:
no frame of an engine is kept, and nothing but hashes leaves (decision 12).

Engines number messages, not events. So events get ids here, one count a rank, that rise by one
where nothing was missed: a new connection begins far above the last id of the one before, and
`miss` leaves one out. The fold then finds a gap exactly where something may have been lost.

What is taken, and what not:

    group    blocks of full attention only, or of no stated kind (B-045, B-046). Engines with several
             kinds of attention share one space of hashes, so a removal follows its own kind; where it
             states none, what the last store of its group was. One that states neither is taken: it may
             cost credit, and never gives any.
    shape    tokens = hashes x the configured block size. Fewer are malformed (B-048), more are another
             group's (B-045), pairs of tokens are EAGLE's and unsupported (B-065).
    medium   gives the tier; an unknown one, and what is not LOCAL, is dropped.
    removal  that cannot be read: one id is left out, as a block may be gone that is still credited.

A salt or an adapter is in the seed of the hash. A bare text among the first block's keys that is
neither the adapter nor an image is taken for a salt: it can cost credit, and never gives any (B-052).

Sources: wire contract 5.6 and 6.1; requirement row KVX-19; decisions 12, 26, 39; B-045..048, B-062..066.
"""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import msgspec

from ingest.wire.engine_forms import (
    Barrier,
    Group,
    RemovedForm,
    StoredForm,
    UnfitHash,
    is_store,
    read_engine_event,
)
from ingest.wire.engine_keys import block_keys, hashes_with_images
from ingest.wire.event_packer import DEVICE, EventPacker
from ingest.wire.publisher_frames import UNREADABLE, Rank, Refused
from projections.bounds import KV_EVENTS_PER_FRAME_MAX, KV_FRAME_BYTES_MAX, KV_HASHES_PER_FRAME_MAX
from projections.events.signals import StorageTier
from projections.identity import DP_RANK_UNSET
from projections.kv.block_hash import block_hashes, seed_of
from projections.notices import FrameResult

FRAMES: Final = 3
GROUPS_MAX: Final = 64  # remembered, oldest out
RANKS_MAX: Final = 4_096  # of one engine process
_ID_BYTES: Final = 8
_CONNECTION_SHIFT: Final = 40  # ids of a connection: as many as an engine will never send
_TOKEN_BYTES: Final = 4
_SECONDS_MAX: Final = 1 << 40

_ADMITTED: Final = frozenset((None, "full_attention", "mla_attention", "sink_full_attention"))
_TIERS: Final[dict[str, int]] = {
    **dict.fromkeys(("GPU", "DEVICE"), int(StorageTier.DEVICE)),
    **dict.fromkeys(("CPU", "CPU_PINNED", "CPU_TIER1"), int(StorageTier.HOST_PINNED)),
    **dict.fromkeys(("CPU_TIER2", "DISK", "NVME", "STORAGE"), int(StorageTier.DISK)),
    **dict.fromkeys(("EXTERNAL", "NETWORK", "REMOTE", "SHARED"), int(StorageTier.EXTERNAL)),
}


class EngineSource(NamedTuple):
    """An engine that is listened to without a relay. Given by configuration.

    endpoint: tcp://host:port. dp_rank: None for what each batch says, else 0.
    topic: beginning of the topics that are subscribed. instance_id: its worker; None where it is
    found by the endpoint's host and by those of component, model and system_port that are given.
    """

    endpoint: str
    namespace: str
    instance_id: int | None
    block_size: int
    dp_rank: int | None = None
    topic: str = ""
    component: str | None = None
    model: str | None = None
    system_port: int | None = None


class EngineMessage(NamedTuple):
    """A message whose frames are in order. batch: not yet read."""

    sequence: int
    batch: bytes


class EngineBatch(NamedTuple):
    """Events of one message as columns, see KvBatchReceived; heads is b"" where there are none.

    malformed, unsupported: events that were left out. has_pairs: some had pairs for tokens.
    """

    published_at_ms: int
    heads: bytes
    hashes: bytes
    malformed: int
    unsupported: int
    has_pairs: bool


class _Batch(msgspec.Struct, array_like=True, gc=False):
    seconds: float
    events: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=KV_EVENTS_PER_FRAME_MAX)]
    data_parallel_rank: Rank | None = None


_Decoder = msgspec.msgpack.Decoder
_decode_batch = _Decoder(_Batch).decode
_decode_tokens = _Decoder(list[int]).decode
_decode_pairs = _Decoder(list[tuple[int, int]]).decode


class _Malformed(Exception):
    """An event of which nothing can be taken."""


class _Unsupported(Exception):
    """An event of blocks that the index does not hold."""


class _Pairs(_Unsupported):
    """Pairs of tokens where tokens belong."""


def open_engine_message(frames: Sequence[bytes], topic: bytes) -> EngineMessage | Refused:
    """The three frames of a message. topic: the subscribed beginning."""
    if len(frames) != FRAMES or len(frames[1]) != _ID_BYTES:
        return Refused(FrameResult.MALFORMED, None)
    sequence = int.from_bytes(frames[1], "big")
    if not frames[0].startswith(topic):
        return Refused(FrameResult.TOPIC_MISMATCH, sequence)
    if len(frames[2]) > KV_FRAME_BYTES_MAX:
        return Refused(FrameResult.OVERSIZED, sequence)
    return EngineMessage(sequence, frames[2])


class EngineReader:
    """Reads the batches of one engine, with its numbers and groups. Holds nothing of what it reads.

    worker: whose events they are, which `begin` says; until then the one that the source names.
    """

    def __init__(self, source: EngineSource) -> None:
        self.worker = source.instance_id or 0
        self._source = source
        self._base = 0
        self._ids: dict[int, int] = {}  # rank -> its last event id on this connection
        self._groups: OrderedDict[int, bool] = OrderedDict()  # index -> whether its last store was taken

    def begin(self, connection: int, worker: int | None = None) -> None:
        """A connection stands, numbered from 1 and never like one before: all ids lie beyond the old ones.

        worker: whose events follow, None for the same as before.
        """
        if worker is not None:
            self.worker = worker
        self._base = connection << _CONNECTION_SHIFT
        self._ids.clear()

    def miss(self) -> None:
        """Something may have been lost of every rank."""
        for rank in self._ids:
            self._ids[rank] += 1

    def read(self, batch: bytes) -> EngineBatch | None:
        """The events of one batch; None where it is none at all, which also is a `miss`."""
        try:
            said = _decode_batch(batch)
        except UNREADABLE:
            self.miss()
            return None
        rank = self._source.dp_rank if self._source.dp_rank is not None else said.data_parallel_rank or 0
        if rank == DP_RANK_UNSET or (rank not in self._ids and len(self._ids) >= RANKS_MAX):
            self.miss()
            return None
        packer, unsupported, has_pairs = EventPacker(), 0, False
        self._ids.setdefault(rank, self._base)
        for packed in said.events:
            try:
                self._add(packer, rank, packed)
            except _Unsupported as reason:
                unsupported += 1
                has_pairs = has_pairs or isinstance(reason, _Pairs)
            except (*UNREADABLE, UnfitHash, _Malformed):
                packer.dropped += 1
                if not is_store(packed):
                    self._ids[rank] += 1
        published_at_ms = int(said.seconds * 1000) if 0 <= said.seconds < _SECONDS_MAX else 0
        return EngineBatch(published_at_ms, *packer.columns(), packer.dropped, unsupported, has_pairs)

    def _add(self, packer: EventPacker, rank: int, packed: bytes) -> None:
        """Take one event, or raise why not."""
        form = read_engine_event(packed)
        if isinstance(form, Barrier):
            if form.is_effective:
                packer.cleared(self.worker, rank, self._next_id(rank), DEVICE)
            return
        tier = DEVICE if form.medium is None else _TIERS.get(form.medium.upper())
        if tier is None or (form.group.locality or "LOCAL").upper() != "LOCAL":
            raise _Unsupported
        if packer.words + len(form.hashes) // 4 >= KV_HASHES_PER_FRAME_MAX:
            raise _Malformed
        if isinstance(form, RemovedForm):
            if not self._is_admitted(form.group):
                raise _Unsupported
            packer.removed(self.worker, rank, self._next_id(rank), tier, form.hashes)
        elif tier != DEVICE and not _tokens_of(form.token_ids):
            packer.stored(self.worker, rank, self._next_id(rank), tier, None, b"")
        else:
            hashes = self._tokens_hashes(form) + form.hashes
            packer.stored(self.worker, rank, self._next_id(rank), tier, form.parent, hashes)

    def _next_id(self, rank: int) -> int:
        self._ids[rank] += 1
        return self._ids[rank]

    def _tokens_hashes(self, form: StoredForm) -> bytes:
        """Names of a store's blocks by their content."""
        source = self._source
        tokens = _tokens_of(form.token_ids)
        blocks, held = len(form.hashes) // 8, len(tokens) // _TOKEN_BYTES
        is_dense = held == blocks * source.block_size
        is_ours = form.group.kind in _ADMITTED and form.block_size in (None, source.block_size)
        if is_ours and held < blocks * source.block_size:
            raise _Malformed
        self._remember(form.group, is_ours and is_dense)
        if not is_ours or not is_dense:
            raise _Unsupported
        keys = block_keys(form.extra_keys, form.mm_infos, form.lora)
        seed = seed_of(form.lora, form.salt or keys.salt)
        hashes = block_hashes(tokens, source.block_size, seed)
        if keys.images:
            return hashes_with_images(hashes, tokens, source.block_size, seed, keys.images)
        return hashes

    def _is_admitted(self, group: Group) -> bool:
        """Whether a removal speaks of blocks that were taken."""
        if group.kind is not None:
            return group.kind in _ADMITTED
        return group.number is None or self._groups.get(group.number, True)

    def _remember(self, group: Group, is_taken: bool) -> None:
        if group.number is not None:
            self._groups[group.number] = is_taken
            self._groups.move_to_end(group.number)
            if len(self._groups) > GROUPS_MAX:
                self._groups.popitem(last=False)


def _tokens_of(packed: memoryview) -> bytes:
    """Token ids as little-endian u32. Raises _Pairs, _Malformed, and what UNREADABLE names."""
    try:
        tokens = array("I", _decode_tokens(packed))
    except OverflowError:
        raise _Malformed from None
    except msgspec.ValidationError:
        _decode_pairs(packed)
        raise _Pairs from None
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tobytes()
