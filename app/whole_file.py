"""Files that people asked for: there when all of it was written, and not at all otherwise.

Written under a temporary name beside the real one and renamed. What goes wrong is told under the
name that was asked for, not under the temporary one. Of a link the file is replaced that it leads to;
a device or a pipe cannot be replaced and is refused: renaming would put a file in its place.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME_BYTES_KEPT = 200  # of a name, in its temporary one: file systems take 255


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The name to write under; renamed to `path` at the end of the block. Raises OSError."""
    unfinished = unfinished_name(path)
    try:
        with told_as(path):
            yield unfinished
            unfinished.replace(target_of(path))
    finally:
        unfinished.unlink(missing_ok=True)


def unfinished_name(path: Path) -> Path:
    """A temporary name beside `path`. Raises OSError where a folder, device or pipe stands in its place."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no ordinary file: name one that may be replaced", str(path))
    target = target_of(path)
    kept = os.fsdecode(os.fsencode(target.name)[:NAME_BYTES_KEPT])
    return target.with_name(f".{kept}.{os.getpid()}.tmp")


def target_of(path: Path) -> Path:
    """The file that is written: where a link leads to, which need not be there."""
    return Path(os.path.realpath(path))


@contextmanager
def told_as(path: Path) -> Iterator[None]:
    """Let an OSError of the file that will be `path` name it."""
    try:
        yield
    except OSError as problem:
        if problem.errno is None:
            raise
        raise OSError(problem.errno, problem.strerror, str(path)) from problem
