"""One job under way: step after step, on all ranks alike.

    batch ──► wanted ──► Tables ──► model ──► losses ──► mean over all ranks ──► backward ──► rows and layers move

Under torchrun tables and model are one module in TorchRec's DistributedModelParallel: rows stay where they are cut to,
and the layers are kept alike on all ranks by DistributedDataParallel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from embershard.collection import Read
from embershard.errors import ConfigError, EmbershardError, InvalidInput, TrainingError
from embershard.train.metrics import check_clicks
from embershard.train.model import Inputs, ScoresClicks, wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embershard.engine.world import World
    from embershard.train.batches import Batch
    from embershard.train.job import DenseOptimizerSpec
    from embershard.train.peers import Peers
    from embershard.train.tables import Tables


_NO_NUMBER = (
    "a gradient of step {:,} is no number: lower the learning rates, or look for numbers in the data that are out of "
    "all proportion"
)


_UNFIT = ("Optimizer", "LBFGS", "SparseAdam")
"""Of torch.optim: they want a closure, or gradients that are sparse."""


class _Learner(nn.Module):
    """Tables and model as one module: losses of a batch."""

    def __init__(self, tables: Tables, model: nn.Module) -> None:
        super().__init__()
        self.tables, self.model = tables, model

    def forward(self, read: Read, batch: Batch, peers: Peers, step: int) -> Tensor:
        """[n]."""
        inputs = Inputs(batch=batch, vectors=self.tables(read), peers=peers, step=step)
        losses: Tensor = self.model(inputs)
        # A layer that is left out, on one rank alone perhaps, has zeros as its gradient: ranks wait for each other's.
        nothing = sum(0.0 * layer.sum() for layer in self.model.parameters() if layer.requires_grad)
        return losses + nothing if isinstance(losses, Tensor) else losses


class Trainer:
    """A model, its tables, and what moves them; every method is joint."""

    def __init__(
        self, tables: Tables, model: nn.Module, optimizer: DenseOptimizerSpec, *, peers: Peers, seed: int
    ) -> None:
        self.tables, self.model = tables, model.to(peers.device)
        self._world: World = tables.engine.world
        self._peers, self._seed = peers, seed
        self._positives, self._labels = 0.0, 0
        """Of the labels of this rank: their sum, and how many they were."""
        layers = [*model.parameters()]
        self.optimizer = make_optimizer(optimizer, layers) if layers else None
        self._learner: nn.Module = _Learner(tables, model)
        if self._world.size > 1:
            self._learner = _distributed(self._learner, peers.device)

    def prepare(self, batch: Batch | EmbershardError, step: int, wishes: Sequence[int]) -> tuple[Read, list[int]]:
        """What to look up for a batch, and all ranks' wishes, added up; `step` steps came before.

        Raises:
            EmbershardError: on every rank, if the data of any is wrong, or can't be read.
            TrainingError: on every rank: a gradient of the step before was no number.
        """
        read, problem = Read(parts=[], numbers=0), batch if isinstance(batch, EmbershardError) else None
        try:
            if not isinstance(batch, EmbershardError):
                read = self.tables.read([*wanted(self.model, batch, step, self._peers).values()])
                self._note_labels(batch)
        except EmbershardError as error:
            problem = error
        return read, self._agree(problem, step, wishes)

    def learn(self, read: Read, batch: Batch, step: int) -> float:
        """Learns of a batch; returns its mean loss over all ranks.

        Raises:
            TrainingError: on every rank: the loss, or a gradient of the layers, is no number. Nothing has moved.
        """
        # So that a job that is gone on with drops out alike; on other ranks other examples are.
        drawn = np.random.SeedSequence([self._seed, step, self._world.rank]).generate_state(1, np.uint64)
        torch.manual_seed(int(drawn[0]))
        losses_n: Tensor = self._learner(read, batch, self._peers, step)
        if not (isinstance(losses_n, Tensor) and losses_n.ndim == 1 and losses_n.requires_grad):
            what = f"a tensor {[*losses_n.shape]}" if isinstance(losses_n, Tensor) else type(losses_n).__name__
            raise ConfigError(
                f"the model's forward returns {what}; it must be losses [n], made of its vectors or layers"
            )
        told = torch.tensor([float(losses_n.detach().sum()), losses_n.numel()], dtype=torch.float64)
        total, count = self._world.sum(told).tolist()
        if not math.isfinite(total):
            raise TrainingError(
                f"the loss of step {step + 1:,} is {total:g}: lower the learning rates, or look for numbers in the "
                "data that are out of all proportion"
            )
        # The layers get the mean of all ranks' gradients, and so do rows: so the sum is to be as many times as large.
        (losses_n.sum() * (self._world.size / max(count, 1))).backward()
        self._check_gradients(step)
        self.tables.move()
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return float(total / max(count, 1))

    def check(self, step: int) -> None:
        """Raises TrainingError on every rank if a gradient of the last step was no number on any."""
        self._agree(None, step, ())

    def check_classes(self, *, whole: bool) -> None:
        """Ends an epoch; raises InvalidInput on every rank if it is `whole`, and all its labels were alike: there is
        nothing to tell apart."""
        seen = torch.tensor([self._positives, self._labels], dtype=torch.float64)
        self._positives, self._labels = 0.0, 0
        positives, labels = self._world.sum(seen).tolist()
        if whole and labels and positives in (0, labels):
            raise InvalidInput(
                f"data.label: all {labels:,.0f} labels are {positives / labels:g}: a model of clicks needs both 0 and 1"
            )

    def _note_labels(self, batch: Batch) -> None:
        """Checks and counts those of clicks."""
        if batch.labels_B is not None and isinstance(self.model, ScoresClicks):
            check_clicks(batch.labels_B)
            self._positives, self._labels = self._positives + float(batch.labels_B.sum()), self._labels + batch.examples

    def _check_gradients(self, step: int) -> None:
        """Of the layers, which are the same on every rank."""
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        if not torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
            raise TrainingError(_NO_NUMBER.format(step + 1))

    def _agree(self, problem: EmbershardError | None, step: int, wishes: Sequence[int]) -> list[int]:
        """Adds up all ranks' wishes, unless any has a problem: that all raise."""
        if self.tables.not_finite:
            problem = TrainingError(_NO_NUMBER.format(step))
        problems, *added = self._world.sum(torch.tensor([problem is not None, *wishes], dtype=torch.int64)).tolist()
        if problems:
            raise next(told for told in self._world.gather(problem) if told)
        return added


def make_optimizer(spec: DenseOptimizerSpec, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """One of torch.optim.

    Raises:
        ConfigError: there is no such, or it doesn't take these options.
    """
    kind = getattr(torch.optim, spec.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)) or spec.kind in _UNFIT:
        known = ", ".join(name for name in dir(torch.optim) if name[0].isupper() and name not in _UNFIT)
        raise ConfigError(f"optimizer kind = {spec.kind!r}: is not one of those of torch.optim that fit: {known}")
    try:
        made: torch.optim.Optimizer = kind(parameters, **spec.options)
    except (TypeError, ValueError, LookupError) as error:
        raise ConfigError(f"optimizer kind = {spec.kind!r}: can't be made with these options: {error}") from error
    return made


def _distributed(learner: nn.Module, device: torch.device) -> nn.Module:
    """In TorchRec's DistributedModelParallel, which leaves modules that are sharded already as they are."""
    from torchrec.distributed.model_parallel import DefaultDataParallelWrapper, DistributedModelParallel
    from torchrec.distributed.types import ShardingPlan

    wrapper = DefaultDataParallelWrapper(static_graph=False)  # a model may do otherwise at another step
    wrapped: nn.Module = DistributedModelParallel(
        learner,
        device=device,
        plan=ShardingPlan(plan={}),
        sharders=[],
        init_parameters=False,
        data_parallel_wrapper=wrapper,
    )
    return wrapped
