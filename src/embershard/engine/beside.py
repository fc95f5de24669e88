"""Work beside the tick: what takes long, and nobody waits for by the millisecond."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

NICE = 10
"""How far it gives way, as `nice` does: to the threads that answer callers."""
REST, LONGEST_S = 2, 0.1
"""It rests for so many times as long as it has computed, as niceness alone doesn't take a core from it at once; at most
for so long."""

_Item = TypeVar("_Item")


def beside(name: str, work: Callable[[], object]) -> None:
    """Does it on a thread of its own, which doesn't keep the process."""

    def give_way() -> None:
        if sys.platform == "linux":  # where a thread has a niceness of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        work()

    threading.Thread(target=give_way, name=name, daemon=True).start()


class Rest:
    """Of a thread beside the tick, which calls it after each piece of its work."""

    def __init__(self, hurry: threading.Event | None = None) -> None:
        self._hurry = hurry or threading.Event()
        self._begin_s = time.thread_time()

    def __call__(self) -> None:
        """Rests, unless it is to hurry."""
        self._hurry.wait(min(REST * (time.thread_time() - self._begin_s), LONGEST_S))
        self._begin_s = time.thread_time()

    def between(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """The items; who makes them and works on them rests after each."""
        for item in items:
            yield item
            self()


def let_go(holder: list[Any]) -> None:
    """Frees what only this list still has: to unmap a large table takes longer than any lookup may wait."""
    beside("freeing", holder.clear)
