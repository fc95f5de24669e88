"""A collection on a real engine, as a test drives it; the same code in this process and on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embershard.config import Config
from embershard.engine.base import Engine
from embershard.engine.freezing import freeze
from embershard.engine.growth import Growing, Growth, grow
from embershard.engine.local import LocalEngine
from embershard.engine.session import Session
from embershard.engine.steps import look_up
from embershard.engine.touched import Touched
from embershard.engine.work import Agreement, work_of_reads
from embershard.engine.world import SoloWorld
from embershard.publisher import Publisher
from embershard.store import snapshot
from embershard.store.manifest import open_snapshot
from embershard.types import FeatureBatch, FeatureUpdate


class Subject:
    """One rank's engine; every method is joint."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.session = engine, Session(engine)

    def lookup(self, batches: Sequence[FeatureBatch], now_s: int | None = None) -> list[np.ndarray[Any, Any]]:
        return [vectors.cpu().numpy() for vectors in self.session.lookup(batches, now_s=now_s).vectors]

    def as_stored(self, batches: Sequence[FeatureBatch]) -> list[np.ndarray[Any, Any]]:
        """As `lookup`, but of int8 rows the bytes, where nothing is done with them."""
        read = self.session.collection.read(batches, as_stored=True)
        work, _, _ = Agreement(self.engine)(work_of_reads([read], []), 0)
        (found,) = look_up(self.engine, [read], [], work)
        return [vectors.cpu().numpy() for vectors in found.vectors]

    def provenance(self, batches: Sequence[FeatureBatch], now_s: int | None = None) -> list[np.ndarray[Any, Any]]:
        found = self.session.lookup(batches, with_counts=True, now_s=now_s).counts
        return [counts.provenance_N for counts in found]

    def counts(self, batches: Sequence[FeatureBatch]) -> list[tuple[Any, Any]]:
        """Updates and sightings of each id."""
        found = self.session.lookup(batches, with_counts=True).counts
        return [(counts.updates_N, counts.sightings_N) for counts in found]

    def update(self, updates: Sequence[FeatureUpdate], now_s: int | None = None) -> None:
        self.session.update(updates, now_s=now_s)

    def learn(self, updates: Sequence[FeatureUpdate]) -> list[np.ndarray[Any, Any]]:
        """As `update`, and as training does it: by a loss whose gradients these are. Returns the vectors."""
        from embershard.train.tables import Tables

        tables = Tables(self.engine)
        vectors = tables(tables.read([update.batch for update in updates]))
        size = self.engine.world.size  # the gradient is to be the sum over ranks, and training takes the mean
        loss = sum((vectors[u.batch.feature] * torch.from_numpy(u.gradients) * size).sum() for u in updates)
        loss.backward()
        tables.move()
        return [vectors[update.batch.feature].detach().numpy() for update in updates]

    def grow(self, growth: Growth) -> None:
        grow(self.engine, growth)

    def grow_between(self, table: str, rows: int, updates: Sequence[Sequence[FeatureUpdate]]) -> None:
        growing = Growing(self.engine, {table: rows})
        growing.make()
        growing.seed()
        for update in updates[:3]:
            self.update(update)
        growing.copy()
        for update in updates[3:]:
            self.update(update)
        growing.finish()

    def freeze(self, batch: FeatureBatch, frozen: bool) -> None:
        freeze(self.engine, batch, frozen=frozen)

    def vocabularies(self) -> dict[str, dict[str, Any]]:
        """The whole state of each."""
        return {name: vocabulary.state() for name, vocabulary in self.engine.vocabularies.items()}

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Every tensor whole, its shards one after the other."""
        mine = {name: view.cpu().numpy().copy() for name, view in self.engine.tensors().items()}
        parts = self.engine.world.gather(mine)
        return {name: np.concatenate([part[name] for part in parts]) for name in mine}

    def save(self, folder: str, version: int, kept: int = 3) -> str:
        return str(snapshot.save(self.engine, None, version, Path(folder), keeping=snapshot.Keeping(kept=kept)).path)

    def begin(self, folder: str, version: int) -> None:
        """As `save`, but its slices are copied one by one, by `step`."""
        self.saving = snapshot.begin(self.engine, None, version, Path(folder), keeping=snapshot.Keeping(kept=3))

    def step(self) -> bool:
        return self.saving.step()

    def saved(self) -> str:
        """Copies what is left, and waits until it is written."""
        self.saving.drain()
        return str(self.saving.done.result(60).path)

    def watched(self) -> bool:
        """Whether anything still watches rows."""
        return any(shard.watchers for shard in self.engine.shards.values())

    def load(self, path: str, beside: str | None = None) -> int:
        return snapshot.load(self.engine, open_snapshot(Path(path)), beside=beside)

    def full(self, target: str, path: str) -> Any:
        """Publishes a snapshot, and watches from now on what is to follow."""
        self.publisher = Publisher(target, publisher="run", world=self.engine.world, timeout_s=60)
        self.touched = Touched(self.engine)
        return self.publisher.full(open_snapshot(Path(path)))

    def delta(self) -> Any:
        """Publishes what has changed since."""
        return self.publisher.delta(self.touched.take())

    def meet(self, key: str, item: Any, timeout_s: float) -> list[Any]:
        return self.engine.world.meet(key, item, timeout_s=timeout_s)


def local(config: Config) -> Subject:
    """A subject on the local engine, in this process."""
    return Subject(LocalEngine(config, SoloWorld()))
