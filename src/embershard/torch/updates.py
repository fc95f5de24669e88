"""The updates of one trainer: sent one after the other, in the order in which they were made."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embershard.errors import EmbershardError, InternalError, InvalidInput
from embershard.torch.batches import Batches

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Update:
    """What one backward pass has of gradients."""

    batches: Batches
    """By feature."""
    gradients: Mapping[str, NDArray[np.float32]]
    """{feature: [N or B, D]}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far the updates have come."""

    settled: int
    """So many aren't on their way any more."""
    version: int
    """The service has applied them in this version at the latest; 0: there were none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Failure:
    error: Exception
    features: str
    """Of the update that failed."""
    dropped: int
    """Updates that were made after it."""

    def told(self, refused: int) -> EmbershardError:
        """For whoever calls next, and may bring an update that isn't sent any more."""
        doubt = "" if isinstance(self.error, InvalidInput) else ", and may have been applied or not"
        lost = self.dropped + refused
        dropped = f"; {lost:,} that followed it weren't sent" if lost else ""
        kind = type(self.error) if isinstance(self.error, EmbershardError) else InternalError
        return kind(f"an update of {self.features} has failed{doubt}{dropped}: {self.error}")


class Updates:
    """Sends updates on a thread of its own, once each.

    One that fails takes those behind it along; whoever calls next is told, and what is made from then on is sent again.
    """

    def __init__(self, deliver: Callable[[Update], int]) -> None:
        """`deliver` sends an update until it is answered, and returns the version made."""
        self._deliver = deliver
        self._sender = ThreadPoolExecutor(1, "embershard-updates")
        self._changed = threading.Condition()
        self._waiting: deque[Update] = deque()
        self._made = self._version = 0
        self._failure: _Failure | None = None

    @property
    def made(self) -> int:
        """How many there were."""
        return self._made

    def send(self, update: Update) -> None:
        """Has it sent after all others.

        Raises:
            EmbershardError: an earlier one has failed; this one isn't sent.
        """
        with self._changed:
            self._raise_failure(refused=1)
            self._waiting.append(update)
            self._made += 1
            self._sender.submit(self._send_next)

    def wait(self, most: int) -> Progress:
        """Until at most so many are on their way.

        Raises:
            EmbershardError: one has failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or len(self._waiting) <= most)
            self._raise_failure()
            return self._progress()

    def settled(self, number: int) -> Progress:
        """Once the first so many aren't on their way any more: answered, or lost, which isn't told here."""
        with self._changed:
            self._changed.wait_for(lambda: self._made - len(self._waiting) >= number)
            return self._progress()

    def close(self) -> None:
        """Once all are answered, or one has failed, which isn't told here."""
        self._sender.shutdown()

    def _progress(self) -> Progress:
        return Progress(settled=self._made - len(self._waiting), version=self._version)

    def _raise_failure(self, refused: int = 0) -> None:
        failure, self._failure = self._failure, None
        if failure:
            raise failure.told(refused) from failure.error

    def _send_next(self) -> None:
        with self._changed:
            if not self._waiting:  # it was taken along by one that failed
                return
            update = self._waiting[0]
        try:
            version = self._deliver(update)
        except Exception as error:  # whatever it is, the trainer must hear of it
            with self._changed:
                features = ", ".join(map(repr, update.batches))
                self._failure = _Failure(error=error, features=features, dropped=len(self._waiting) - 1)
                self._waiting.clear()
                self._changed.notify_all()
        else:
            with self._changed:
                self._waiting.popleft()
                self._version = version
                self._changed.notify_all()
