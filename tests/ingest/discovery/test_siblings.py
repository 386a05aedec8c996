"""Which warnings about similar namespaces are due."""

from __future__ import annotations

import pytest

from ingest.discovery.siblings import SiblingNamespaces
from ingest.discovery.source import EndReason, SourceFailed
from tests.ingest.discovery.scripted_source import MemoryStore, ScriptedSession, ScriptedSource

pytestmark = pytest.mark.looptime


async def test_each_set_of_names_is_said_once_and_again_after_there_was_an_instance() -> None:
    store = MemoryStore()
    store.write("v1/instances/prod-a/b/generate/1", b"{}")
    session, siblings, instances = ScriptedSession(ScriptedSource(store)), SiblingNamespaces(), 0

    async def said() -> list[str]:
        notices = await siblings.look(session, ("prod",), lambda namespace: instances)
        return [notice.detail for notice in notices]

    assert await said() == ["prod: prod-a"]
    assert await said() == []
    store.write("v1/instances/prod2/b/generate/1", b"{}")
    assert await said() == ["prod: prod-a, prod2"]
    instances = 1
    assert await said() == []
    instances = 0
    assert await said() == ["prod: prod-a, prod2"]


@pytest.mark.parametrize("fault", [SourceFailed(EndReason.STREAM), ZeroDivisionError(), 3_600.0])
async def test_question_that_fails_or_hangs_says_nothing(fault: BaseException | float) -> None:
    store = MemoryStore()
    store.write("v1/instances/prod-a/b/generate/1", b"{}")
    source = ScriptedSource(store)
    source.faults["siblings"] = [fault]
    siblings = SiblingNamespaces()
    assert await siblings.look(ScriptedSession(source), ("prod",), lambda namespace: 0) == []
    assert len(await siblings.look(ScriptedSession(source), ("prod",), lambda namespace: 0)) == 1
