"""Many models served by the mockers of one process; runs in the interpreter of a Dynamo release.

    python tests/live/mock_models.py NAMESPACE MODEL_FOLDER ...

Each folder is a model called like it, on an endpoint of its own. It is Dynamo's own mocker,
started through the function behind `python -m dynamo.mocker`, once for each model: a
process for each of fifty models would take minutes to start.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path


async def serve(namespace: str, folders: list[Path]) -> None:
    """Every folder's model until the process is told to end."""
    args = importlib.import_module("dynamo.mocker.args")
    config = importlib.import_module("dynamo.mocker.config")
    mocker = importlib.import_module("dynamo.mocker.main")
    serving = []
    for number, folder in enumerate(folders):
        options = args.parse_args(
            [
                "--model-path", str(folder),
                "--model-name", folder.name,
                "--endpoint", f"dyn://{namespace}.model{number}.generate",
                "--disaggregation-mode", "agg",
                "--block-size", "16",
                "--num-gpu-blocks-override", "1024",
                "--speedup-ratio", "0",
                "--kv-bytes-per-token", "1024",
                "--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq",
            ]
        )  # fmt: skip
        engine = config.apply_worker_engine_args_overrides(
            config.load_mocker_engine_args(options), kv_bytes_per_token=options.kv_bytes_per_token
        )
        serving.append(asyncio.create_task(mocker.launch_workers(options, engine)))
    await asyncio.gather(*serving)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], [Path(folder) for folder in sys.argv[2:]]))
