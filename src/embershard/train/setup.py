"""What a run is made of: data, model, tables and what tells how good they are, as the job file says."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from embershard.engine.freezing import freeze
from embershard.engine.making import make_engine
from embershard.errors import ConfigError
from embershard.store import snapshot
from embershard.store.agreement import everywhere
from embershard.store.manifest import find_snapshot
from embershard.train.batches import Stream
from embershard.train.evaluation import Evaluation
from embershard.train.model import About, RanksItems, ScoresClicks, make_model
from embershard.train.schema import DataSpec, FeatureSpec
from embershard.train.sources import open_data, open_evaluation, open_training
from embershard.types import FeatureBatch

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from embershard.config import Config
    from embershard.engine.base import Engine
    from embershard.engine.world import World
    from embershard.store.manifest import Snapshot
    from embershard.train.job import JobSpec
    from embershard.train.peers import Peers
    from embershard.train.source import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """A job, and where it is."""

    job: JobSpec
    """As the file says."""
    config: Config
    """Of the collection."""
    folder: Path
    """From which files are found."""
    peers: Peers
    """The ranks."""

    def stream(self, source: Source, *, shuffled: bool = True) -> Stream:
        """The examples of a source."""
        return Stream(
            source,
            batch=self.job.batch,
            seed=self.job.seed,
            shuffle_rows=self.job.data.shuffle_rows if shuffled else 0,
            rank=self.peers.rank,
            world_size=self.peers.size,
        )

    def make_model(self) -> nn.Module:
        """The layers, as they start; alike on every rank.

        Raises:
            ConfigError: the job names none that can be made.
        """
        torch.manual_seed(self.job.seed)
        about = About(
            tables={feature: table for table in self.config.tables for feature in table.features},
            features=self.job.data.feature_names,
            dense=self.job.data.dense_width,
            seed=self.config.collection.seed,
        )
        return make_model(self.job.model, about, self.job.model_options)

    def open(self, model: nn.Module) -> tuple[Source, Evaluation | None]:
        """What to train on, and what tells how good the model is, if there is data for it.

        Raises:
            ConfigError, InvalidInput: the data has not what the job or the model's kind of evaluation needs.
        """
        if isinstance(model, ScoresClicks):
            if not self.job.data.labelled:
                raise ConfigError("data.label is missing: the model's scores are compared with labels")
            if self.job.evaluate.items is not None:
                raise ConfigError("evaluate.items: this model is judged by labels, and ranks no items; leave it out")
        elif self.job.evaluate.items is not None:
            return self._open_ranking(model, self.job.evaluate.items)
        train, evaluate = open_data(self.job.data, folder=self.folder, seed=self.job.seed)
        return train, None if evaluate is None else self._evaluation(evaluate, None)

    def _open_ranking(self, model: nn.Module, items: str) -> tuple[Source, Evaluation | None]:
        """The same where evaluation ranks all items for each query: it reads other columns than training."""
        if not isinstance(model, RanksItems):
            raise ConfigError(
                "evaluate.items: this model ranks no items; it needs queries, candidates, query_features and "
                "item_features (see embershard.train.model)"
            )
        if self.job.data.synthetic is not None:
            raise ConfigError("evaluate.items: synthetic examples have no targets to be found")
        spec, given = self.job.evaluate, self.job.data.features
        asked = {name: given.get(name, FeatureSpec()) for name in model.query_features}
        for column in filter(None, (spec.targets, spec.seen)):
            asked[column] = FeatureSpec(column=column)
        ranked = {name: given.get(name, FeatureSpec()) for name in model.item_features}
        where: dict[str, Any] = {"folder": self.folder, "seed": self.job.seed}
        train = open_training(self.job.data, **where)
        evaluate = open_evaluation(replace(self.job.data, label=None, dense=[], features=asked), **where)
        if evaluate is None:
            return train, None
        return train, self._evaluation(evaluate, open_training(DataSpec(train=[items], features=ranked), **where))

    def _evaluation(self, queries: Source, items: Source | None) -> Evaluation:
        with closing(self.stream(queries, shuffled=False).epoch(0)) as batches:
            next(
                batches
            )  # there is something to evaluate on, or this tells what is wrong with it before hours of training
        return Evaluation(
            self.job.evaluate,
            queries=self.stream(queries, shuffled=False),
            items=None if items is None else self.stream(items, shuffled=False),
            seed=self.config.collection.seed,
            peers=self.peers,
        )

    def make_engine(self, world: World, found: Snapshot | None) -> Engine:
        """Joint: the rows of a snapshot, or else as they are seeded.

        Raises:
            SnapshotError, FingerprintMismatch: they can't be used.
            InvalidInput: an id that is to be frozen owns no row.
        """
        if found is None:
            engine = make_engine(self.config, world)
        else:
            engine = make_engine(self.config.fitted(found.manifest["layout"]), world, seeded=False)
            snapshot.load(engine, found)
        for feature, ids in self.job.freeze.ids.items():
            freeze(engine, FeatureBatch.of(feature, ids), frozen=True)
        return engine

    def find_start(self, world: World, run: Path) -> Snapshot | None:
        """Joint: what the job fine-tunes; a run that is gone on with keeps to the one that it began with.

        Raises:
            SnapshotError: on every rank: there is none, or it is damaged.
        """
        kept = run / "start"
        path: Path | None = None
        with everywhere(world.gather, "job's start"):
            if world.rank == 0 and self.job.start is not None:
                path = Path(kept.read_text()) if kept.is_file() else find_snapshot(self.folder / self.job.start).path
                kept.write_text(str(path))
                if not path.is_dir():
                    logger.warning("%s, which the run has started from, is gone: its drift can't be told", path)
                    path = None
        path = world.gather(path)[0]
        return None if path is None else find_snapshot(path)
