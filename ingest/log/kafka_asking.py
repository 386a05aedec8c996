"""Asking for a topic makes none.

Brokers make a topic that a client asks for, with settings of their own, unless the question says otherwise;
so they do as Kafka comes (`auto.create.topics.enable=true`), and the library's questions do not say
otherwise. A log's topic would be there with a week's retention and too small messages before
Picklog could make it, and one that was removed would come back empty by itself. Both is refused then.

The library has no option for it, so its two modules that ask are given a question that says so. That leans on
its inside (of 0.14, the oldest that the extra takes); where it is another one, `ask_only` says so and leaves
it as it is.
"""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any

import aiokafka.admin.client
import aiokafka.client
from aiokafka.protocol.metadata import MetadataRequest

_FLAG = "allow_auto_topic_creation"
_ASKING: Any = (aiokafka.client, aiokafka.admin.client)


def ask_only() -> bool:
    """Let no client of this process make a topic by asking for it. False where the library is another one."""
    if not _knows_flag():
        return False
    for module in _ASKING:
        if module.MetadataRequest is MetadataRequest:
            module.MetadataRequest = partial(MetadataRequest, **{_FLAG: False})
    return True


def _knows_flag() -> bool:
    try:
        return _FLAG in signature(MetadataRequest).parameters and all(
            callable(getattr(module, "MetadataRequest", None)) for module in _ASKING
        )
    except (TypeError, ValueError):  # a list of versions, as it was before
        return False
