"""A training job as a test drives it: an engine in this process, and what it publishes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from embershard import Client
from embershard.config import parse_config
from embershard.engine.touched import Touched
from embershard.publisher import Publisher
from embershard.store.manifest import Snapshot, open_snapshot
from embershard.types import FeatureBatch, FeatureUpdate
from embershard.v1 import embershard_pb2 as pb
from support.subject import local

TABLES = """
[[tables]]
name = "left"
rows = 40
dim = 3
init = { kind = "zeros" }
[[tables]]
name = "right"
rows = 40
dim = 5
init = { kind = "zeros" }
[[tables]]
name = "word"
rows = 30
dim = 4
init = { kind = "zeros" }
ids = { kind = "vocabulary", fallback_rows = 6 }
"""
CONFIG = '[collection]\nname = "shop"\n[limits]\nsnapshots_kept = 1\n[optimizer]\nkind = "sgd"\nlearning_rate = 1.0\n'
CONFIG += TABLES
EVERY: dict[str, Any] = {"left": np.arange(40), "right": np.arange(40), "word": [f"w{n}" for n in range(20)]}
DIMS = {"left": 3, "right": 5, "word": 4}


class Job:
    """Whatever it fills, it fills with one number, so that all tables are one number in every publication."""

    def __init__(self, client: Client, folder: Path, name: str, text: str = CONFIG, timeout_s: float = 60) -> None:
        self.subject = local(parse_config(tomllib.loads(text)))
        self.publisher = Publisher(client, publisher=name, world=self.subject.engine.world, timeout_s=timeout_s)
        self.touched = Touched(self.subject.engine)
        self._folder, self._saved = folder / f"job-{name}", 0

    def fill(self, number: float, features: dict[str, Any] | None = None) -> Job:
        """Sets rows, of all tables unless some are named."""
        self.subject.update(
            [
                FeatureUpdate(
                    batch=FeatureBatch.of(feature, ids),
                    values=np.full((len(ids), DIMS[feature]), number, np.float32),
                )
                for feature, ids in (features or EVERY).items()
            ]
        )
        return self

    def snapshot(self) -> Snapshot:
        self._saved += 1
        return open_snapshot(Path(self.subject.save(str(self._folder), self._saved)))

    def full(self) -> pb.PublishResponse:
        snapshot = self.snapshot()
        self.touched.clear()
        return self.publisher.full(snapshot)

    def delta(self) -> pb.PublishResponse:
        """Publishes what has changed; what can't be published, the next one has, too."""
        changes = self.touched.take()
        try:
            return self.publisher.delta(changes)
        except Exception:
            self.touched.put_back(changes)
            raise


def numbers(client: Client, **options: Any) -> set[float]:
    """All numbers of all tables, in one lookup."""
    rows = client.lookup(EVERY, **options)
    return {float(number) for of_feature in rows.values() for number in np.unique(of_feature)}
