"""The tables of a collection as one layer of a model: ids in, vectors out, and its way back moves rows.

    ids ──► rows ──► gather (all-to-all) ──► compose ──► vectors ──► the model ──► loss
             │                                              │
             └── the tables' own optimizers ◄── pull ◄──────┘  gradients

It is the road of a service, by the same functions (`ids`, `compose`, the engine), so that what is trained is what will
be served. All uses of a table in one step, of several features or several ids, move it once, by their sum.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from embershard.change import concatenated, rows_of_parts, shares
from embershard.collection import Collection
from embershard.engine import admission
from embershard.sums import Sums

if TYPE_CHECKING:
    from embershard.change import ByPart
    from embershard.collection import Read
    from embershard.compose import RowBatch
    from embershard.engine.base import Engine, Held
    from embershard.types import FeatureBatch


class Tables(nn.Module):
    """Looks up and moves the rows of an engine; every call is joint, for the same features on every rank.

    The gradient that reaches a row is the mean over ranks, as it is of a parameter under DistributedDataParallel.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine, self._collection = engine, Collection(engine.config, bounded=False)
        self._anchor = torch.zeros((), requires_grad=True)  # so that autograd goes back through what has no parameters
        # Of the sharded engine these are TorchRec's sharded modules, which DistributedModelParallel knows.
        self.kernels = nn.ModuleList(shard.kernel for shard in engine.shards.values())
        self._step: _Step | None = None
        self.not_finite = False
        """Whether a gradient was no number; then it has moved nothing."""

    def read(self, batches: Sequence[FeatureBatch]) -> Read:
        """What to look up; not joint.

        Raises:
            InvalidInput: an id that a table doesn't have, or another kind of id.
        """
        return self._collection.read(batches)

    def forward(self, read: Read) -> dict[str, Tensor]:
        """float32 {feature: [B, D] if pooled, else [N, D]}; in training, `move` follows the way back."""
        moving = self.training and torch.is_grad_enabled()
        if moving:
            self._admit(read.parts)
        parts = [self.engine.settle(part) for part in read.parts]
        step = _Step.of(self, parts, moving=moving)
        self._step = step if moving else None
        vectors: Sequence[Tensor] = _Lookup.apply(self._anchor, step) if moving else step.vectors()  # type: ignore[no-untyped-call]
        return {part.batch.feature: made for part, made in zip(parts, vectors, strict=True)}

    def move(self) -> None:
        """Joint: one step of the tables' optimizers, by the gradients that came back of the vectors; what got none, has
        zeros.

        Not within the way back: there ranks may come by the layers in another order, and their all-reduces with them.
        """
        assert self._step is not None, "a lookup came before"
        self._step.move()
        self._step = None

    def _admit(self, parts: Sequence[RowBatch]) -> None:
        """Joint: counts the ids of vocabularies, which lets some go and others in before their rows are read."""
        tables = {part.table.name for part in parts if part.ids.keys is not None}
        if tables:
            now_s = max(self.engine.world.gather(int(time.time())))
            admission.admit(self.engine, admission.sightings_of_parts(parts), tables, now_s)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Step:
    """One lookup, and what is needed to go back through it."""

    tables: Tables
    """Where it was made."""
    parts: Sequence[RowBatch]
    """One a feature."""
    held: Held | None
    """Rows that may be moved."""
    stored: ByPart
    """Rows of each part."""
    gradients: list[Tensor] = field(default_factory=list)
    """What came back, one a part; none yet, or where nothing depends on the vectors."""

    @classmethod
    def of(cls, tables: Tables, parts: Sequence[RowBatch], *, moving: bool) -> _Step:
        """Joint: gathers the rows of all parts."""
        engine = tables.engine
        fixed = [part for part in parts if part.table.frozen or not moving]
        moved = [part for part in parts if moving and not part.table.frozen]
        rows = rows_of_parts(fixed)
        stored = shares(fixed, engine.gather(rows, rows.keys()))
        held = None
        if moved:
            rows = rows_of_parts(moved)
            shared = [matrix for part in moved for matrix in part.table.matrices if matrix.shared]
            # What all rows of a table share is moved by one rank, by the sum of all ranks' gradients.
            rows |= {matrix.name: torch.arange(0 if engine.world.rank else matrix.rows) for matrix in shared}
            sums = _sums_of(moved)
            held = engine.hold(rows, sums)
            # What comes as sums, has nothing left to be summed.
            seen = {part: part.summed if part.table.own_matrices[0] in sums else part for part in moved}
            stored |= shares(seen.values(), held.rows, lambda part: _size(part, sums))
            parts = [seen.get(part, part) for part in parts]
        return cls(tables=tables, parts=parts, held=held, stored=stored)

    def vectors(self) -> list[Tensor]:
        """[outputs, D] of each part."""
        projections = self.tables.engine.projections
        return [part.compose(self.stored[part], projections.get(part.table.name)) for part in self.parts]

    def move(self) -> None:
        """Joint: as `Tables.move`."""
        gradients = self.gradients or [torch.zeros_like(vectors_BD) for vectors_BD in self.vectors()]
        world, projections = self.tables.engine.world, self.tables.engine.projections
        pieces: list[tuple[str, Tensor]] = []
        shared: dict[str, Tensor] = {}
        for part, gradients_BD in zip(self.parts, gradients, strict=True):
            if part.table.frozen:
                continue
            if not torch.isfinite(gradients_BD.sum()):
                self.tables.not_finite = True
                gradients_BD = torch.zeros_like(gradients_BD)
            shared_BD = gradients_BD if world.size == 1 else gradients_BD / world.size
            pulled, of_projection = part.pull(shared_BD, self.stored[part], projections.get(part.table.name))
            pieces += zip(part.table.own_matrices, pulled, strict=True)
            if of_projection is not None:
                name = part.table.matrices[-1].name
                shared[name] = shared[name] + of_projection if name in shared else of_projection
        if self.held:
            summed = {name: world.sum(gradient) for name, gradient in shared.items()}
            mine = {name: gradient[: 0 if world.rank else None] for name, gradient in summed.items()}
            self.held.apply(concatenated(pieces) | mine)


def _sums_of(parts: Sequence[RowBatch]) -> dict[str, Sums]:
    """{matrix: the sums that its parts are}, of tables that have bags."""
    bags = {
        part.table.name
        for part in parts
        if part.summable and part.table.pooling != "none" and part.batch.lengths is not None
    }
    by_matrix: dict[str, list[RowBatch]] = {}
    for part in parts:
        if part.table.name in bags:
            by_matrix.setdefault(part.table.own_matrices[0], []).append(part)
    return {
        # Whether there are weights is the same on every rank, as ranks send them to each other.
        matrix: Sums.joined(
            [(part.inner, len(part.ids.rows_M)) for part in of_it], weighted=any(part.weighted for part in of_it)
        )
        for matrix, of_it in by_matrix.items()
    }


def _size(part: RowBatch, sums: Mapping[str, Sums]) -> int:
    """How many rows, or sums of rows, a part has of each of its matrices."""
    return part.outputs if part.table.own_matrices[0] in sums else len(part.ids.rows_M)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, step: _Step) -> tuple[Tensor, ...]:  # noqa: ARG004  # autograd wants it
        ctx.step = step
        return tuple(step.vectors())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.step.gradients.extend(gradients)
        return None, None
