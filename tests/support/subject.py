"""A collection on a real engine, as a test drives it; the same code in this process and on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embershard.collection import ByTable, Collection
from embershard.config import Config
from embershard.engine.base import Engine
from embershard.engine.local import LocalEngine
from embershard.engine.world import SoloWorld
from embershard.store import snapshot
from embershard.store.manifest import open_snapshot
from embershard.types import FeatureBatch, FeatureUpdate


class Subject:
    """One rank's engine; every method is joint."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.collection = engine, Collection(engine.config)

    def lookup(self, batches: Sequence[FeatureBatch]) -> list[np.ndarray[Any, Any]]:
        read = self.collection.read(batches)
        gathered = self.engine.gather(read.rows, self._active(read.rows))
        return [vectors.cpu().numpy() for vectors in read.answer(gathered)]

    def provenance(self, batches: Sequence[FeatureBatch]) -> list[np.ndarray[Any, Any]]:
        read = self.collection.read(batches)
        return read.provenance(self.engine.trained(read.rows, self._active(read.rows)))

    def update(self, updates: Sequence[FeatureUpdate]) -> None:
        change = self.collection.change(updates)
        self.engine.apply(change.rows, change.gradients, self._active(change.rows))
        self.engine.write(change.written, change.values, self._active(change.written))

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Every tensor whole, its shards one after the other."""
        mine = {name: view.cpu().numpy().copy() for name, view in self.engine.tensors().items()}
        parts = self.engine.world.gather(mine)
        return {name: np.concatenate([part[name] for part in parts]) for name in mine}

    def save(self, folder: str, version: int, kept: int = 3) -> str:
        return str(snapshot.save(self.engine, version, Path(folder), kept=kept).path)

    def load(self, path: str) -> int:
        return snapshot.load(self.engine, open_snapshot(Path(path)))

    def _active(self, rows: ByTable) -> set[str]:
        tables = [table.name for table in self.engine.config.tables]
        sums = self.engine.world.sum(torch.tensor([table in rows for table in tables], dtype=torch.int64))
        return {table for table, count in zip(tables, sums.tolist(), strict=True) if count}


def local(config: Config) -> Subject:
    """A subject on the local engine, in this process."""
    return Subject(LocalEngine(config, SoloWorld()))
