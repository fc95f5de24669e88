"""The connection of one trainer to the service: what its modules read and send goes through here."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embershard.client import Client, Security
from embershard.client.delivery import Waits
from embershard.client.sync import client_of
from embershard.errors import EmbershardError, FingerprintMismatch, InvalidInput, Unavailable
from embershard.torch.batches import Batches, bags, one_each, parts, same
from embershard.torch.limits import Limits
from embershard.torch.passes import Passes
from embershard.torch.updates import Progress, Update, Updates
from embershard.types import FeatureBatch, Rows
from embershard.v1 import embershard_pb2 as pb

TIMEOUT_S = 60.0
"""How long a call is repeated while the service is away: it may start again meanwhile."""

_Vectors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Prefetch:
    """A lookup that was begun for a batch to come."""

    batches: dict[str, FeatureBatch]
    """What no forward has taken yet, by feature."""
    answer: Future[tuple[Progress, _Vectors]]
    """The vectors, and how far the trainer's own updates had come that they have for certain."""


class Remote:
    """A trainer's connection to one front end, which its modules share.

    `service` is HOST:PORT, for which `security` is as a client has it, or a client that the caller closes. With
    `fingerprint`, another collection is refused here; one that takes this one's place later always is.

    With `staleness` 0, backward returns once its update is applied, and the next forward reads it. With s > 0, backward
    returns at once, and a forward reads all of this trainer's own updates but the last s at most: it waits until no
    more than s are unanswered. What other trainers have sent is read as it comes.

    A call is repeated for `timeout_s` seconds while the service is away or overloaded, and an update is applied once.
    One that fails for good is told by the next forward, backward or `flush`, with those behind it that weren't sent.

    Raises:
        InvalidInput: an address that is none, or a staleness below 0.
        FingerprintMismatch: the service has another collection.
        Unavailable: the service isn't there.
    """

    def __init__(
        self,
        service: str | Client,
        *,
        staleness: int = 0,
        fingerprint: str = "",
        timeout_s: float = TIMEOUT_S,
        security: Security | None = None,
    ) -> None:
        if staleness < 0:
            raise InvalidInput(f"staleness {staleness} is no number of updates; 0 waits for each")
        self.staleness = staleness
        self._timeout_s, self._closed = timeout_s, False
        self._client, self._owns_client = client_of(service, security)
        try:
            self.description = self._described(fingerprint)
        except EmbershardError:
            self._close_client()
            raise
        self._limits = Limits(self.description)
        self._table_of = {feature: table for table in self.description.tables for feature in table.features}
        self.passes = Passes(self._send)
        self._updates = Updates(self._deliver)
        self._ahead = ThreadPoolExecutor(1, "embershard-prefetch")
        # A loop that asks for the next batch before it uses this one has one more than may be as stale as that.
        self._prefetched: deque[_Prefetch] = deque(maxlen=staleness + 2)
        self._taking = threading.Lock()

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __deepcopy__(self, _memo: object) -> Remote:
        """Itself: copies of a module share their rows, and so their connection."""
        return self

    def __repr__(self) -> str:
        return f"Remote({self._client.target!r}, collection={self.description.name!r}, staleness={self.staleness})"

    def close(self) -> None:
        """Waits for what is on its way, and ends the connection.

        Raises:
            EmbershardError: an update has failed.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
        finally:
            self._updates.close()
            self._ahead.shutdown(cancel_futures=True)
            self._close_client()

    def flush(self) -> int:
        """Waits until all updates are applied; returns the version that has them, 0 if there were none.

        Raises:
            EmbershardError: an update has failed.
        """
        return self._updates.wait(0).version

    def table(self, feature: str) -> pb.Table:
        """The table of a feature.

        Raises:
            InvalidInput: the collection has no such feature.
        """
        if feature not in self._table_of:
            raise InvalidInput(
                f"unknown feature {feature!r}; collection {self.description.name!r} has {', '.join(self._table_of)}"
            )
        return self._table_of[feature]

    def prefetch(self, features: Mapping[str, Any], *, include_last_offset: bool = False) -> None:
        """Begins the lookup of a batch to come: one call for all features, while this batch is worked on.

        Features are {feature: ids}, and of pooled ones {feature: ids}, {feature: (ids, offsets)} or {feature: (ids,
        offsets, weights)}: what their modules will be called with. A forward with the same takes the answer, if that
        lacks no more of this trainer's updates than `staleness`; any other is an ordinary lookup. The last staleness
        + 2 are kept. Just before the forwards of a batch, it still makes one call of theirs.

        Raises:
            InvalidInput: what the modules would refuse.
        """
        self._check_open()
        batches = {
            feature: self._batch(feature, given, include_last_offset=include_last_offset)
            for feature, given in features.items()
        }
        # One more update will be on its way, most likely, when the answer is used.
        needed = self._updates.made - max(self.staleness - 1, 0)
        answer = self._ahead.submit(self._look_up_after, batches, needed)
        with self._taking:
            self._prefetched.append(_Prefetch(batches=dict(batches), answer=answer))

    def look_up(self, batch: FeatureBatch) -> Tensor:
        """float32 [N or B, D]: the vectors of one feature's batch, prefetched or not.

        Raises:
            EmbershardError: the lookup has failed, or an update has.
        """
        self._check_open()
        progress = self._updates.wait(self.staleness)
        if prefetched := self._taken(batch):
            known, vectors = prefetched.answer.result()
            if self._updates.made - known.settled <= self.staleness:
                return vectors[batch.feature]
        return self._look_up({batch.feature: batch}, progress)[batch.feature]

    def _taken(self, batch: FeatureBatch) -> _Prefetch | None:
        """The oldest prefetch that has it, which from then on hasn't."""
        with self._taking:
            for prefetched in self._prefetched:
                waiting = prefetched.batches.get(batch.feature)
                if waiting is not None and same(waiting, batch):
                    del prefetched.batches[batch.feature]
                    return prefetched
        return None

    def _look_up_after(self, batches: Batches, needed: int) -> tuple[Progress, _Vectors]:
        progress = self._updates.settled(needed)
        return progress, self._look_up(batches, progress)

    def _look_up(self, batches: Batches, progress: Progress) -> _Vectors:
        """The vectors [N or B, D] by feature; where they are too many for one lookup, of several."""
        answers = [self._answer(piece, progress.version) for piece in self._limits.pieces(batches)]
        return {
            feature: torch.from_numpy(np.concatenate([answer[feature] for answer in answers if feature in answer]))
            for feature in batches
        }

    def _answer(self, batches: Batches, min_version: int) -> Rows:
        """One lookup, repeated while the service is away."""
        features = {feature: parts(batch) for feature, batch in batches.items()}
        deadline = time.monotonic() + self._timeout_s
        waits = Waits(deadline)
        while True:
            try:
                return self._client.lookup(
                    features,
                    min_version=min_version,
                    fingerprint=self.description.fingerprint,
                    timeout_s=max(deadline - time.monotonic(), 0.001),
                )
            except EmbershardError as error:
                time.sleep(waits.after(error))

    def _send(self, batches: Batches, gradients: Mapping[str, Any]) -> None:
        """What a backward pass ends with."""
        self._check_open()
        if passed := self._limits.passed(batches, with_gradients=True):
            raise InvalidInput(
                f"the gradients of one backward pass, for {', '.join(map(repr, batches))}, are one update, which is "
                f"applied as a whole, and pass limits.{passed}; take smaller batches, or raise the limit"
            )
        self._updates.send(Update(batches=batches, gradients=gradients))
        if not self.staleness:
            self._updates.wait(0)

    def _deliver(self, update: Update) -> int:
        return self._client.update(
            {feature: parts(batch) for feature, batch in update.batches.items()},
            gradients=update.gradients,
            fingerprint=self.description.fingerprint,
            timeout_s=self._timeout_s,
        )

    def _batch(self, feature: str, given: Any, *, include_last_offset: bool) -> FeatureBatch:
        """What a module makes of the same arguments."""
        if self.table(feature).pooling == pb.POOLING_NONE:
            return one_each(feature, given)
        arguments = given if isinstance(given, tuple) else (given,)
        return bags(feature, *arguments, include_last_offset=include_last_offset)

    def _described(self, fingerprint: str) -> pb.DescribeResponse:
        description = self._client.describe()
        if fingerprint and fingerprint != description.fingerprint:
            raise FingerprintMismatch(
                f"{self._client.target}: this is collection {description.name!r} with fingerprint "
                f"{description.fingerprint}, and the trainer expects {fingerprint!r}"
            )
        return description

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"{self._client.target}: this Remote is closed")

    def _close_client(self) -> None:
        if self._owns_client:
            self._client.close()
