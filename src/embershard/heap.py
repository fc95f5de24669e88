"""Has a process keep the memory that it has had."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""What glibc's `mallopt` calls them (malloc.h)."""
_BLOCK_BYTES, _KEPT_BYTES = 2**25, 2**28
"""Blocks up to so large (glibc allows no more) come from memory that stays with the process, of which so much may be
free. Tables are larger: they go back when they are let go."""


def keep_freed_memory() -> None:
    """Has this process keep up to 256 MiB that it has freed; call it once, at the start.

    It is worth it where megabytes are looked up at a time: answers are large blocks that live for a moment. By itself
    glibc gets each from the kernel and gives it back, and clearing its pages takes longer than filling them (see
    mallopt(3)). Servers do it by themselves. Elsewhere than on glibc, nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
