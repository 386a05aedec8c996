"""Numbers in discovery facts are part of the format."""

from __future__ import annotations

from projections.events.discovery import KeyPut, KeyRefusal, Keyspace, PassSettled


def test_keyspaces_and_refusals_keep_their_numbers() -> None:
    assert [(k.name, int(k)) for k in Keyspace] == [
        ("INSTANCES", 1),
        ("CARDS", 2),
        ("CHANNELS", 3),
        ("SOURCES", 4),
    ]
    assert [(r.name, int(r)) for r in KeyRefusal] == [("NONE", 0), ("OVERSIZED", 1), ("CUT", 2)]


def test_what_is_usual_may_be_left_out() -> None:
    put = KeyPut(1, "dynamo", "k", 5, b"{}", 2, b"d" * 32)
    assert put.refusal == KeyRefusal.NONE
    assert PassSettled("etcd", ("dynamo",), 1, 0, 0, 5).unwatched == ()
