"""Files that are read again when they have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Stamp = tuple[int, ...] | None
"""When a file was written, and when anything about it changed, its size and its inode; None: it isn't there."""


def stamp_of(file: Path) -> Stamp:
    """What changes with a file; to be asked before it is read, so that no change is missed."""
    try:
        told = file.stat()
    except OSError:
        return None
    return told.st_mtime_ns, told.st_ctime_ns, told.st_size, told.st_ino
