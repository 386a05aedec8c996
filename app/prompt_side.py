"""The part of a process that reads prompts: files, render processes and tokenizers, put together.

Template engines and tokenizers come with the extra picklog[kv]; nothing of them is imported before
settings ask for prefix-aware picks, so that a process without the extra starts all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog

from router.metrics import RouterMetrics
from router.prompt.artifacts import ArtifactResult, ArtifactStore
from router.settings import PromptSettings

_log = structlog.get_logger("picklog.artifacts")


def prompt_maker(metrics: RouterMetrics) -> Callable[[PromptSettings], Any]:
    """What makes the reader of prompts when settings ask for the first time. Call it on the event loop."""

    def make(settings: PromptSettings) -> Any:
        from router.prompt.prompt_blocks import PromptBlocks
        from router.prompt.prompts import Prompts

        store = ArtifactStore(
            settings.artifacts,
            time.monotonic,
            _log.warning,
            lambda result: metrics.artifact(ArtifactResult(result)),
        )
        return Prompts(settings, store, PromptBlocks(settings.engine), metrics)

    return make
