"""Small files that somebody else writes, and may make something else of: what is read of them keeps nobody waiting."""

from __future__ import annotations

import os
import stat
from pathlib import Path

LARGEST = 2**20
"""Bytes."""


def read_small(path: Path) -> bytes:
    """What a file has.

    Raises:
        OSError: it can't be read; is no file but a pipe, say, which might never end; or has more than `LARGEST` bytes.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "is no regular file")
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise OSError(0, f"has more than {LARGEST:,} bytes")
    return data
