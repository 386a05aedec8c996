"""Headers that go on, headers that stay, pins as they are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.events.picks import Chosen, Outcome, PhaseOutcome
from router.ingress.pin_headers import (
    HOP_BY_HOP,
    PIN_ALIASES,
    accepted_request_id,
    answer_headers,
    disclosure,
    forwarded_headers,
    pins_of,
)

DYNAMO = [
    b"x-dynamo-worker-instance-id",
    b"X-Dynamo-Prefill-Instance-Id",
    b"X-DYNAMO-DP-RANK",
    b"x-dynamo-prefill-dp-rank",
    b"x-dynamo-request-id",
    b"x-dynamo-anything-new",
    b"x_dynamo_worker_instance_id",
]


def phase(chosen: Chosen | None) -> PhaseOutcome:
    return PhaseOutcome(1, chosen, 1, None, b"")


def outcome(decode: Chosen | None, prefill: Chosen | None = None) -> Outcome:
    return Outcome("dynamo" if decode else None, phase(prefill), phase(decode), 0, 1, b"")


def worker(instance_id: int, rank: int = 0, declared: bool = False) -> Chosen:
    return Chosen(instance_id, rank, declared, 9, 1)


@pytest.mark.req("SHIM-10", "SHIM-11")
@pytest.mark.parametrize("name", [*DYNAMO, *sorted(PIN_ALIASES), *(a.title() for a in sorted(PIN_ALIASES))])
def test_clients_pins_stay_behind(name: bytes) -> None:
    assert forwarded_headers([(name, b"7"), (b"x-tenant-id", b"t"), (name, b"8")]) == [(b"x-tenant-id", b"t")]


@pytest.mark.parametrize("name", sorted(HOP_BY_HOP))
def test_hop_by_hop_headers_stay_behind_in_both_directions(name: bytes) -> None:
    headers = [(name.title(), b"x"), (b"traceparent", b"00-1")]
    assert forwarded_headers(headers) == [(b"traceparent", b"00-1")]
    assert answer_headers(headers) == [(b"traceparent", b"00-1")]


def test_headers_that_connection_names_stay_behind() -> None:
    headers = [
        (b"Connection", b"keep-alive, X-Secret"),
        (b"x-secret", b"1"),
        (b"connection", b"X-Other"),
        (b"X_OTHER", b"2"),
    ]
    assert forwarded_headers(headers) == []


@pytest.mark.field("B-101")
@pytest.mark.parametrize(
    "name", [b"Authorization", b"authorization", b"X-API-Key", b"api-key", b"Cookie", b"Proxy-Authorization"]
)
def test_callers_credentials_stay_behind(name: bytes) -> None:
    assert forwarded_headers([(name, b"secret")]) == []


def test_the_rest_goes_on_as_it_came() -> None:
    headers = [
        (b"User-Agent", b"x"),
        (b"ACCEPT", b"*/*"),
        (b"X-A", b"1"),
        (b"x-a", b"2"),
        (b"tracestate", b"a=b"),
    ]
    assert forwarded_headers(headers) == headers


@pytest.mark.req("SHIM-13")
def test_answers_lose_what_a_frontend_should_not_say() -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"X-Dynamo-Worker-Instance-Id", b"7"),
        (b"x-worker-instance-id", b"7"),
        (b"X-Continuum-Decode-Worker", b"dynamo/7"),
        (b"server", b"hyper"),
        (b"content-encoding", b"gzip"),
        (b"retry-after", b"3"),
    ]
    kept = [(b"content-type", b"application/json"), (b"content-encoding", b"gzip"), (b"retry-after", b"3")]
    assert answer_headers(headers) == kept


@pytest.mark.field("B-090")
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.binary(max_size=10))))
def test_no_list_of_headers_lets_a_pin_through(headers: list[tuple[bytes, bytes]]) -> None:
    for name, _ in forwarded_headers([*headers, (b"X-Dynamo-Dp-Rank", b"1")]):
        assert not name.lower().replace(b"_", b"-").startswith(b"x-dynamo-")


@pytest.mark.req("SHIM-06", "SHIM-08")
def test_pair_is_pinned_by_four_decimal_headers() -> None:
    pins = pins_of(outcome(worker(0x1A7F2B, 3, True), worker(2**63 + 1, 0, True)))
    assert pins is not None
    assert pins.headers == (
        (b"x-dynamo-worker-instance-id", b"1736491"),
        (b"x-dynamo-dp-rank", b"3"),
        (b"x-dynamo-prefill-instance-id", b"9223372036854775809"),
        (b"x-dynamo-prefill-dp-rank", b"0"),
    )


@pytest.mark.req("SHIM-07", "SHIM-09")
@pytest.mark.parametrize(
    ("chosen", "headers"),
    [
        (worker(7), ((b"x-dynamo-worker-instance-id", b"7"),)),
        (worker(7, 0, True), ((b"x-dynamo-worker-instance-id", b"7"), (b"x-dynamo-dp-rank", b"0"))),
        (worker(7, 5, True), ((b"x-dynamo-worker-instance-id", b"7"), (b"x-dynamo-dp-rank", b"5"))),
    ],
)
def test_worker_alone_is_pinned_by_its_id_and_a_declared_rank(
    chosen: Chosen, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    pins = pins_of(outcome(chosen))
    assert pins is not None
    assert pins.headers == headers


@pytest.mark.req("SHIM-09")
@pytest.mark.parametrize(
    ("decode_declared", "prefill_declared", "ranks"),
    [
        (True, True, (b"1", b"2")),
        (True, False, (b"1", b"4294967295")),
        (False, True, (b"0", b"2")),
        (False, False, None),
    ],
)
def test_ranks_of_a_pair_go_together(
    decode_declared: bool, prefill_declared: bool, ranks: tuple[bytes, bytes] | None
) -> None:
    pins = pins_of(outcome(worker(7, 1, decode_declared), worker(8, 2, prefill_declared)))
    assert pins is not None
    sent = dict(pins.headers)
    found = (sent.get(b"x-dynamo-dp-rank"), sent.get(b"x-dynamo-prefill-dp-rank"))
    assert found == (ranks or (None, None))


def test_no_worker_is_no_pins() -> None:
    assert pins_of(outcome(None)) is None


@pytest.mark.req("SHIM-14")
def test_disclosure_names_backend_and_workers() -> None:
    pins = pins_of(outcome(worker(7, 1, True), worker(8)))
    assert disclosure("shim-1", pins) == [
        ("X-Continuum-Backend", "shim-1"),
        ("X-Continuum-Decode-Worker", "dynamo/7#1"),
        ("X-Continuum-Prefill-Worker", "dynamo/8"),
    ]
    assert disclosure("plain", None) == [("X-Continuum-Backend", "plain")]


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("a", True),
        ("x" * 128, True),
        ("!~", True),
        (None, False),
        ("", False),
        ("x" * 129, False),
        ("a b", False),
        ("é", False),
        ("a\tb", False),
        ("a\x7f", False),
    ],
)
def test_request_ids_are_visible_ascii_of_bounded_length(text: str | None, accepted: bool) -> None:
    assert accepted_request_id(text) == (text if accepted else None)
