"""Checksums of the tiny model's files, as they stand under `dynamo.kv.pinned_artifacts`.

A pin says: this file was reviewed. The tiny model is a part of this repository and is reviewed with it, so
what lies here is what may be pinned; a worker that advertises anything else gets no prefix-aware picks.
"""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from deploy.demo.fleet_plan import TINY_MODEL

PINNED_FILES = ("tokenizer.json", "tokenizer_config.json")


def pins_of(model_dir: Path = TINY_MODEL) -> tuple[str, ...]:
    """One `blake3:<64 hex digits>` for each of PINNED_FILES, in that order."""
    return tuple(f"blake3:{blake3((model_dir / name).read_bytes()).hexdigest()}" for name in PINNED_FILES)
