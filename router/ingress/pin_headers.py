"""The one place that knows header names: what goes on, what we write, what is told.

A client must not choose its worker (SHIM-10, SHIM-11, B-090). Names are compared in lower
case with `_` read as `-`, because some servers fold the two. Everything that is not on a
list of what must stay behind goes on, so tracing and tenant headers pass.

Going on are never: `x-dynamo-*` and the names without `dynamo` that a frontend also takes,
hop-by-hop headers and those that `Connection` names (RFC 9110, 7.6.1), credentials of the
caller (B-101), and what describes the body, which is counted anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from projections.bounds import REQUEST_ID_CHARACTERS_MAX
from projections.events.picks import Chosen, Outcome
from projections.identity import DP_RANK_UNSET, WorkerKey

RawHeaders = Sequence[tuple[bytes, bytes]]

DYNAMO_PREFIX: Final = b"x-dynamo-"
PIN_ALIASES: Final = frozenset(
    {
        b"x-worker-instance-id",
        b"x-prefill-instance-id",
        b"x-dp-rank",
        b"x-data-parallel-rank",
        b"x-prefill-dp-rank",
    }
)
HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_REQUEST_ONLY: Final = frozenset(
    {
        b"host",
        b"content-length",
        b"content-encoding",
        b"content-type",
        b"expect",
        b"authorization",
        b"api-key",
        b"x-api-key",
        b"cookie",
        b"x-request-id",
        b"x-backend",
    }
)
_ANSWER_ONLY: Final = frozenset({b"content-length", b"date", b"server", b"x-request-id", b"set-cookie"})
_CONTINUUM_PREFIX: Final = b"x-continuum-"
STAYS_OF_REQUEST: Final = PIN_ALIASES | HOP_BY_HOP | _REQUEST_ONLY
STAYS_OF_ANSWER: Final = PIN_ALIASES | HOP_BY_HOP | _ANSWER_ONLY

NAMES_REMEMBERED: Final = 1024  # judgements on header names

ROUTING_PATH: Final = "X-Continuum-Routing-Path"
BACKEND: Final = "X-Continuum-Backend"
DECODE_WORKER: Final = "X-Continuum-Decode-Worker"
PREFILL_WORKER: Final = "X-Continuum-Prefill-Worker"
REQUEST_ID: Final = "x-request-id"
DISCLOSURE_WISH: Final = "x-backend"

_VISIBLE: Final = frozenset(map(chr, range(0x21, 0x7F)))


class Pins(NamedTuple):
    """The workers of one pick, as one dispatch carries them to every try.

    headers: names and values as sent. decode, prefill: `<namespace>/<decimal id>[#rank]`.
    """

    namespace: str
    headers: tuple[tuple[bytes, bytes], ...]
    decode_instance: int
    prefill_instance: int | None
    decode: str
    prefill: str | None


def forwarded_headers(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """The client's headers that go on to a backend, in order, spelled as they came."""
    return _kept(headers, STAYS_OF_REQUEST)


def answer_headers(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """A backend's headers that go on to the client; no `x-dynamo-*` among them (SHIM-13)."""
    return _kept(headers, STAYS_OF_ANSWER)


def _kept(headers: RawHeaders, stays: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    named = _named_by_connection(headers)
    if not named:
        return [header for header in headers if not _stays(header[0], stays)]
    return [
        header
        for header in headers
        if not _stays(header[0], stays) and header[0].lower().replace(b"_", b"-") not in named
    ]


@lru_cache(NAMES_REMEMBERED)
def _stays(name: bytes, stays: frozenset[bytes]) -> bool:
    plain = name.lower().replace(b"_", b"-")
    return plain in stays or plain.startswith((DYNAMO_PREFIX, _CONTINUUM_PREFIX))


def _named_by_connection(headers: RawHeaders) -> frozenset[bytes]:
    names: Iterable[bytes] = ()
    for name, value in headers:
        if len(name) == 10 and name.lower() == b"connection":
            names = (*names, *(part.strip().lower().replace(b"_", b"-") for part in value.split(b",")))
    return frozenset(names)


def pins_of(outcome: Outcome) -> Pins | None:
    """The pins of an outcome, or None where no decode worker was chosen.

    Ids are decimal (SHIM-08). In a pair both ranks are sent if either card declares its
    ranks; alone, only a declared one (SHIM-09). Undeclared ranks of a pair: real frontends
    take the unset rank for the prefill worker, but refuse it for the decode worker (1.6.1:
    400 `out of bounds`), which therefore gets 0, the only rank it has. A prefill id never
    goes out beside an aggregated worker: the pick chose none then.
    """
    decode, prefill = outcome.decode.chosen, outcome.prefill.chosen
    if decode is None or outcome.namespace is None:
        return None
    headers = [(b"x-dynamo-worker-instance-id", b"%d" % decode.instance_id)]
    ranked = decode.pin_rank or (prefill is not None and prefill.pin_rank)
    if ranked:
        headers.append((b"x-dynamo-dp-rank", b"%d" % (decode.dp_rank if decode.pin_rank else 0)))
    if prefill is not None:
        headers.append((b"x-dynamo-prefill-instance-id", b"%d" % prefill.instance_id))
        if ranked:
            rank = prefill.dp_rank if prefill.pin_rank else DP_RANK_UNSET
            headers.append((b"x-dynamo-prefill-dp-rank", b"%d" % rank))
    return Pins(
        namespace=outcome.namespace,
        headers=tuple(headers),
        decode_instance=decode.instance_id,
        prefill_instance=None if prefill is None else prefill.instance_id,
        decode=_worker_text(outcome.namespace, decode),
        prefill=None if prefill is None else _worker_text(outcome.namespace, prefill),
    )


def _worker_text(namespace: str, chosen: Chosen) -> str:
    text = WorkerKey(namespace, chosen.instance_id).to_text()
    return f"{text}#{chosen.dp_rank}" if chosen.pin_rank else text


def disclosure(backend: str, pins: Pins | None) -> list[tuple[str, str]]:
    """What an answer tells about who served, if the request asked (continuum.md, T4)."""
    told = [(BACKEND, backend)]
    if pins is not None:
        told.append((DECODE_WORKER, pins.decode))
        if pins.prefill is not None:
            told.append((PREFILL_WORKER, pins.prefill))
    return told


def accepted_request_id(text: str | None) -> str | None:
    """The client's request id if it is 1..128 visible ASCII characters, else None."""
    if text is None or not 0 < len(text) <= REQUEST_ID_CHARACTERS_MAX:
        return None
    return text if _VISIBLE.issuperset(text) else None
