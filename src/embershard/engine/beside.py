"""Work beside the tick: what takes long, and nobody waits for by the millisecond."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

SLICE_BYTES = 2**20
"""What is worked on at a time, here or between two ticks: half a millisecond's work."""
NICE, NICEST = 10, 19
"""How much more it gives way than the threads that answer callers, and how much at most; as `nice` counts."""
REST, LONGEST_S = 2, 0.1
"""It rests for so many times as long as it has computed, as niceness alone doesn't take a core from it at once; at most
for so long."""

_Item = TypeVar("_Item")
_freeing: list[threading.Thread] = []


def beside(name: str, work: Callable[[], object]) -> threading.Thread:
    """Does it on a thread of its own, which doesn't keep the process."""

    def give_way() -> None:
        if sys.platform == "linux":  # where a thread has a niceness of its own
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, min(os.getpriority(os.PRIO_PROCESS, thread) + NICE, NICEST))
        work()

    thread = threading.Thread(target=give_way, name=name, daemon=True)
    thread.start()
    return thread


def rest_s(spent_s: float) -> float:
    """How long to rest after so long."""
    return min(REST * spent_s, LONGEST_S)


class Rest:
    """Of a thread beside the tick, which calls it after each piece of its work."""

    def __init__(self, hurry: threading.Event | None = None) -> None:
        self._hurry = hurry or threading.Event()
        self._begin_s = time.thread_time()

    def __call__(self) -> None:
        """Rests, unless it is to hurry."""
        self._hurry.wait(rest_s(time.thread_time() - self._begin_s))
        self._begin_s = time.thread_time()

    def between(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """The items; who makes them and works on them rests after each."""
        for item in items:
            yield item
            self()


def let_go(holder: list[Any]) -> None:
    """Frees what only this list still has, some time later: to unmap a large table takes longer than a lookup may wait.

    Whoever needs the memory calls `freed` before.
    """
    _freeing[:] = [thread for thread in _freeing if thread.is_alive()] + [beside("freeing", holder.clear)]


def freed() -> None:
    """Waits until what was let go is free."""
    for thread in [*_freeing]:
        thread.join()


atexit.register(freed)  # a thread that frees tensors while the interpreter ends would abort the process


def without_frames(error: BaseException) -> BaseException:
    """The error without where it came from, so that it doesn't keep alive what was worked on there."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
