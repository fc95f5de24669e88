"""An engine without a service around it: for training, tools, tests and benchmarks, in one process or on several."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from embershard.collection import Collection
from embershard.engine import steps
from embershard.engine.work import Agreement, work_of_change, work_of_reads

if TYPE_CHECKING:
    from embershard.engine.base import Engine
    from embershard.engine.steps import Found
    from embershard.types import FeatureBatch, FeatureUpdate


class Session:
    """Looks up and updates, one step after the other; every method is joint."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._agree = Agreement(engine)

    @property
    def collection(self) -> Collection:
        """What checks batches."""
        return Collection(self.engine.config)

    def lookup(self, batches: Sequence[FeatureBatch], *, with_counts: bool = False, now_s: int | None = None) -> Found:
        """The vectors of ids; `now_s` is the time if it isn't now; rank 0's counts.

        Raises:
            InvalidInput: as `Collection.read`; before the joint part, so that every rank must bring good ids.
        """
        read = self.collection.read(batches)
        curious = [read] if with_counts else []
        work, now_s, _ = self._agree(work_of_reads([read], curious), _time(now_s))
        steps.sight(self.engine, [read], work, now_s)
        return steps.look_up(self.engine, [read], curious, work)[0]

    def update(self, updates: Sequence[FeatureUpdate], *, now_s: int | None = None) -> None:
        """Applies gradients, values and parents; `now_s` is the time if it isn't now; rank 0's counts.

        Raises:
            InvalidInput: as `Collection.change`.
            EmbershardError: why none of this rank's part could be done.
        """
        change = self.collection.change(updates)
        work, now_s, _ = self._agree(work_of_change(change), _time(now_s))
        if refusal := steps.update(self.engine, change, work, now_s):
            raise refusal


def _time(given_s: int | None) -> int:
    return int(time.time()) if given_s is None else given_s
