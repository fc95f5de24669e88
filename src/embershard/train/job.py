"""What a job file says: a collection's tables, a model, data, and how to train the one for the other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field
from pydantic.dataclasses import dataclass

from embershard.config import SERVES_ONLY, Config, load_config
from embershard.config.checking import checked, read_toml
from embershard.config.specs import CLOSED, Name
from embershard.errors import ConfigError
from embershard.train.schema import PLACES as DATA_PLACES
from embershard.train.schema import DataSpec

_Count = Annotated[int, Field(strict=True, ge=1)]
_Seconds = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
_Text = Annotated[str, Field(strict=True, min_length=1)]


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class DenseOptimizerSpec:
    """How gradients move what isn't a row: the layers of the model."""

    kind: _Text = "Adam"
    """A class of torch.optim."""
    options: dict[str, Any] = field(default_factory=lambda: {"lr": 1e-3})
    """Its arguments."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class EvaluateSpec:
    """What is told of the model, beside its losses."""

    every_steps: _Count | None = None
    """How often; none given: at the end."""
    k: list[_Count] = field(default_factory=lambda: [10])
    """Of Recall@k and NDCG@k, where the model ranks items."""
    items: _Text | None = None
    """A file of all items to rank, with the columns of the model's item features; relative to the job file."""
    targets: _Text = "targets"
    """Column of the evaluation data: the items that each query should find, by the model's first item feature."""
    seen: _Text | None = None
    """Column of the evaluation data: items that aren't to be ranked, as each query's user has had them."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class CheckpointSpec:
    """When what was learned goes to the disk."""

    every_s: _Seconds = 300.0
    """Seconds from the end of one to the next; there is always one at the end."""
    every_steps: _Count | None = None
    """Steps, in place of seconds."""
    kept: _Count = 2
    """So many of the newest stay."""

    @property
    def often(self) -> str:
        """In words."""
        return f"{self.every_s:g} s" if self.every_steps is None else f"{self.every_steps:,} steps"


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class FreezeSpec:
    """What stays bit for bit as it is."""

    tables: list[Name] = field(default_factory=list)
    """Whole tables."""
    ids: dict[Name, list[Annotated[int, Field(strict=True)]] | list[_Text]] = field(default_factory=dict)
    """{feature: ids that own their rows}."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class PublishSpec:
    """A service that is to serve what was learned."""

    target: _Text
    """HOST:PORT of one of its front ends."""
    every_s: _Seconds = 30.0
    """Seconds from one publication to the next; there is always one at the end."""
    timeout_s: _Seconds = 60.0
    """How long one may take, the service's restarts included, before it is given up, and its rows go with the next."""


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class JobSpec:
    """A training job. Files are found from the job file's folder."""

    collection: _Text
    """The configuration of the collection, as a server reads it."""
    model: _Text
    """dlrm, two_tower, next_item, or package.module:Class, which is code that will be run."""
    model_options: dict[str, Any] = field(default_factory=dict)
    """The model's own."""
    batch: _Count
    """Examples of a step, of all ranks together: what is learned doesn't depend on how many they are."""
    epochs: _Count = 1
    """Passes over the data."""
    steps: _Count | None = None
    """Most steps; none given: as many as the epochs have."""
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0
    """Of the order of examples, and of the layers of the model and what they drop out. Rows start, and negatives are
    drawn, by the collection's."""
    start: _Text | None = None
    """Rows to start from, to fine-tune them: a snapshot, or the data directory of a server or folder of a run, whose
    newest it is."""
    optimizer: DenseOptimizerSpec = field(default_factory=DenseOptimizerSpec)
    """Of the layers; rows have the collection's."""
    data: DataSpec
    """What is learned of."""
    evaluate: EvaluateSpec = field(default_factory=EvaluateSpec)
    """How well."""
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    """When it is kept."""
    freeze: FreezeSpec = field(default_factory=FreezeSpec)
    """What isn't changed."""
    publish: PublishSpec | None = None
    """Who is to serve it."""

    @property
    def identity(self) -> dict[str, Any]:
        """What makes the curve of the losses, as JSON has it; a run can't go on with another."""
        data = {key: value for key, value in asdict(self.data).items() if not key.startswith("evaluate")}
        told = {key: getattr(self, key) for key in ("model", "model_options", "batch", "seed")}
        told |= {"data": data, "optimizer": {"kind": self.optimizer.kind}}
        identity: dict[str, Any] = json.loads(json.dumps(told, default=str))
        return identity

    def publishing(self, given: Mapping[str, Any]) -> JobSpec:
        """The same with other keys of `publish`.

        Raises:
            ConfigError: nothing says where.
        """
        keys = (asdict(self.publish) if self.publish else {}) | dict(given)
        if "target" not in keys:
            raise ConfigError("--publish-every: say where, by --publish HOST:PORT or the job's [publish]")
        return replace(self, publish=PublishSpec(**keys))


_PLACES: Final[dict[str, type]] = {
    **DATA_PLACES,
    "optimizer": DenseOptimizerSpec,
    "evaluate": EvaluateSpec,
    "checkpoint": CheckpointSpec,
    "freeze": FreezeSpec,
    "publish": PublishSpec,
}


def load_job(path: Path) -> tuple[JobSpec, Config]:
    """A job, and the collection whose rows it trains, with the tables frozen that the job freezes.

    Raises:
        ConfigError: naming file, key, the value and what is allowed.
    """
    job = checked(JobSpec, read_toml(path), source=str(path), places=_PLACES)
    config = load_config(path.parent / job.collection)
    features = {feature for table in config.tables for feature in table.features}
    for where, named, known in (
        ("data", job.data.feature_names, features),
        ("freeze.ids", job.freeze.ids, features),
        ("freeze.tables", job.freeze.tables, {table.name for table in config.tables}),
    ):
        if unknown := sorted(set(named) - known):
            raise ConfigError(
                f"{path}: {where}: {unknown[0]!r} is not in {job.collection}, which has {', '.join(sorted(known))}"
            )
    if still := [table.name for table in config.tables if table.serves_only]:
        raise ConfigError(
            f"{path}: collection: table {still[0]!r} of {job.collection} {SERVES_ONLY}: train float32, and "
            "`embershard convert` the snapshots"
        )
    return job, config.with_frozen(job.freeze.tables)
