"""What a record of the fleet says: tolerant readers of Endpoint, Model, EventChannel, EventSource.

Workers may be a few releases ahead or behind (N-2): every field is optional with a safe
default, unknown fields are ignored, absent and null are alike, and a field that has the
wrong type reads as absent and is named in `faults` while the rest of the record counts.
Only what cannot be a record at all (no JSON object, another type, no id) is `Unreadable`.

The namespace that a value claims is never read: it comes from the watched prefix (D 23).
Capacities of 0 mean unknown and read as absent.

Sources: wire contract 2 and 3; requirement rows RED-02, 09..12, 22, 26; LOAD-01..06;
field reports B-020, B-021, B-023.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

from projections.bounds import DP_SIZE_MAX, MODEL_NAME_CHARACTERS_MAX
from projections.identity import DP_RANK_UNSET, U32_MAX, id_of_value
from projections.registry.artifacts import NO_ARTIFACTS, CardArtifacts, artifacts_of
from projections.registry.json_text import Unreadable, count_of, object_of, read_object, text_of

GENERATE: Final = "generate"  # the one endpoint that makes a worker
KV_METRICS: Final = "kv_metrics"
KV_EVENTS: Final = "kv-events"
TOPICS: Final = (KV_METRICS, KV_EVENTS)
NAME_CHARACTERS_MAX: Final = 512  # component, endpoint, topic, address, release
DISAGGREGATED_MEMBERS_MAX: Final = 16
_RELEASE_FIELDS: Final = ("dynamo_version", "runtime_version", "version", "release")


class Role(IntEnum):
    """What a worker does for a request. UNKNOWN is shown to operators and never routed to."""

    PREFILL = 1
    DECODE = 2
    AGGREGATED = 3
    ENCODE = 4
    UNKNOWN = 5

    @property
    def label(self) -> str:
        """Spelling in metrics and documents."""
        return self.name.lower()


_ROLES: Final = {role.label: role for role in Role if role is not Role.UNKNOWN}


class EndpointRecord(NamedTuple):
    """One endpoint of a process. `transport` is not read: nobody here dials it."""

    component: str
    endpoint: str
    instance_id: int


class Card(NamedTuple):
    """The typed part of a model card.

    worker_type: the role it claims, None without a claim that we know.
    dp_declared: whether the card says how many ranks there are.
    total_kv_blocks: of each rank. None: absent or 0.
    disaggregated_endpoint: sorted (name, text or number) pairs, None where it is no map.
    faults: names of fields that read as absent, or otherwise than written.
    artifacts: the files that make prompts; never part of a cut card.
    lora_name: of an adapter. kv_event_publishing_enabled: None where the card does not say.
    """

    model: str | None
    worker_type: Role | None
    block_size: int | None
    total_kv_blocks: int | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    context_length: int | None
    dp_start_rank: int
    dp_size: int
    dp_declared: bool
    enable_eagle: bool
    disaggregated_endpoint: tuple[tuple[str, str | int | None], ...] | None
    release: str | None
    faults: tuple[str, ...]
    artifacts: CardArtifacts = NO_ARTIFACTS
    lora_name: str | None = None
    kv_event_publishing_enabled: bool | None = None


class CardRecord(NamedTuple):
    """A Model record. model_suffix is "" on a base card; a legacy card has no names."""

    component: str
    endpoint: str
    instance_id: int
    model_suffix: str
    card: Card


class ChannelFault(IntEnum):
    """Why a channel is no publisher that can be subscribed to."""

    NONE = 0
    SCOPE = 1
    TRANSPORT = 2
    ADDRESS = 3


class ChannelRecord(NamedTuple):
    """A publisher. component is "" and endpoint None where the scope does not name them."""

    component: str
    endpoint: str | None
    topic: str
    publisher_id: int
    address: str | None
    fault: ChannelFault


class SourceRecord(NamedTuple):
    """Which rank a publisher speaks for. worker_id None: the record does not say."""

    component: str
    endpoint: str | None
    topic: str
    publisher_id: int
    worker_id: int | None
    dp_rank: int


def parse_endpoint(value: bytes) -> EndpointRecord | Unreadable:
    """The Endpoint record in `value`."""
    document = _typed(value, "Endpoint")
    if isinstance(document, Unreadable):
        return document
    instance_id = id_of_value(document.get("instance_id"))
    if instance_id is None:
        return Unreadable.ID
    return EndpointRecord(_name(document.get("component")), _name(document.get("endpoint")), instance_id)


def parse_card(value: bytes) -> CardRecord | Unreadable:
    """The Model record in `value`, its card read field by field."""
    document = _typed(value, "Model")
    if isinstance(document, Unreadable):
        return document
    instance_id = id_of_value(document.get("instance_id"))
    if instance_id is None:
        return Unreadable.ID
    suffix = document.get("model_suffix")
    return CardRecord(
        _name(document.get("component")),
        _name(document.get("endpoint")),
        instance_id,
        _suffix(suffix),
        _card(document.get("card_json")),
    )


def parse_channel(value: bytes) -> ChannelRecord | Unreadable:
    """The EventChannel record in `value`, the flat form of Dynamo <= 1.2 included."""
    document = _typed(value, "EventChannel")
    if isinstance(document, Unreadable):
        return document
    publisher_id = id_of_value(document.get("instance_id"))
    if publisher_id is None:
        return Unreadable.ID
    scope = _scope(document)
    component, endpoint = scope or ("", None)
    address, fault = _address(document.get("transport"))
    if scope is None:
        address, fault = None, ChannelFault.SCOPE
    return ChannelRecord(component, endpoint, _name(document.get("topic")), publisher_id, address, fault)


def parse_source(value: bytes) -> SourceRecord | Unreadable:
    """The EventSource record in `value`."""
    document = _typed(value, "EventSource")
    if isinstance(document, Unreadable):
        return document
    metadata = object_of(document.get("metadata"))
    publisher_id = id_of_value(document.get("publisher_id"))
    if publisher_id is None:
        publisher_id = id_of_value(metadata.get("publisher_id"))
    if publisher_id is None:
        return Unreadable.ID
    component, endpoint = _scope(document) or ("", None)
    worker = object_of(metadata.get("worker"))
    rank = worker.get("dp_rank")
    dp_rank = 0 if rank is None else count_of(rank, U32_MAX - 1)
    worker_id = id_of_value(worker.get("worker_id")) if dp_rank is not None else None
    return SourceRecord(
        component, endpoint, _name(document.get("topic")), publisher_id, worker_id, dp_rank or 0
    )


def _typed(value: bytes, expected: str) -> dict[str, Any] | Unreadable:
    """The object, refused where it says that it is a record of another type."""
    document = read_object(value)
    if isinstance(document, Unreadable):
        return document
    said = document.get("type")
    return Unreadable.TYPE if isinstance(said, str) and said != expected else document


def _name(value: object) -> str:
    return text_of(value, NAME_CHARACTERS_MAX) or ""


def _suffix(value: object) -> str:
    """ "" only where there is no suffix: an odd one still marks an adapter's card (RED-04)."""
    if value is None or value == "":
        return ""
    return text_of(value, NAME_CHARACTERS_MAX) or "?"


def _card(value: object) -> Card:
    card = object_of(value)
    runtime = object_of(card.get("runtime_config"))
    faults: list[str] = []
    if not isinstance(value, dict):
        faults.append("card_json")
    if card.get("runtime_config") is not None and not isinstance(card["runtime_config"], dict):
        faults.append("runtime_config")

    def capacity(fields: dict[str, Any], name: str, maximum: int = U32_MAX) -> int | None:
        raw = fields.get(name)
        count = count_of(raw, maximum)
        if raw is not None and count is None:
            faults.append(name)
        return count or None

    block_size = capacity(card, "kv_cache_block_size")
    if block_size is None and card.get("kv_cache_block_size") == 0:
        faults.append("kv_cache_block_size")
    start, size, declared = _ranks(runtime, faults)
    artifacts = artifacts_of(card)
    faults += artifacts.malformed
    publishing = runtime.get("kv_event_publishing_enabled")
    return Card(
        model=_model(card, faults),
        worker_type=_worker_type(card, faults),
        block_size=block_size,
        total_kv_blocks=capacity(runtime, "total_kv_blocks", _CAPACITY_MAX),
        max_num_batched_tokens=capacity(runtime, "max_num_batched_tokens", _CAPACITY_MAX),
        max_num_seqs=capacity(runtime, "max_num_seqs", _CAPACITY_MAX),
        context_length=capacity(runtime, "context_length") or capacity(card, "context_length"),
        dp_start_rank=start,
        dp_size=size,
        dp_declared=declared,
        enable_eagle=runtime.get("enable_eagle") is True,
        disaggregated_endpoint=_disaggregated(runtime.get("disaggregated_endpoint")),
        release=_release(card, runtime),
        faults=tuple(sorted(set(faults))),
        artifacts=artifacts,
        lora_name=text_of(object_of(card.get("lora")).get("name"), MODEL_NAME_CHARACTERS_MAX) or None,
        kv_event_publishing_enabled=publishing if isinstance(publishing, bool) else None,
    )


_CAPACITY_MAX: Final = (1 << 53) - 1  # beyond it a cost, a double, would no longer tell neighbours apart


def _ranks(runtime: dict[str, Any], faults: list[str]) -> tuple[int, int, bool]:
    """(first rank, number of ranks, whether the card says so)."""
    raw_size, raw_start = runtime.get("data_parallel_size"), runtime.get("data_parallel_start_rank")
    size = count_of(raw_size, DP_SIZE_MAX)
    if raw_size is not None and not size:
        faults.append("data_parallel_size")  # 0, too many, or no number: read as 1
    start = 0 if raw_start is None else count_of(raw_start, DP_RANK_UNSET - DP_SIZE_MAX)
    if start is None:
        faults.append("data_parallel_start_rank")
    return start or 0, size or 1, raw_size is not None


def _model(card: dict[str, Any], faults: list[str]) -> str | None:
    for field in ("display_name", "name"):
        raw = card.get(field)
        text = text_of(raw, MODEL_NAME_CHARACTERS_MAX)
        if text:
            return text
        if raw is not None and text is None:
            faults.append(field)
    return None


def _worker_type(card: dict[str, Any], faults: list[str]) -> Role | None:
    raw = card.get("worker_type")
    role = _ROLES.get(raw.lower()) if isinstance(raw, str) and raw.isascii() else None
    if raw is not None and role is None:
        faults.append("worker_type")
    return role


def _disaggregated(value: object) -> tuple[tuple[str, str | int | None], ...] | None:
    """Its small members in name order; a string, as the specification shows, is kept opaque only."""
    if not isinstance(value, dict):
        return None
    pairs: list[tuple[str, str | int | None]] = []
    for name in sorted(filter(_is_name, value))[:DISAGGREGATED_MEMBERS_MAX]:
        raw = value[name]
        pairs.append((name, count_of(raw) if isinstance(raw, int) else text_of(raw, NAME_CHARACTERS_MAX)))
    return tuple(pairs)


def _is_name(value: str) -> bool:
    return text_of(value, NAME_CHARACTERS_MAX) is not None


def _release(card: dict[str, Any], runtime: dict[str, Any]) -> str | None:
    for fields in (card, runtime):
        for field in _RELEASE_FIELDS:
            text = text_of(fields.get(field), NAME_CHARACTERS_MAX)
            if text:
                return text
    return None


def _scope(document: dict[str, Any]) -> tuple[str, str | None] | None:
    """(component, endpoint) of a scope; the flat form where there is no scope; None for an unknown kind."""
    raw = document.get("scope")
    if raw is None:
        return _name(document.get("component")), None
    scope = object_of(raw)
    kind = scope.get("kind")
    if kind == "namespace":
        return "", None
    if kind == "component":
        return _name(scope.get("component")), None
    if kind == "endpoint":
        inner = object_of(scope.get("endpoint"))
        return _name(inner.get("component")), _name(inner.get("name"))
    return None


def _address(value: object) -> tuple[str | None, ChannelFault]:
    """`tcp://host:port` of a direct ZMQ transport."""
    transport = object_of(value)
    if transport.get("kind") != "Zmq":
        return None, ChannelFault.TRANSPORT
    address = text_of(object_of(transport.get("config")).get("endpoint"), NAME_CHARACTERS_MAX)
    if address is None or not address.startswith("tcp://") or not _is_plain(address):
        return None, ChannelFault.ADDRESS
    host, _, port = address[len("tcp://") :].rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) <= 65_535):
        return None, ChannelFault.ADDRESS
    return address, ChannelFault.NONE


def _is_plain(text: str) -> bool:
    """ASCII without blanks and controls: what is printable beyond ASCII depends on the interpreter."""
    return text.isascii() and all("!" <= character <= "~" for character in text)
