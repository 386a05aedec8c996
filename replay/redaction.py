"""Takes addresses, cards and host names out of records, so that every pick stays the same.

No pick reads an address or a name of a host, and of a card it reads a dozen numbers and
names. So a value of the fleet is replaced by the fields that are read here, written anew,
and of those again addresses are replaced by numbered ones: two publishers at one address are
still seen to be at one. What named the old value, its blake3, would let anybody try addresses
until one fits; it is replaced by a keyed digest, whose key is drawn for one capture and kept
nowhere. Equal values stay equal, so the fold takes the same way through all of them.

    record                              what is replaced
    KeyPut, KeyHeld                     value, digest of the value
    PassSettled                         digest over the keys
    ConfigProposed, ConfigAdopted, ...  settings but for numbers, switches and units; their digest
    ReplicaStarted, ReplicaHeld         label: host and process
    DispatchEnded                       backend: may be called like its host
    ClockTicked                         notes of a fold that saw other bytes
    RecordCondemned                     text of an error
    bytes that are no record            all of them

Everything else keeps its fields. Offsets, writers, sequences and times are those of the
original. Request ids stay: they are what a pick is found by.

Sources: decision 6; architecture 7.10; requirement rows EVS-18, EVS-19.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import xxhash
from blake3 import blake3

from projections.checkpoint import closing_of, fold_from_checkpoint
from projections.events.codec import RecordRefused, Refusal, check_word, decode_record, encode_record
from projections.events.control import (
    ClockTicked,
    ConfigAdopted,
    ConfigProposed,
    RecordCondemned,
    ReplicaStarted,
)
from projections.events.discovery import KeyPut, KeyRefusal, Keyspace, PassSettled
from projections.events.envelope import Record
from projections.events.held import CheckpointClosed, CheckpointOpened, KeyHeld, ReplicaHeld, SettingsHeld
from projections.events.kinds import Kind
from projections.events.picks import DispatchEnded
from projections.fold import Fold, FoldStopped
from projections.identity import U64_MAX
from projections.registry.keyspace import key_digest_input
from projections.registry.records import (
    CardRecord,
    ChannelRecord,
    parse_card,
    parse_channel,
    parse_endpoint,
    parse_source,
)
from projections.registry.subset import subset_of
from replay.capture import CaptureRefused

GONE = "redacted"
_QUANTITY = re.compile(r"\d{1,12}(\.\d{1,6})?(us|ms|s|m|h|d|B|[KMGT]i?B|%)")
_NO_RECORD_BODY = b"\x01\x00\x90"  # an empty array: what any codec of ours refuses
_PARSERS: dict[int, Callable[[bytes], Any]] = {
    int(Keyspace.INSTANCES): parse_endpoint,
    int(Keyspace.CARDS): parse_card,
    int(Keyspace.CHANNELS): parse_channel,
    int(Keyspace.SOURCES): parse_source,
}
_PASSES = frozenset(
    map(
        int,
        (
            Kind.PASS_BEGAN,
            Kind.KEY_PUT,
            Kind.KEY_DELETED,
            Kind.PASS_SETTLED,
            Kind.PASS_ENDED,
            Kind.KEYS_DROPPED,
            Kind.LANE_OPENED,
        ),
    )
)
"""Kinds that decide which keys are held when a pass settles, and whose they are."""


class Redaction:
    """Rewrites the base and then the records of one capture.

    log_id: 16 bytes, drawn; the redacted log is another one. key: 32 bytes, drawn; thrown
    away with this. before: the record that the base is the state behind, as found.
    condemned: offsets that are skipped.
    """

    def __init__(
        self,
        log_id: bytes,
        key: bytes,
        before: tuple[int, bytes] | None = None,
        condemned: frozenset[int] = frozenset(),
    ) -> None:
        self.log_id = log_id
        self._condemned = condemned
        self._key = key
        self._before = before
        self._numbers: dict[tuple[str, str], int] = {}
        self._found = Fold(condemned)  # keys as they were, to know whether a pass settled,
        self._made = Fold(condemned)  # and as they are now, to tell so of them

    def base(self, records: Iterable[bytes]) -> Iterator[bytes]:
        """See capture.Rewriter."""
        found = [*records]
        self._found = fold_from_checkpoint(found, self._condemned)
        made = [*self._base(found)]
        self._made = fold_from_checkpoint(made, self._condemned)
        yield from made

    def record(self, offset: int, data: bytes) -> bytes:
        """See capture.Rewriter. Raises CaptureRefused for a record of a newer release."""
        try:
            record = decode_record(offset, data)
        except RecordRefused as refusal:
            if refusal.reason is Refusal.SCHEMA:
                raise CaptureRefused(
                    f"offset {offset}: its schema is newer than this release, which cannot tell what to "
                    "redact: update it"
                ) from refusal
            return _NO_RECORD_BODY + xxhash.xxh3_64_intdigest(_NO_RECORD_BODY).to_bytes(8, "little")
        fact = self._fact(record.fact)
        if record.kind in _PASSES:
            fact = self._followed(record, data, fact)
        return _encoded(record, fact)

    # -- the base ----------------------------------------------------------------------

    def _base(self, found: list[bytes]) -> Iterator[bytes]:
        made: list[tuple[Record, Any]] = []
        for index, data in enumerate(found):
            record = decode_record(index, data)
            fact = self._fact(record.fact)
            if isinstance(fact, CheckpointOpened):
                fact = fact._replace(log_id=self.log_id, check=self._check_before(fact))
            made.append((record, fact))
        closed = closing_of([fact for _, fact in made])
        for record, fact in made:
            yield _encoded(record, closed if isinstance(fact, CheckpointClosed) else fact)

    def _check_before(self, opened: CheckpointOpened) -> int:
        """The check word of the record before, as it would be here: the original's tells of its bytes."""
        if self._before is None or self._before[0] != opened.offset:
            return 0
        return check_word(Redaction(self.log_id, self._key).record(*self._before))

    # -- passes ------------------------------------------------------------------------

    def _followed(self, record: Record, data: bytes, fact: Any) -> Any:
        """Fold discovery twice, as it was and as it is now, so that a pass settles here as it did there."""
        notices: list[Any] = []
        try:
            took = self._found.apply(record.offset, data, notices)
            if isinstance(fact, PassSettled):
                fact = self._settled(fact) if took is not None else fact._replace(digest=0)
            self._made.apply(record.offset, _encoded(record, fact), notices)
        except FoldStopped as stop:
            raise CaptureRefused(f"{stop}: a window with it cannot be redacted") from stop
        return fact

    def _settled(self, fact: PassSettled) -> PassSettled:
        found = self._found.state.registry.keyspaces.passes
        was_same = all(name in found and found[name].settled for name in fact.namespaces)
        digest = 0
        held = self._made.state.registry.keyspaces.held_digests(fact.namespaces) if fact.namespaces else {}
        for name, value_digest in held.items():
            digest += xxhash.xxh3_64_intdigest(key_digest_input(*name, value_digest))
        return fact._replace(digest=(digest if was_same else digest + 1) & U64_MAX)

    # -- facts -------------------------------------------------------------------------

    def _fact(self, fact: Any) -> Any:
        """The fact with everything replaced that it must not tell."""
        match fact:
            case KeyPut() | KeyHeld():
                digest = self._digest(fact.value_digest)
                return fact._replace(value=self._value(fact), value_digest=digest)
            case ConfigProposed() | ConfigAdopted() | SettingsHeld():
                return fact._replace(
                    settings=self._settings(fact.settings), digest=self._digest(fact.digest)[:16]
                )
            case ReplicaStarted() | ReplicaHeld():
                return fact._replace(label=self._numbered("replica", fact.label)) if fact.label else fact
            case DispatchEnded():
                return (
                    fact._replace(backend=self._numbered("backend", fact.backend)) if fact.backend else fact
                )
            case ClockTicked():
                return ClockTicked(fact.wall_us, -1, (), 0, 0)
            case RecordCondemned():
                return fact._replace(detail=GONE)
        return fact

    def _digest(self, found: bytes) -> bytes:
        return blake3(found, key=self._key).digest()

    def _numbered(self, what: str, name: str) -> str:
        """A name that tells only which of several it is, by first appearance."""
        number = self._numbers.setdefault((what, name), sum(kind == what for kind, _ in self._numbers) + 1)
        return f"{what}-{number}"

    def _value(self, fact: KeyPut | KeyHeld) -> bytes:
        """The fields that are read of a value, without addresses; what could not be read stays so."""
        if fact.refusal == KeyRefusal.OVERSIZED or fact.keyspace not in _PARSERS:
            return b""
        record = _PARSERS[fact.keyspace](fact.value)
        if isinstance(record, ChannelRecord) and record.address is not None:
            address = f"tcp://{self._numbered('address', record.address)}:1"
            record = record._replace(address=address)
        elif isinstance(record, CardRecord) and record.card.disaggregated_endpoint is not None:
            pairs = tuple(
                (name, GONE if isinstance(value, str) else value and 0)
                for name, value in record.card.disaggregated_endpoint
            )
            record = record._replace(card=record.card._replace(disaggregated_endpoint=pairs))
        return subset_of(record)

    def _settings(self, text: str) -> str:
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return "{}"
        return json.dumps(_without_text(document), sort_keys=True, separators=(",", ":"))


def _encoded(record: Record, fact: Any) -> bytes:
    return encode_record(record.time, record.writer, record.epoch, record.sequence, fact)


def _without_text(value: Any) -> Any:
    """Settings with their numbers, switches and quantities, and no other text."""
    if isinstance(value, dict):
        return {name: _without_text(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_text(one) for one in value]
    if isinstance(value, str) and not _QUANTITY.fullmatch(value):
        return GONE
    return value
