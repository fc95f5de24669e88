"""Makes the next items on a thread while the last ones are used."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_END = object()


def ahead(items: Generator[_Item], depth: int) -> Generator[_Item]:
    """The same items, up to `depth` of which are made before they are asked for.

    What making one raises is raised when it is asked for. Closing ends the thread, once the item that is being made is
    there.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="ahead")
    try:
        made = deque(thread.submit(next, items, _END) for _ in range(depth))
        while (item := made.popleft().result()) is not _END:
            made.append(thread.submit(next, items, _END))
            yield item  # type: ignore[misc]  # it isn't _END
    finally:
        thread.shutdown(cancel_futures=True)
        items.close()
