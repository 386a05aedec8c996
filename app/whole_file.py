"""Files that people asked for: there when all of it was written, and not at all otherwise.

Written under a temporary name beside the real one and renamed. What goes wrong is told under the
name that was asked for, not under the temporary one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The name to write under; renamed to `path` at the end of the block. Raises OSError."""
    unfinished = unfinished_name(path)
    try:
        with told_as(path):
            yield unfinished
            unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def unfinished_name(path: Path) -> Path:
    """A temporary name beside `path`. Raises IsADirectoryError where a folder stands in its place."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def told_as(path: Path) -> Iterator[None]:
    """Let an OSError of the file that will be `path` name it."""
    try:
        yield
    except OSError as problem:
        if problem.errno is None:
            raise
        raise OSError(problem.errno, problem.strerror, str(path)) from problem
