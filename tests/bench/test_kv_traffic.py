"""The traffic of the comparison is the same each time, and is what it says."""

from __future__ import annotations

import json

from bench.kv_traffic import OPEN_SESSIONS, PAUSE_S, Request, write_traffic


def test_one_seed_writes_one_traffic_and_another_writes_another() -> None:
    assert write_traffic(3, 2, 40) == write_traffic(3, 2, 40)
    assert write_traffic(3, 2, 40) != write_traffic(4, 2, 40)


def test_each_client_has_its_share_with_a_few_sessions_open() -> None:
    lists = write_traffic(3, 4, 200)
    assert [len(sent) for sent in lists] == [50] * 4
    for sent in lists:
        opened = sum(request.turn == 0 and request.kind != "single" for request in sent)
        assert opened > OPEN_SESSIONS
        assert all(0 <= request.pause_s <= 2 * PAUSE_S for request in sent)


def test_turns_repeat_all_before_them_and_groups_share_their_document() -> None:
    for sent in write_traffic(5, 1, 120):
        for request in sent:
            if request.kind == "conversation":
                before = request.messages[:-2] if request.turn else request.messages[:1]
                assert any(other.messages[: len(before)] == before for other in sent)
                assert len(request.messages) == 2 + 2 * request.turn
            if request.kind == "group" and request.turn:
                assert sum(other.messages[0] == request.messages[0] for other in sent) > 1


def test_body_asks_for_usage_and_for_who_served() -> None:
    body = json.loads(Request("single", 0, ({"role": "user", "content": "x"},)).body())
    assert body["stream_options"] == {"include_usage": True}
    assert body["nvext"] == {"extra_fields": ["worker_id"]}
