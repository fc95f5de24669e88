"""Waiting for what nobody announces."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

PAUSE_S: Final = 0.02
"""Between two looks: whoever is waited for needs the cores, too."""


def eventually(wanted: Callable[[], bool], timeout_s: float = 30) -> None:
    """Looks again and again until it is so; an error if it isn't in time."""
    ends_s, pause = time.monotonic() + timeout_s, threading.Event()
    while not wanted():
        assert time.monotonic() < ends_s, f"it still isn't so after {timeout_s} s"
        pause.wait(PAUSE_S)
