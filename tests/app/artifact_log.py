"""A log on disk whose workers name files, for tests of `picklog artifacts`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blake3 import blake3

from projections.events.control import ConfigAdopted
from projections.events.discovery import KeyPut, Keyspace
from router.prompt.artifact_cache import checksum_of
from tests.app.log_on_disk import written
from tests.replay.recorded_log import SETTINGS, RecordedLog

TOKENIZER = b'{"model": {"vocab": {}}}'
TEMPLATE = "{% for m in messages %}\n\x1b[31m{{ m.content }}\u202e\n{% endfor %}"
CONFIG = json.dumps({"bos_token": "<s>", "chat_template": TEMPLATE}).encode()


def slots(
    folder: Path | str, tokenizer: bytes = TOKENIZER, config: bytes = CONFIG, **more: Any
) -> dict[str, Any]:
    """The slots of a card whose files lie in a folder."""

    def file(name: str, data: bytes) -> dict[str, Any]:
        return {"path": f"{folder}/{name}", "checksum": checksum_of(data), "size": len(data)}

    return {
        "tokenizer": {"hf_tokenizer_json": file("tokenizer.json", tokenizer)},
        "prompt_formatter": {"hf_tokenizer_config_json": file("tokenizer_config.json", config)},
        **more,
    }


def fleet_log(
    data: Path, workers: list[tuple[str, dict[str, Any]]], kv: dict[str, Any] | None = None
) -> Path:
    """A data directory whose log has a worker for each (model, slots), numbered from 1."""
    world = RecordedLog(workers=0, adopt=False)
    settings = json.dumps({"dynamo": {"kv": kv if kv is not None else {}}})
    world.say(ConfigAdopted(1, "start", b"d", settings, SETTINGS))
    for number, (model, named) in enumerate(workers, 1):
        key = f"backend/generate/{number:x}"
        names = {"component": "backend", "endpoint": "generate", "instance_id": number}
        card = {"display_name": model, "worker_type": "aggregated", "kv_cache_block_size": 16, **named}
        for keyspace, document in (
            (Keyspace.INSTANCES, {"type": "Endpoint", **names}),
            (Keyspace.CARDS, {"type": "Model", **names, "card_json": card}),
        ):
            value = json.dumps(document).encode()
            digest = blake3(value).digest()
            world.say(KeyPut(int(keyspace), "dynamo", key, number, value, len(value), digest))
    return written(world, data)
