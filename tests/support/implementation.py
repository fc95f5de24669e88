"""An engine of either kind as one thing to drive from a test: one contribution a rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from embershard.config import Config
from embershard.engine.growth import Growth
from embershard.types import FeatureBatch, FeatureUpdate
from support.ranks import Ranks
from support.subject import Subject, local

Array = np.ndarray[Any, Any]


class Implementation:
    """The local engine in this process, or the sharded engine on real ranks."""

    def __init__(self, ranks: Ranks | None) -> None:
        self._ranks, self.size = ranks, ranks.size if ranks else 1
        self.local = ranks is None
        self._subject: Subject | None = None

    def build(self, config: Config) -> None:
        if self._ranks:
            self._ranks.build(config)
        else:
            self._subject = local(config)

    def lookup(self, batches: Sequence[Sequence[FeatureBatch]], now_s: int | None = None) -> list[list[Array]]:
        return self._each("lookup", [[of_rank, now_s] for of_rank in batches])

    def as_stored(self, batches: Sequence[Sequence[FeatureBatch]]) -> list[list[Array]]:
        return self._each("as_stored", [[of_rank] for of_rank in batches])

    def provenance(self, batches: Sequence[Sequence[FeatureBatch]], now_s: int | None = None) -> list[list[Array]]:
        return self._each("provenance", [[of_rank, now_s] for of_rank in batches])

    def counts(self, batches: Sequence[Sequence[FeatureBatch]]) -> list[list[tuple[Array, Array]]]:
        return self._each("counts", [[of_rank] for of_rank in batches])

    def update(self, updates: Sequence[Sequence[FeatureUpdate]], now_s: int | None = None) -> None:
        self._each("update", [[of_rank, now_s] for of_rank in updates])

    def learn(self, updates: Sequence[Sequence[FeatureUpdate]]) -> list[list[Array]]:
        return self._each("learn", [[of_rank] for of_rank in updates])

    def grow(self, table: str, rows: int, **start: Any) -> None:
        self._each("grow", [[Growth(table=table, rows=rows, **start)]] * self.size)

    def grow_between(self, table: str, rows: int, updates: Sequence[Sequence[Sequence[FeatureUpdate]]]) -> None:
        """Grows a table while updates come between the slices that are copied."""
        self._each("grow_between", [[table, rows, [update[rank] for update in updates]] for rank in range(self.size)])

    def freeze(self, batch: FeatureBatch, *, frozen: bool = True) -> None:
        self._each("freeze", [[batch, frozen]] * self.size)

    def vocabularies(self) -> list[dict[str, dict[str, Any]]]:
        """Of every rank."""
        return self._each("vocabularies", [[]] * self.size)

    def state(self) -> dict[str, Array]:
        return dict(self._each("state", [[]] * self.size)[0])

    def save(self, folder: object, version: int, kept: int = 3) -> str:
        return str(self._each("save", [[str(folder), version, kept]] * self.size)[0])

    def begin(self, folder: object, version: int) -> None:
        self._each("begin", [[str(folder), version]] * self.size)

    def step(self) -> list[bool]:
        return self._each("step", [[]] * self.size)

    def saved(self) -> str:
        return str(self._each("saved", [[]] * self.size)[0])

    def watched(self) -> list[bool]:
        return self._each("watched", [[]] * self.size)

    def load(self, path: str, beside: str | None = None) -> int:
        return int(self._each("load", [[path, beside]] * self.size)[0])

    def full(self, target: str, path: str) -> Any:
        return self._each("full", [[target, path]] * self.size)[0]

    def delta(self) -> Any:
        return self._each("delta", [[]] * self.size)[0]

    def pids(self) -> list[int]:
        """Of the ranks' processes."""
        assert self._ranks
        return self._ranks.pids

    def on_first(self, item: Any) -> list[Any]:
        """What rank 0 brings, and nothing from the others."""
        return [item, *([[]] * (self.size - 1))]

    def _each(self, method: str, arguments: Sequence[Sequence[Any]]) -> list[Any]:
        if self._ranks:
            return self._ranks.each(method, arguments)
        return [getattr(self._subject, method)(*arguments[0])]
