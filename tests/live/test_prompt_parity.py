"""Prompts as a real frontend renders and encodes them, for every template of the corpus, in both engines.

The frontend says what it made of a chat (`nvext.annotations`). What we make of the same body is
compared, text and token ids. Where we agree with the newest release in every case, minijinja is
the engine that picks use.
"""

from __future__ import annotations

from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from projections.events.picks import KvResult
from tests.live import peers
from tests.live.template_fleet import answers
from tests.router.prompt.conversations import CONVERSATIONS, TEMPLATES
from tests.router.prompt.prompts_of import asked, files_of, prompt_blocks, read
from tests.router.prompt.test_chat_template import PRINTED

RELEASE = "1.6.1"


@pytest.fixture(scope="module")
def frontend_rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the frontend answers: one row a template and conversation."""
    peers.require_dynamo(RELEASE)
    folder: Path = tmp_path_factory.mktemp("parity")
    return list(answers(RELEASE, folder))


@pytest.mark.live("dynamo")
@pytest.mark.req("RND-02")
@pytest.mark.field("B-116", "B-117", "B-118")
@pytest.mark.parametrize("engine", ["minijinja", "jinja2"])
async def test_prompts_have_the_frontends_own_tokens(
    frontend_rows: list[dict[str, Any]], engine: str
) -> None:
    outcome: Counter[str] = Counter()
    differing: set[tuple[str, str]] = set()
    async with prompt_blocks(engine) as blocks:
        for row in frontend_rows:
            files = files_of((TEMPLATES / f"{row['template']}.jinja").read_text())
            result = await read(blocks, asked(CONVERSATIONS[row["case"]], files=files))
            ours = result.token_ids if result.result is KvResult.READY else None
            theirs = array("I", row["token_ids"]).tobytes() if row["status"] == 200 else None
            if ours == theirs:
                outcome["same tokens" if ours is not None else "refused by both"] += 1
            else:
                outcome["differ"] += 1
                differing.add((row["template"], row["case"]))
    print(f"{engine}: {dict(outcome)}; differing: {sorted({name for name, _ in differing})}")
    assert outcome["same tokens"] > 1000
    if engine == "minijinja":
        assert not differing
    else:
        assert {name for name, _ in differing} <= PRINTED
