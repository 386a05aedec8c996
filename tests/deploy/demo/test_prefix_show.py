"""The acts switch the configuration between them, wait for the router, and count what went wrong."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.demo import conversation, prefix_show
from deploy.demo.chats import Answer, Chat, Pin, Verdict
from deploy.demo.conversation import Turn
from deploy.demo.prefix_show import NotTakenUp, PrefixShow


class Router:
    """Answers as a router whose configuration is changed: at the second look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, strays: bool = False, complaint: str = "") -> None:
        self.is_on, self.written, self.looks = True, True, 0
        self.switches: list[bool] = []
        self.talks: list[tuple[str, bool]] = []
        self.said: list[str] = []
        self._strays, self._complaint = strays, complaint
        monkeypatch.setattr(prefix_show, "get_json", self.get_json)
        monkeypatch.setattr(prefix_show, "POLL_S", 0)
        monkeypatch.setattr(conversation, "talk", self.talk)

    def get_json(self, url: str, timeout_s: float = 3.0) -> dict[str, Any]:
        self.looks += 1
        if self.looks % 4 == 0:
            self.is_on = self.written
        heard = [{"family": "kv-events", "state": "connected"}] if self.is_on else []
        return {"dynamo": {"kv": {"enabled": self.is_on}}, "subscriptions": heard}

    def turn_kv(self, is_on: bool) -> None:
        self.switches.append(is_on)
        self.written = is_on

    def talk(self, router: str, name: str, model: str, trade: str, explain: object) -> list[Turn]:
        self.talks.append((name, self.is_on))
        workers = "78" if self._strays else "77"
        return [
            Turn(
                Chat(name, model, "hello", streamed=False),
                Answer(200, {}, "words", {}),
                Verdict(Pin("dynamo", worker, 0), None, self._complaint),
                {},
            )
            for worker in workers
        ]

    def run(self) -> int:
        return PrefixShow("http://router", {"7": "agg-1"}, self.turn_kv, self.said.append).run()


def test_conversations_are_held_under_the_settings_that_are_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(monkeypatch)
    assert router.run() == 0
    assert router.switches == [False, True]
    assert [is_on for _, is_on in router.talks] == [True, True, False, False, True, True]
    assert len({name for name, _ in router.talks}) == 6


def test_turns_that_stray_count_only_where_picks_know_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Router(monkeypatch, strays=True).run() == 4


def test_turn_with_a_complaint_is_told_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(monkeypatch, complaint="status 503")
    assert router.run() == 12
    assert "  FAILED  status 503" in router.said


def test_router_that_takes_nothing_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(monkeypatch)
    monkeypatch.setattr(prefix_show, "RELOAD_S_MAX", 0)
    router.turn_kv(False)
    router.is_on = False
    with pytest.raises(NotTakenUp, match="taken up dynamo"):
        router.run()
